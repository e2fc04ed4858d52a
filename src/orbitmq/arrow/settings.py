"""Keyword arguments of ``read_topic`` and ``read_store``, and their translation to reader options."""

from __future__ import annotations

import functools
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from orbitmq.client.options import Credentials
from orbitmq.client.surroundings import keys_given, name_servers_given, tls_given
from orbitmq.errors import ConfigError
from orbitmq.model.names import unwrap_namespace, wrap_namespace
from orbitmq.runtime.machine import environment
from orbitmq.spark.options import Access, Offsets, SourceOptions, TlsFiles
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.store.options import StoreOptions
from orbitmq.transport.tls import verifying_context

__all__ = [
    "Bound",
    "StoreSettings",
    "TopicSettings",
    "bare_offsets",
    "checked_columns",
    "store_options",
    "topic_options",
]

Bound = str | int | datetime | Mapping[str, Any] | None
"""Where a read starts or stops: ``earliest``, ``latest`` or ``group``; a store time as ``datetime``, ISO 8601 text or
milliseconds since 1970; or offsets by topic, broker and queue."""

_WORDS: Final = ("earliest", "latest", "group")
_MS_MIN: Final = 100_000_000_000
"""In 1973. A smaller number was probably meant as an offset or as seconds."""
_TLS_VARIABLES: Final = (
    "ORBITMQ_TLS",
    "ORBITMQ_TLS_CA",
    "ORBITMQ_TLS_CERT",
    "ORBITMQ_TLS_KEY",
    "ORBITMQ_TLS_ANY_HOST",
)


class TopicSettings(TypedDict, total=False):
    """Keyword arguments of ``read_topic``. Servers, keys and TLS default to the ORBITMQ_* variables."""

    name_servers: str
    credentials: Credentials | None
    tls: ssl.SSLContext | bool | None
    namespace: str
    tags: str
    """Filter applied by the broker: ``A || B``."""
    sql: str
    """Filter applied by the broker: an SQL92 expression over the properties."""
    queues: Sequence[int] | Mapping[str, Sequence[int]]
    """Queues to read: numbers that apply to every broker, or numbers by broker."""
    group: str
    """The group whose offsets are used by ``start="group"``. Reading does not commit."""
    options: Mapping[str, str]
    """Further options of the format ``rocketmq``, such as ``failOnDataLoss`` or ``retryTimeoutMs``."""


class StoreSettings(TypedDict, total=False):
    """Keyword arguments of ``read_store``."""

    topic: str | Sequence[str]
    start: str | int | datetime
    """Store time: ``datetime``, ISO 8601 text or milliseconds since 1970."""
    stop: str | int | datetime
    """Exclusive store time, in the same forms."""
    broker: str
    """Value of the column ``broker``, which the log does not contain."""
    options: Mapping[str, str]
    """Further options of the format ``rocketmq-store``, such as ``failOnDataLoss`` or ``verifyCrc``."""


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the given columns, or all by default. Raises ``ConfigError`` for an unknown or repeated one."""
    if columns is None:
        return COLUMNS
    if isinstance(columns, str):
        raise ConfigError(f"columns is the text {columns!r}; a list of names is accepted")
    chosen = tuple(columns)
    for column in chosen:
        if column not in COLUMNS:
            raise ConfigError(f"messages have no column {column!r}; they have {', '.join(COLUMNS)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError("columns needs at least one name, and each name once")
    return chosen


def topic_options(
    topic: str | Sequence[str], start: Bound, stop: Bound, settings: TopicSettings
) -> SourceOptions:
    """Returns the options of the topic reader. Raises ``ConfigError`` that names the invalid argument."""
    unknown = sorted(settings.keys() - TopicSettings.__annotations__.keys())
    if unknown:
        raise TypeError(f"read_topic() got an unexpected keyword argument {unknown[0]!r}")
    namespace = settings.get("namespace", "")
    topics = [topic] if isinstance(topic, str) else list(topic)
    if not topics or not all(one.strip() for one in topics):
        raise ConfigError("read_topic needs the name of a topic, or several")
    topics = [wrap_namespace(namespace, one.strip()) for one in topics]
    texts = {"namesrvAddr": settings.get("name_servers") or name_servers_given()}
    if not texts["namesrvAddr"]:
        raise ConfigError("no name server address: give name_servers, or set ORBITMQ_NAMESRV")
    queues = settings.get("queues")
    if queues is None:
        texts["topic"] = ",".join(topics)
    else:
        texts["assign"] = json.dumps(dict.fromkeys(topics, _numbers(queues)))
    for name in ("tags", "sql", "group"):
        if value := settings.get(name):
            texts[name] = str(value)
    if "group" in texts:
        texts["group"] = wrap_namespace(namespace, texts["group"])
    texts |= _bound("start", start, namespace) | _bound("stop", stop, namespace)
    options = SourceOptions.parse(texts | dict(settings.get("options", {})), streaming=False)
    return replace(options, access=_access(options.access, settings))


def store_options(path: str | Sequence[str], settings: StoreSettings) -> StoreOptions:
    """Returns the options of the store reader. Raises ``ConfigError`` that names the invalid argument."""
    unknown = sorted(settings.keys() - StoreSettings.__annotations__.keys())
    if unknown:
        raise TypeError(f"read_store() got an unexpected keyword argument {unknown[0]!r}")
    texts = {"path": path} if isinstance(path, str) else {"paths": json.dumps([str(one) for one in path])}
    if topic := settings.get("topic"):
        texts["topic"] = topic if isinstance(topic, str) else ",".join(topic)
    for argument, name in (("start", "startingTimestamp"), ("stop", "endingTimestamp")):
        moment = settings.get(argument)
        if moment is not None:
            assert isinstance(moment, str | int | datetime), "checked by type"
            texts[name] = str(_milliseconds(argument, moment))
    if broker := settings.get("broker"):
        texts["broker"] = broker
    return StoreOptions.parse(texts | dict(settings.get("options", {})))


def _numbers(queues: Sequence[int] | Mapping[str, Sequence[int]]) -> list[int] | dict[str, list[int]]:
    if isinstance(queues, Mapping):
        return {broker: list(numbers) for broker, numbers in queues.items()}
    return list(queues)


# -- bounds --------------------------------------------------------------------------------------------


def _bound(argument: str, bound: Bound, namespace: str) -> dict[str, str]:
    """Returns the reader's option for ``start`` or ``stop``."""
    word = "starting" if argument == "start" else "ending"
    if bound is None:
        return {}
    if isinstance(bound, str) and bound.strip().lower() in _WORDS:
        if argument == "stop" and bound.strip().lower() != "latest":
            raise ConfigError(f"stop is {bound!r}; latest, a time or offsets are accepted")
        return {f"{word}Offsets": bound}
    if isinstance(bound, Mapping):
        nested = {wrap_namespace(namespace, topic): brokers for topic, brokers in bound.items()}
        return {f"{word}Offsets": json.dumps(nested)}
    return {f"{word}Timestamp": str(_milliseconds(argument, bound))}


def _milliseconds(argument: str, moment: str | int | datetime) -> int:
    """Returns a time as milliseconds since 1970. Times without a zone are UTC."""
    accepted = "a datetime, ISO 8601 text or milliseconds since 1970"
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment < _MS_MIN:
            raise ConfigError(
                f"{argument} is {moment}; {accepted} are accepted, and offsets are given by queue: "
                '{"topic": {"broker": {"0": 42}}}'
            )
        return moment
    try:
        parsed = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment).strip())
    except ValueError:
        raise ConfigError(f"{argument} is {moment!r}; {accepted} are accepted") from None
    return round((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def bare_offsets(offsets: Offsets, namespace: str) -> Offsets:
    """Returns the offsets under the topic names that the user gave, which have no namespace."""
    return {unwrap_namespace(topic, namespace): brokers for topic, brokers in offsets.items()}


# -- credentials and TLS -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _GivenTls(TlsFiles):
    """A TLS context that stays in this process. Spark's readers pass file paths to other processes instead."""

    given: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        assert self.given is not None, "set when it was created"
        return self.given


def _access(parsed: Access, settings: TopicSettings) -> Access:
    """Returns the connection settings. Keys and TLS come from the arguments if set there, otherwise from the reader's
    options, otherwise from the environment."""
    credentials = settings.get("credentials") or parsed.credentials
    if credentials is None and (keys := keys_given()):
        credentials = Credentials(*keys)
    tls = settings.get("tls")
    if tls is None and parsed.tls is not None:
        return replace(parsed, credentials=credentials)
    if tls is None:
        tls = _tls_of_environment(*(environment(name) for name in _TLS_VARIABLES))
    if tls is True:
        tls = _verifying()
    files = _GivenTls(given=tls) if isinstance(tls, ssl.SSLContext) else None
    return Access(parsed.name_servers, credentials, files)


@functools.lru_cache(8)
def _tls_of_environment(*_values: str) -> ssl.SSLContext | bool | None:
    """Returns the TLS setting of the environment. Cached, because pooled connections are keyed by their context."""
    return tls_given()


@functools.lru_cache(1)
def _verifying() -> ssl.SSLContext:
    return verifying_context()
