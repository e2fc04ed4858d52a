"""Attacks a listening port, each attack bounded in count and time. ``benchmarks.floods`` runs it as a separate
process.

    python -m benchmarks.flood_attacks ATTACK PROTOCOL HOST PORT SECONDS

Protocols are ``frames`` (remoting, fast port and name servers), ``stream`` (replication), ``grpc`` and ``http``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["ATTACKS"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_OFFSET: Final = 30
_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4


@dataclass(frozen=True, slots=True)
class Target:
    """The port under attack."""

    protocol: str
    host: str
    port: int
    seconds: float

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(asyncio.open_connection(self.host, self.port), 10)

    def beginning(self) -> bytes:
        """The first bytes of a plausible request that never becomes complete."""
        if self.protocol == "frames":
            return (
                struct.pack(">i", 1 << 20)
                + struct.pack(">i", 1 << 19)
                + b'{"code":105,"extFields":{"topic":"'
            )
        if self.protocol == "grpc":
            return _PREFACE
        if self.protocol == "http":
            return b"GET / HTTP/1.1\r\nHost: a\r\nX-Header: "
        return b""

    def request(self) -> bytes:
        if self.protocol == "http":
            return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        fields = {"topic": "T", "queueId": "0"}
        header = {"code": _MAX_OFFSET, "language": "JAVA", "version": 497, "opaque": 1, "flag": 0}
        encoded = json.dumps(header | {"extFields": fields}).encode()
        return struct.pack(">ii", 4 + len(encoded), len(encoded)) + encoded


async def _many(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    async def one(number: int) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await work(number)

    await asyncio.gather(*(one(number) for number in range(count)))


async def silent(target: Target) -> None:
    """500 connections that send nothing."""

    async def hold(_: int) -> None:
        reader, writer = await target.connect()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), target.seconds)
        writer.close()

    await _many(500, hold)


async def loris(target: Target) -> None:
    """300 connections that send a request byte by byte, one every 100 ms."""

    async def drip(number: int) -> None:
        _, writer = await target.connect()
        text = target.beginning() + b"a" * 1000
        for position in range(int(target.seconds * 10)):
            writer.write(text[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.close()

    await _many(300, drip)


async def unfinished(target: Target) -> None:
    """100 connections that each send 2 MiB of a request of 15 MiB, and wait."""

    async def hold(_: int) -> None:
        reader, writer = await target.connect()
        writer.write(struct.pack(">ii", 15 << 20, 100) + bytes(2 << 20))
        await asyncio.wait_for(writer.drain(), target.seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), target.seconds)
        writer.close()

    await _many(100, hold)


async def garbage(target: Target) -> None:
    """2,000 connections, 32 at a time, that send 4 KiB of random bytes."""
    turns = asyncio.Semaphore(32)
    source = random.Random(1)

    async def throw(_: int) -> None:
        async with turns:
            reader, writer = await target.connect()
            writer.write(source.randbytes(4096))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1)
            writer.close()

    await asyncio.wait_for(_many(2000, throw), 4 * target.seconds)


async def unread(target: Target) -> None:
    """20 connections that send 20,000 requests each and read no answer."""

    async def ask(_: int) -> None:
        _reader, writer = await target.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport too
        part = target.request() * 500
        for _ in range(40):
            writer.write(part)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writer.drain(), 1)
        await asyncio.sleep(target.seconds / 2)
        writer.transport.abort()

    await _many(20, ask)


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


def _opened(stream_id: int, more: bytes = b"") -> bytes:
    path = b"/apache.rocketmq.v2.MessagingService/QueryRoute"
    block = b"\x83\x86\x04" + bytes((len(path),)) + path
    block += b"\x40\x0ccontent-type\x10application/grpc"
    return _frame(_HEADERS, 4, stream_id, block + more)


async def resets(target: Target) -> None:
    """20 connections that open and reset 4,000 calls each."""

    async def reset(_: int) -> None:
        reader, writer = await target.connect()
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        for start in range(0, 4_000, 500):
            ids = range(2 * start + 1, 2 * start + 1001, 2)
            writer.write(b"".join(_opened(n) + _frame(_RESET, 0, n, b"\0\0\0\x08") for n in ids))
            await asyncio.wait_for(writer.drain(), target.seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 2)
        writer.close()

    await _many(20, reset)


async def open_calls(target: Target) -> None:
    """20 connections with 500 calls each whose bodies of 64 KiB never end."""

    async def hold(_: int) -> None:
        reader, writer = await target.connect()
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        body = b"\0" + struct.pack(">I", 1 << 20) + bytes(1019)
        for number in range(500):
            stream_id = 2 * number + 1
            more = b"\x40\x01x\x7f\x87\x01" + b"y" * 262
            writer.write(_opened(stream_id, more) + _frame(_DATA, 0, stream_id, body))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writer.drain(), 1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), target.seconds)
        writer.close()

    await _many(20, hold)


async def settings(target: Target) -> None:
    """4 connections with 100 open calls, and 400 frames of 40 SETTINGS each."""

    async def change(_: int) -> None:
        reader, writer = await target.connect()
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        writer.write(b"".join(_opened(2 * number + 1) for number in range(100)))
        windows = b"".join(struct.pack(">HI", 4, 65_535 + number) for number in range(40))
        writer.write(_frame(_SETTINGS, 0, 0, windows) * 400)
        await asyncio.wait_for(writer.drain(), target.seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 2)
        writer.close()

    await _many(4, change)


_COMMON: Final = (silent, loris, garbage)
ATTACKS: Final[dict[str, tuple[Callable[[Target], Awaitable[None]], ...]]] = {
    "frames": (*_COMMON, unfinished, unread),
    "stream": _COMMON,
    "http": (*_COMMON, unread),
    "grpc": (*_COMMON, resets, settings, open_calls),
}
"""By protocol."""


def main() -> None:
    name, protocol, host, port, seconds = sys.argv[1:]
    target = Target(protocol, host, int(port), float(seconds))
    attack = next(one for one in ATTACKS[protocol] if one.__name__ == name)
    asyncio.run(asyncio.wait_for(_run(attack, target), 10 * target.seconds))


async def _run(attack: Callable[[Target], Awaitable[None]], target: Target) -> None:
    await attack(target)


if __name__ == "__main__":
    main()
