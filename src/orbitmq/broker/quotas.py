"""Limits sends by client and by topic, in messages and bytes per second. Off by default; Apache has no such quotas.

A quota is a bucket that holds one second's worth and fills at its rate. A send passes if none of its buckets is
empty. It takes what it needs, below zero if necessary, so a message larger than a second's worth passes once, and
further sends are refused until the bucket has recovered. They are refused with Apache's flow-control code,
SYSTEM_BUSY (2). Official clients treat it as an error of this broker and try another one or report it to their
caller.

A client is identified by the id in its heartbeat, and by its host before the first one. Retry, dead-letter and system
topics are exempt because a refused send-back would only lead to another redelivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from orbitmq.broker.tables.clients import PeerInfo
from orbitmq.errors import ConfigError, SystemBusy
from orbitmq.kernel import SendFields
from orbitmq.kernel.layout import INT
from orbitmq.model.names import DLQ_PREFIX, RETRY_PREFIX
from orbitmq.runtime.options import option
from orbitmq.transport.connection import Connection
from orbitmq.transport.held_memory import HELD_BYTES_MAX

__all__ = ["LimitsConfig", "Quota", "Quotas", "parse_overrides"]

_BUCKETS_MAX: Final = 10_000
"""The maximum number of buckets in memory. The least recently used ones are evicted. A new bucket starts full."""
_RATE_MAX: Final = 10**12


class Quota(NamedTuple):
    """A limit per second. 0 means unlimited."""

    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The options for limits that Apache does not have."""

    client_messages: int = option(
        0,
        apache="quotaClientMessagesPerSecond",
        low=0,
        high=_RATE_MAX,
        reload=True,
        doc="Messages a second that one client id may send; 0: any number. Not an Apache key.",
    )
    client_bytes: int = option(
        0,
        apache="quotaClientBytesPerSecond",
        low=0,
        high=_RATE_MAX,
        reload=True,
        doc="Bytes of bodies a second that one client id may send; 0: any number. Not an Apache key.",
    )
    topic_messages: int = option(
        0,
        apache="quotaTopicMessagesPerSecond",
        low=0,
        high=_RATE_MAX,
        reload=True,
        doc="Messages a second that may be sent to one topic here; 0: any number. Not an Apache key.",
    )
    topic_bytes: int = option(
        0,
        apache="quotaTopicBytesPerSecond",
        low=0,
        high=_RATE_MAX,
        reload=True,
        doc="Bytes of bodies a second that may be sent to one topic here; 0: any number. Not an Apache key.",
    )
    overrides: str = option(
        "",
        apache="quotaOverrides",
        doc="Other quotas for some, as messages/bytes: topic:Orders=5000/0;client:batch@7=100/1048576. "
        "Not an Apache key.",
    )
    connection_memory_bytes: int = option(
        HELD_BYTES_MAX,
        apache="connectionMemoryMax",
        low=16 << 20,
        high=1 << 44,
        doc="Bytes of half frames, kept requests and unread answers of all connections. Not an Apache key.",
    )

    def __post_init__(self) -> None:
        parse_overrides(self.overrides)


def parse_overrides(text: str) -> dict[str, Quota]:
    """Parses ``topic:NAME=messages/bytes;client:ID=...``. Returns the quotas by ``topic:NAME`` and ``client:ID``.
    Raises ``ConfigError``."""
    found: dict[str, Quota] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, value = part.rpartition("=")
        messages, slash, size = value.partition("/")
        kind, _, who = name.partition(":")
        if not (separator and slash and who and kind in ("topic", "client")):
            raise ConfigError(f"quotaOverrides: {part!r} is not of the form topic:NAME=messages/bytes")
        if not (messages.isdecimal() and size.isdecimal()):
            raise ConfigError(f"quotaOverrides: {part!r} has no numbers on both sides of its '/'")
        found[name] = Quota(int(messages), int(size))
    return found


class _Bucket:
    """The remaining messages and bytes of one quota."""

    __slots__ = ("at", "bytes_left", "messages_left", "quota")

    def __init__(self, quota: Quota, now: float) -> None:
        self.quota = quota
        self.messages_left = float(quota.messages)
        self.bytes_left = float(quota.bytes)
        self.at = now

    def fill(self, now: float) -> None:
        quota, passed = self.quota, max(0.0, now - self.at)
        self.at = now
        self.messages_left = min(quota.messages, self.messages_left + passed * quota.messages)
        self.bytes_left = min(quota.bytes, self.bytes_left + passed * quota.bytes)

    def lacks(self) -> str:
        """Returns the name of the exhausted limit, or an empty string if the next send may pass."""
        if self.quota.messages and self.messages_left <= 0:
            return f"{self.quota.messages} messages/s"
        if self.quota.bytes and self.bytes_left <= 0:
            return f"{self.quota.bytes} bytes/s"
        return ""

    def take(self, messages: int, size_bytes: int) -> None:
        self.messages_left -= messages
        self.bytes_left -= size_bytes


class Quotas:
    """The buckets of a broker."""

    def __init__(self, config: LimitsConfig, monotonic: Callable[[], float]) -> None:
        self._config = config
        self._monotonic = monotonic
        self._buckets: dict[str, _Bucket] = {}
        self._overrides: Mapping[str, Quota] = {}
        self.refused_count = 0
        self.enabled = False
        """If False, callers may skip ``take``."""
        self.options_changed()

    def options_changed(self) -> None:
        """Apply changed options and reset all buckets."""
        config = self._config
        self._overrides = parse_overrides(config.overrides)
        self._client = Quota(config.client_messages, config.client_bytes)
        self._topic = Quota(config.topic_messages, config.topic_bytes)
        self._buckets.clear()
        self.enabled = any((*self._client, *self._topic)) or bool(self._overrides)

    def take(self, connection: Connection, fields: SendFields, body: bytes, *, is_system: bool) -> None:
        """Charge a send to its quotas. If one is exhausted, raises ``SystemBusy`` and charges nothing."""
        topic = fields.topic
        if is_system or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        now = self._monotonic()
        buckets: list[tuple[str, _Bucket]] = []
        for key, quota in (
            (f"client:{_client_of(connection)}", self._client),
            (f"topic:{topic}", self._topic),
        ):
            quota = self._overrides.get(key, quota)
            if quota.messages or quota.bytes:
                buckets.append((key, self._bucket(key, quota, now)))
        for key, bucket in buckets:
            lacking = bucket.lacks()
            if lacking:
                self.refused_count += 1
                raise SystemBusy(
                    f"[QUOTA]broker busy, start flow control for a while, {key} may send {lacking}"
                )
        count = _entry_count(body) if fields.batch else 1
        for _, bucket in buckets:
            bucket.take(count, len(body))

    def _bucket(self, key: str, quota: Quota, now: float) -> _Bucket:
        buckets = self._buckets
        bucket = buckets.pop(key, None)
        if bucket is None:
            if len(buckets) >= _BUCKETS_MAX:
                del buckets[next(iter(buckets))]
            bucket = _Bucket(quota, now)
        bucket.fill(now)
        buckets[key] = bucket  # moved to the end; the first is the least recently used
        return bucket


def _client_of(connection: Connection) -> str:
    info = connection.attachment
    if isinstance(info, PeerInfo) and len(info.client_ids) == 1:
        return next(iter(info.client_ids))
    return connection.remote[0]


def _entry_count(body: bytes) -> int:
    """Returns the number of messages in a batch. Each message begins with its size. A malformed batch is counted as
    far as it can be parsed, and is refused later."""
    count = position = 0
    while position + INT.size <= len(body):
        (size,) = INT.unpack_from(body, position)
        if size <= 0:
            break
        position += size
        count += 1
    return max(1, count)
