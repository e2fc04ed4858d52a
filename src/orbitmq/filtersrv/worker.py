"""The process of one filter class: ``python -I -m orbitmq.filtersrv.worker``, started by ``sandbox``.

It exchanges frames on standard input and output. A frame is a length of 4 bytes and that many bytes. The first one is
a JSON object with source, class name and limits, answered by an empty frame or the reason why the class cannot be
used. Batches of records follow, each answered by one byte per record: 1 if selected, 0 if not, 2 if the class raised.

Before it loads the class, the process limits itself: it cannot open files, sockets or child processes, its memory is
limited, and it dumps no core. That contains mistakes but does not stop an attacker, so nothing is loaded from the
network unless an operator allows it.
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fnmatch
import functools
import hashlib
import io
import itertools
import json
import math
import re
import resource
import struct
import sys
import zlib
from typing import Any, BinaryIO, Final, Protocol

from orbitmq.errors import RecordError
from orbitmq.record.codec import Record, decode_records

__all__ = ["FilterMessage", "main", "read_frame", "write_frame"]

# Modules that a class may import, loaded now because no file can be opened later.
AT_HAND: Final = (
    base64,
    collections,
    datetime,
    decimal,
    fnmatch,
    functools,
    hashlib,
    itertools,
    json,
    math,
    re,
    struct,
    zlib,
)

FRAME_BYTES_MAX: Final = 64 << 20
NOT_SELECTED, SELECTED, RAISED = 0, 1, 2


class FilterMessage:
    """A message as a filter class sees it."""

    __slots__ = ("_record", "properties")

    def __init__(self, record: Record) -> None:
        self._record = record
        self.properties = record.property_map()

    @property
    def topic(self) -> str:
        return self._record.topic

    @property
    def queue_id(self) -> int:
        return self._record.queue_id

    @property
    def queue_offset(self) -> int:
        return self._record.queue_offset

    @property
    def body(self) -> bytes:
        """The decompressed body."""
        return self._record.body

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        return self.properties.get("KEYS", "").split()

    @property
    def flag(self) -> int:
        return self._record.flag

    @property
    def born_timestamp_ms(self) -> int:
        return self._record.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        return self._record.store_timestamp_ms

    @property
    def reconsume_times(self) -> int:
        return self._record.reconsume_times


class MessageFilter(Protocol):
    """The interface of a filter class. It is created once, without arguments, and called for every message."""

    def match(self, message: FilterMessage) -> bool: ...


def read_frame(stream: BinaryIO) -> bytes | None:
    """Returns the content of the next frame, or None at the end of the stream and for a frame that is too long or
    incomplete."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    if size > FRAME_BYTES_MAX:
        return None
    data = stream.read(size)
    return data if len(data) == size else None


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def restrict(memory_bytes: int) -> None:
    """Limit the memory of this process and forbid core dumps, file writes, child processes and new descriptors."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def load(source: str, class_name: str) -> MessageFilter:
    """Create the filter that the source defines. Raises ``ValueError`` if there is none, and whatever the source
    raises."""
    module: dict[str, Any] = {"__name__": "filter_class"}
    exec(compile(source, f"<{class_name}>", "exec"), module)
    found = module.get(class_name.rpartition(".")[2])
    if not isinstance(found, type):
        raise ValueError(f"the source defines no class {class_name.rpartition('.')[2]}")
    made = found()
    if not callable(getattr(made, "match", None)):
        raise ValueError(f"class {class_name} has no method match(message)")
    return made  # type: ignore[no-any-return]  # checked by hand: a class from outside has no type


def judge(message_filter: MessageFilter, records: bytes) -> bytes:
    """Returns one byte per record: selected, not selected, or the class raised."""
    answers = bytearray()
    for record in decode_records(records, decompress=True):
        try:
            answers.append(SELECTED if message_filter.match(FilterMessage(record)) else NOT_SELECTED)
        except Exception:  # noqa: BLE001  anything at all may come out of a class from outside
            answers.append(RAISED)
    return bytes(answers)


def main() -> int:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # Output of the class must not get between the frames.
    sys.stdout = sys.stderr = io.StringIO()
    order = read_frame(stdin)
    if order is None:
        return 1
    wanted = json.loads(order)
    restrict(wanted["memory_bytes"])
    try:
        message_filter = load(wanted["source"], wanted["class_name"])
    except BaseException as error:  # noqa: BLE001  also SystemExit of a module that calls exit()
        write_frame(stdout, f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace"))
        return 1
    write_frame(stdout, b"")
    while (batch := read_frame(stdin)) is not None:
        try:
            answers = judge(message_filter, batch)
        except RecordError:
            return 1
        write_frame(stdout, answers)
        sys.stdout = sys.stderr = io.StringIO()
    return 0


if __name__ == "__main__":
    sys.exit(main())
