"""What is fuzzed byte by byte: a target takes one input, and only declared errors may come out of what it calls.

The inputs of a target have its format, so a fuzzer that sees which lines they reach (``tests/fuzz/guided.py``) finds
its own way into it. Files of a store are put into a small store, which is opened then: that must succeed, or fail
with ``CorruptionError`` or ``OSError``, and what can be read must be readable.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import _frame_corpus, _properties_corpus, _record_corpus
from tests.golden import data
from tests.unit.store.support import ROOT, config, message, open_store
from tests.unit.wire.declared import REQUEST_HEADERS
from tests.unit.wire.recorded import recorded_frames

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.replication.stream import (
    ReportReader,
    TransferReader,
    encode_report,
    encode_transfer_head,
)
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import SerializeType
from orbitmq.errors import (
    BodyError,
    ConfigError,
    CorruptionError,
    HeaderFieldError,
    InvalidParameter,
    OrbitError,
    RecordError,
    RemoteProtocolError,
)
from orbitmq.filter import parse
from orbitmq.record.codec import decode_records
from orbitmq.record.properties import decode_properties
from orbitmq.record.scan import scan
from orbitmq.runtime.options import parse_properties
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.tools.verify import verify
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.bodies import decode_registration
from orbitmq.wire.frame import Frame, FrameDecoder
from orbitmq.wire.header import decode_header

__all__ = ["BYTE_TARGETS", "ByteTarget", "mutated"]

CODES = sorted(REQUEST_HEADERS, key=int)


class ByteTarget(NamedTuple):
    """Something that reads bytes of one format."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


# Wire.
def _frames(raw: bytes) -> None:
    decoder = FrameDecoder(1 << 20)
    for frame in decoder.feed(raw):
        try:
            assert isinstance(frame.ext_fields, dict)
        except HeaderFieldError:
            pass


def _request(raw: bytes) -> None:
    """One byte for the code, one for the form, the rest is the extension fields: every request header there is."""
    if len(raw) < 2:
        return
    code = CODES[raw[0] % len(CODES)]
    form = SerializeType.ROCKETMQ if raw[1] & 1 else SerializeType.JSON
    frame = Frame(code=int(code), opaque=1, serialize_type=form, ext_raw=raw[2:])
    try:
        decode_header(REQUEST_HEADERS[code], frame)
    except HeaderFieldError:
        pass


@cache
def _request_seeds() -> list[bytes]:
    found: dict[tuple[int, int], bytes] = {}
    for recorded in recorded_frames():
        if not recorded.is_response and recorded.code in REQUEST_HEADERS:
            form = 1 if recorded.frame.serialize_type == SerializeType.ROCKETMQ else 0
            key = (CODES.index(recorded.code), form)
            found.setdefault(key, bytes([key[0] % 256, form]) + recorded.frame.ext_raw)
    return list(found.values())


def _registration(raw: bytes) -> None:
    for compressed in (False, True):
        try:
            decode_registration(raw, compressed=compressed, version=500)
        except BodyError:
            pass


def _replication(raw: bytes) -> None:
    transfers, reports = TransferReader(), ReportReader()
    feeds: tuple[Callable[[bytes], object], ...] = (lambda piece: list(transfers.feed(piece)), reports.feed)
    for feed in feeds:
        try:
            for at in range(0, len(raw), 7):
                feed(raw[at : at + 7])
        except RemoteProtocolError:
            pass


# Text.
def _sql(raw: bytes) -> None:
    try:
        parse(raw.decode("utf-8", "replace"))
    except (OrbitError, ValueError):
        pass


def _options(raw: bytes) -> None:
    try:
        parse_properties(raw.decode("latin-1"), "fuzz")
    except ConfigError:
        pass


# Records.
def _records(raw: bytes) -> None:
    for record in scan(raw, 0, len(raw), check_crc=False):
        decode_properties(record.properties)
    try:
        list(decode_records(raw, check_crc=False, decompress=True))
    except RecordError:
        pass


# Files of a store.
@cache
def _disk() -> FaultyFileSystem:
    """A store that was closed in order: two segments, queues over two files, an index."""
    fs = FaultyFileSystem()
    store = open_store(fs)
    for number in range(40):
        store.append(message(number, queue_id=number % 2))
    store.close()
    return fs


def _path(prefix: str, *, last: bool = False) -> str:
    found = sorted(path for path in _disk().paths() if path.startswith(f"{ROOT}/{prefix}"))
    return found[-1 if last else 0]


def _with_file(path: str, raw: bytes, *, killed: bool) -> None:
    """Open the store with ``raw`` over the beginning of a file, read what is there, check it, close it."""
    fs = _disk().kill()
    handle = fs.open(path, create=True)
    fs.pwrite(handle, raw, 0)
    fs.close(handle)
    if killed:
        fs.close(fs.open(f"{ROOT}/abort", create=True))
    try:
        verify(ROOT, config(), fs=fs)
        store = open_store(fs)
    except (CorruptionError, OSError):
        return
    for queue_id in (0, 1):
        offset = max(0, store.min_offset("TopicA", queue_id))
        for _ in range(50):
            if offset >= store.max_offset("TopicA", queue_id):
                break
            result = store.read("TopicA", queue_id, offset, 32)
            assert result.next_offset > offset
            offset = result.next_offset
    store.append(message(99))
    store.close()


def _file_target(prefix: str, *, killed: bool, last: bool = False) -> ByteTarget:
    def run(raw: bytes) -> None:
        path = _path(prefix, last=last)
        _with_file(path, raw[: len(_disk().content(path))], killed=killed)

    return ByteTarget(run, lambda: [bytes(_disk().content(_path(prefix, last=last)))])


def _abort(raw: bytes) -> None:
    _with_file(f"{ROOT}/abort", raw[:64], killed=True)


# Tables.
def _table(name: str, make: Callable[[SafeFile], Any]) -> ByteTarget:
    def run(raw: bytes) -> None:
        fs = FaultyFileSystem()
        handle = fs.open(f"/{name}", create=True)
        fs.pwrite(handle, raw, 0)
        fs.close(handle)
        try:
            make(SafeFile(fs, f"/{name}")).load()
        except (CorruptionError, InvalidParameter):
            pass

    def seeds() -> list[bytes]:
        found = [content for path, content in data.files("store-clean").items() if path.endswith(f"/{name}")]
        return found or [json.dumps({"dataVersion": {"counter": 1}}).encode()]

    return ByteTarget(run, seeds)


_CONFIG = BrokerConfig()
BYTE_TARGETS: dict[str, ByteTarget] = {
    "frames": ByteTarget(_frames, lambda: _frame_corpus()[:200]),
    "requests": ByteTarget(_request, _request_seeds),
    "registration": ByteTarget(_registration, lambda: [b'{"filterServerList":[]}']),
    "replication": ByteTarget(
        _replication, lambda: [encode_report(5) * 3, encode_transfer_head(7, 4) + b"abcd"]
    ),
    "sql": ByteTarget(
        _sql, lambda: [b"a > 5 AND b IN ('x','y') OR c IS NOT NULL", b"NOT (a BETWEEN 1 AND 2)"]
    ),
    "options": ByteTarget(_options, lambda: [b"brokerName=a\\\n b\n# c\n!d\nk\\u0041:v\n"]),
    "records": ByteTarget(_records, lambda: _record_corpus()[:40]),
    "properties": ByteTarget(lambda raw: _ignored(decode_properties(raw)), lambda: _properties_corpus()[:50]),
    "log": _file_target("commitlog/", killed=False),
    "log-killed": _file_target("commitlog/", killed=True, last=True),
    "queue": _file_target("consumequeue/", killed=False),
    "queue-killed": _file_target("consumequeue/", killed=True, last=True),
    "index": _file_target("index/", killed=True),
    "checkpoint": _file_target("checkpoint", killed=True),
    "abort": ByteTarget(_abort, lambda: [b"4711"]),
    "topics.json": _table(
        "topics.json", lambda file: TopicTable(_CONFIG, ManualClock(), file, events=BrokerEvents())
    ),
    "subscriptionGroup.json": _table(
        "subscriptionGroup.json", lambda file: GroupTable(_CONFIG, ManualClock(), file, events=BrokerEvents())
    ),
    "consumerOffset.json": _table(
        "consumerOffset.json", lambda file: ConsumerOffsets(_CONFIG, ManualClock(), file)
    ),
}


def _ignored(_value: object) -> None:
    return None


def mutated(raw: bytes, seed: int, others: list[bytes]) -> bytes:
    """The mutations that know JSON, numbers and lengths, for a fuzzer that has its own for bytes."""
    return mutate(random.Random(seed), raw, others or [raw])
