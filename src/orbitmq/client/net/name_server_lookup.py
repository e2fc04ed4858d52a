"""Reads name server addresses from a web page (Apache: ``TopAddressing``, ``HttpTinyClient``).

Operators who move name servers can keep one address fixed: that of a page whose text is ``host:port;host:port``. The
request is HTTP/1.0, so the response ends when the connection does.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from orbitmq.client.errors import NameServerError

__all__ = ["is_page", "look_up"]

_ANSWER_BYTES_MAX: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}


def is_page(text: str) -> bool:
    """Whether a name server setting is the address of a page."""
    return text.startswith(("http://", "https://"))


async def look_up(url: str, timeout_s: float) -> str:
    """Returns the addresses on the page. Raises ``NameServerError`` if the page cannot be read."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _fetch(url)
    except TimeoutError:
        raise NameServerError(f"no name server addresses from {url} within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise NameServerError(f"no name server addresses from {url}: {error}") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(status) < 2 or status[1] != b"200":
        raise NameServerError(
            f"{url} answers {status[1].decode('ascii', 'replace') if status[1:] else 'nonsense'}"
        )
    text = body.decode("ascii", "replace").strip()
    if not text:
        raise NameServerError(f"{url} names no name server")
    return text


async def _fetch(url: str) -> bytes:
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("the address has no host")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or _PORTS[parts.scheme], ssl=parts.scheme == "https" or None
    )
    try:
        request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: text/plain, */*\r\n\r\n"
        writer.write(request.encode("ascii"))
        answer = b""
        while data := await reader.read(_ANSWER_BYTES_MAX):
            answer += data
            if len(answer) > _ANSWER_BYTES_MAX:
                raise ValueError(f"the answer is longer than {_ANSWER_BYTES_MAX} bytes")
        return answer
    finally:
        writer.transport.abort()
