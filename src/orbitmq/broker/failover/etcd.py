"""The subset of etcd that failover needs, over its JSON gateway (v3, etcd 3.4 and newer).

Every call goes to the endpoint that answered last and tries the others in turn when it fails. A call that no endpoint
answers in time raises ``EtcdError``. It may still have taken effect, so callers must read to find out. Reads are
linearizable: the values they return were current after the call began.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbitmq.errors import ConfigError, OrbitError

if TYPE_CHECKING:
    import httpx

__all__ = ["Compare", "EtcdClient", "EtcdError", "KeyValue", "Put"]

_ANSWER_BYTES_MAX: Final = 4 << 20


class EtcdError(OrbitError):
    """etcd did not answer, or sent an unexpected answer."""


class KeyValue(msgspec.Struct, frozen=True):
    """A key with its value and revisions."""

    key: str
    value: bytes
    create_revision: int
    """The revision that created the key. It changes when the key is deleted and recreated."""
    mod_revision: int
    lease: int


class Compare(msgspec.Struct, frozen=True):
    """A condition of a transaction. Revision 0 means that the key does not exist."""

    key: str
    revision: int
    created: bool = False
    """Compare the revision that created the key instead of the last one that changed it."""


class Put(msgspec.Struct, frozen=True):
    """A write of a transaction. Without a value it deletes the key."""

    key: str
    value: bytes | None
    lease: int = 0


class EtcdClient:
    """A client of one etcd cluster."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float,
        ca_file: str = "",
        cert: tuple[str, str] | None = None,
    ) -> None:
        """``timeout_s`` applies to each endpoint. Raises ``ConfigError`` if the extra is not installed, if there is
        no usable endpoint, or if a certificate file cannot be read."""
        try:
            # Imported here so that a broker without failover starts without this package.
            import httpx
        except ImportError:
            raise ConfigError(
                "enableFailover=true needs the package httpx: pip install 'orbitmq[failover]'"
            ) from None
        # At INFO it logs every request, and there are several per second.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._failures: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL, OSError)
        self._endpoints = [_url(endpoint) for endpoint in endpoints]
        if not self._endpoints:
            raise ConfigError("etcdEndpoints names no endpoint")
        self._current = 0
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            timeout=timeout_s,
            verify=_verification(ca_file, cert),
            # Ignore the proxies named in the environment, which are meant for web access.
            trust_env=False,
            limits=httpx.Limits(max_connections=8, keepalive_expiry=60.0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    # -- leases ----------------------------------------------------------------------------------------

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Create a lease. Returns its id and its actual lifetime in seconds (etcd may grant more)."""
        answer = await self._call("lease/grant", {"TTL": str(ttl_s)})
        return _number(answer, "ID"), _number(answer, "TTL")

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease. Returns its remaining seconds, or 0 when it no longer exists."""
        answer = await self._call("lease/keepalive", {"ID": str(lease)})
        result = answer.get("result")
        if not isinstance(result, dict):
            raise EtcdError(f"lease/keepalive answers {answer}")
        return _number(result, "TTL")

    async def revoke(self, lease: int) -> None:
        """Revoke a lease and delete its keys."""
        await self._call("lease/revoke", {"ID": str(lease)})

    # -- keys ------------------------------------------------------------------------------------------

    async def under(self, prefix: str) -> list[KeyValue]:
        """Returns every key that starts with ``prefix``."""
        last = prefix.encode()
        end = last[:-1] + bytes([last[-1] + 1])
        answer = await self._call("kv/range", {"key": _text(last), "range_end": _text(end)})
        found = answer.get("kvs", [])
        if not isinstance(found, list):
            raise EtcdError("kv/range returned no list")
        return [_key_value(entry) for entry in found]

    async def put(self, key: str, value: bytes, lease: int = 0) -> None:
        """Write one key, regardless of its current value."""
        await self.transact((), (Put(key, value, lease),))

    async def transact(self, compares: Sequence[Compare], puts: Sequence[Put]) -> bool:
        """Apply all of ``puts`` if all of ``compares`` hold. Returns whether they were applied."""
        body = {
            "compare": [_condition(one) for one in compares],
            "success": [_operation(one) for one in puts],
        }
        return bool((await self._call("kv/txn", body)).get("succeeded", False))

    # -- calls -----------------------------------------------------------------------------------------

    async def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reason = ""
        content = msgspec.json.encode(body)
        for _ in self._endpoints:
            endpoint = self._endpoints[self._current]
            try:
                answer = await self._client.post(f"{endpoint}/v3/{path}", content=content)
                if answer.status_code == 200 and len(answer.content) <= _ANSWER_BYTES_MAX:
                    return _object(answer.content)
                reason = f"{endpoint}/v3/{path}: status {answer.status_code} {answer.text[:200].strip()}"
                if "requested lease not found" in answer.text:
                    break  # every endpoint would answer the same
            except self._failures as error:
                reason = f"{endpoint}/v3/{path}: {type(error).__name__} {error}"
            self._current = (self._current + 1) % len(self._endpoints)
        raise EtcdError(reason)


def _url(endpoint: str) -> str:
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"etcdEndpoints: {endpoint} is not an http or https URL")
    return url.rstrip("/")


def _verification(ca_file: str, cert: tuple[str, str] | None) -> Any:
    if not ca_file and cert is None:
        return True
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert is not None:
            context.load_cert_chain(*cert)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates for etcd cannot be read: {error}") from None
    return context


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "", validate=True)
    except binascii.Error:
        raise EtcdError("a key or value is not base64") from None


def _object(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EtcdError(f"the answer is not a JSON object: {error}") from None


def _number(answer: dict[str, Any], name: str) -> int:
    """Parses an int64, which the gateway encodes as a string and omits when it is 0."""
    try:
        return int(answer.get(name, 0))
    except (TypeError, ValueError):
        raise EtcdError(f"{name}={answer.get(name)!r} is not a number") from None


def _key_value(entry: object) -> KeyValue:
    if not isinstance(entry, dict):
        raise EtcdError("kv/range returned something that is not a key")
    try:
        key = _bytes(entry.get("key")).decode()
    except UnicodeDecodeError:
        raise EtcdError("a key is not UTF-8 text") from None
    return KeyValue(
        key,
        _bytes(entry.get("value", "")),
        _number(entry, "create_revision"),
        _number(entry, "mod_revision"),
        _number(entry, "lease"),
    )


def _condition(compare: Compare) -> dict[str, Any]:
    condition: dict[str, Any] = {"key": _text(compare.key.encode()), "result": "EQUAL"}
    if compare.created or compare.revision == 0:
        condition |= {"target": "CREATE", "create_revision": str(compare.revision)}
    else:
        condition |= {"target": "MOD", "mod_revision": str(compare.revision)}
    return condition


def _operation(put: Put) -> dict[str, Any]:
    key = _text(put.key.encode())
    if put.value is None:
        return {"request_delete_range": {"key": key}}
    return {"request_put": {"key": key, "value": _text(put.value), "lease": str(put.lease)}}
