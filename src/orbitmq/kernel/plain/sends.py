"""Reads the sends of a socket as one value, and encodes the records of all sends of a turn and the responses to them.

A plain send only has to be stored: its header has the usual form, and it has a body, a queue, a unique key, and no
property that the broker acts on or sets itself. ``split_requests`` returns consecutive plain sends as one ``Sends``,
so that Python runs once per read. A server validates and stamps it, encodes it together with those of other
connections, and writes the responses. Any other send is a ``Frame``. A server reads it on its own and creates a
``Sends`` for the message to store (``sends_of``), so the log has a single write path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from orbitmq.codes import FrameFlag, KernelRequest, LanguageCode, Property, SerializeType, Version
from orbitmq.errors import RecordError
from orbitmq.kernel.layout import (
    BINARY_FIXED,
    FRAME_LENGTH,
    FRAME_PREFIX,
    HOST_V4_BYTES,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
)
from orbitmq.kernel.plain.frames import (
    Frame,
    SendFields,
    encode_binary_fields,
    pairs_of,
    split_into,
    stored_properties,
)
from orbitmq.kernel.plain.records import (
    ROLLED_BACK,
    Message,
    encode_record,
    encode_records,
    find_property,
    split_entries,
)

__all__ = [
    "EncodedSends",
    "Sends",
    "encode_send_answers",
    "encode_sends",
    "queues_of_sends",
    "sends_of",
    "split_requests",
]

_ONEWAY: Final = int(FrameFlag.ONEWAY)
_RESPONSE: Final = int(FrameFlag.RESPONSE)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_BATCH: Final = int(KernelRequest.SEND_BATCH_MESSAGE)
_PYTHON: Final = int(LanguageCode.PYTHON)
_IDEMPOTENT: Final = Property.IDEMPOTENT.encode()
_RETRY: Final = "%RETRY%"
_SPECIAL: Final = frozenset(
    (Property.MSG_REGION.value, Property.TRACE_ON.value, Property.CLUSTER.value, "_SYS_MSG_PRIORITY_")
)
"""Properties that the broker sets itself or acts on."""
_PAIRS_MAX: Final = 32
_UINT64: Final = 2**64 - 1

EncodedSends: TypeAlias = tuple[bytes, list[bytes], bytes, list[tuple[int, int, int]]]
"""The concatenated records; per queue its units; ``INDEX_KEY`` keys; per queue the number of messages, their size and
the number of sends."""


class _Send(msgspec.Struct):
    """One send. ``message`` is the record's content. The body of a batch contains all of its messages."""

    message: Message
    is_batch: bool
    form: int
    opaque: int
    flag: int
    waits: bool
    queue_id: int
    """Named in the response; the message may be stored elsewhere."""
    unique_key: bytes
    recall_handle: str = ""
    frame: Frame | None = None
    log_offsets: Sequence[int] = ()
    queue_offset: int = 0

    def messages(self, born_host: bytes, added: bytes) -> list[Message]:
        message = self.message
        if not self.is_batch:
            return [message._replace(born_host=born_host, properties=message.properties + added)]
        return [
            message._replace(born_host=born_host, body=body, properties=properties, flag=flag)
            for flag, body, properties in split_entries(message.body)
        ]

    def body_bytes(self) -> int:
        if not self.is_batch:
            return len(self.message.body)
        try:
            return sum(len(body) for _, body, _ in split_entries(self.message.body))
        except RecordError:
            return 0


class Sends:
    """The sends of one peer, in order. Encoding them also records where they are stored."""

    pull: None = None
    """Like a frame without a flag that is not a pull."""
    flag: int = 0

    def __init__(self, sends: Sequence[_Send] = (), born_host: bytes = b"", added: bytes = b"") -> None:
        self._sends = list(sends)
        self._born_host = born_host
        self._added = added

    def __len__(self) -> int:
        return len(self._sends)

    @property
    def code(self) -> int:
        """The request code of the first send; 0 if it has no frame."""
        frame = self._sends[0].frame if self._sends else None
        return 0 if frame is None else frame.code

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The distinct topics and queue ids, in the order of their first use."""
        return list(dict.fromkeys(send.message[:2] for send in self._sends))

    @property
    def size_bytes(self) -> int:
        """The total size of the requests' bodies."""
        return sum(len(send.message.body) for send in self._sends)

    @property
    def body_bytes_max(self) -> int:
        """The size of the largest message. The messages of a batch count together. 0 for a body that is not a
        batch."""
        return max((send.body_bytes() for send in self._sends), default=0)

    @property
    def request_count(self) -> int:
        """The number of sends. ``Frame`` has the same attribute."""
        return len(self._sends)

    @property
    def is_batch(self) -> bool:
        """Whether any of the sends is a batch."""
        return any(send.is_batch for send in self._sends)

    @property
    def waits(self) -> bool:
        """Whether any response must wait until the message is as durable as configured."""
        return any(send.waits and not send.flag & _ONEWAY for send in self._sends)

    def has_key(self, unique_key: bytes) -> bool:
        """Whether the response to any of the sends names this unique key."""
        return any(send.unique_key == unique_key for send in self._sends)

    def frames(self) -> list[Frame]:
        """Returns the requests one by one. Raises ``ValueError`` for sends created by ``sends_of``, which have no
        frames."""
        frames = [send.frame for send in self._sends if send.frame is not None]
        if len(frames) < len(self._sends):
            raise ValueError("a send without a frame")
        return frames

    def requests(self) -> list[tuple[int, int, int]]:
        """Returns header form, opaque and flag of each request, which an error response needs."""
        return [(send.form, send.opaque, send.flag) for send in self._sends]

    def part(self, start: int, end: int) -> Sends:
        """Returns the sends from ``start`` to ``end`` (exclusive), in order. Raises ``IndexError``."""
        if not 0 <= start <= end <= len(self._sends):
            raise IndexError("no such part")
        sends = [msgspec.structs.replace(send, log_offsets=()) for send in self._sends[start:end]]
        return Sends(sends, self._born_host, self._added)

    def stamp(self, born_host: bytes, added: bytes, body_bytes_max: int) -> bool:
        """Set the sender's address and the properties that the broker adds to single messages.

        Returns False if a message is too large to be stored, because of its body, the bodies of its batch, or its
        properties.
        """
        self._born_host, self._added = born_host, added
        return self.body_bytes_max <= body_bytes_max and all(
            send.is_batch or len(send.message.properties) + len(added) <= PROPERTIES_BYTES_MAX
            for send in self._sends
        )

    def messages(self) -> list[Message]:
        """Returns all messages as they are stored. The messages of a batch are returned one by one. Raises
        ``RecordError``."""
        return [message for send in self._sends for message in send.messages(self._born_host, self._added)]

    def stored_at(self, log_offsets: Sequence[int], queue_offset: int) -> None:
        """Record where a single send was stored, if ``encode_sends`` did not store it."""
        if len(self._sends) != 1 or not log_offsets:
            raise ValueError("one send and a place for it are needed")
        self._sends[0].log_offsets, self._sends[0].queue_offset = log_offsets, queue_offset


def split_requests(
    data: bytes, frame_bytes_max: int, sends_max: int
) -> tuple[list[Frame | Sends], int, int, str]:
    """Like ``split_frames``, but returns up to ``sends_max`` consecutive plain sends as one ``Sends``."""
    found: list[Frame | Sends] = []
    run: list[_Send] = []

    def close() -> None:
        if run:
            found.append(Sends(run))
            run.clear()

    def add(frame: Frame) -> None:
        send = _plain(frame) if sends_max else None
        if send is None:
            close()
            found.append(frame)
        else:
            run.append(send)
            if len(run) >= sends_max:
                close()

    end, needed, error = split_into(add, data, frame_bytes_max)
    close()
    return found, end, needed, error


def _plain(frame: Frame) -> _Send | None:
    """Returns the send in a request; None if it is not plain."""
    fields = frame.send
    if fields is None or not frame.body or fields.queue_id < 0 or fields.sys_flag & ROLLED_BACK:
        return None
    topic = fields.topic
    if not topic or topic.startswith(_RETRY) or "\0" in topic:
        return None
    is_batch = fields.batch or frame.code == _BATCH
    found = _of_batch(fields, frame.body) if is_batch else _of_single(fields)
    if found is None:
        return None
    properties, unique_key, waits = found
    message = Message(
        topic,
        fields.queue_id,
        frame.body,
        properties,
        fields.born_timestamp_ms,
        b"",
        0 if is_batch else fields.flag,
        fields.sys_flag,
        fields.reconsume_times,
    )
    request = (frame.serialize_type, frame.opaque, frame.flag)
    return _Send(message, is_batch, *request, waits, fields.queue_id, unique_key, frame=frame)


def _of_batch(fields: SendFields, body: bytes) -> tuple[bytes, bytes, bool] | None:
    properties = fields.properties
    more = find_property(properties, b"DELAY") or find_property(properties, _IDEMPOTENT)
    if more or len(fields.topic.encode()) > TOPIC_BYTES_MAX_V1:
        return None
    try:
        split_entries(body)
    except RecordError:
        return None
    unique_key = find_property(properties, b"UNIQ_KEY") or b""
    return properties, unique_key, find_property(properties, b"WAIT") != b"false"


def _of_single(fields: SendFields) -> tuple[bytes, bytes, bool] | None:
    """Returns the properties, the unique key, and whether the sender waits for the flush. Returns None for a message
    that needs more than storing, or whose property text must be rewritten."""
    raw = fields.properties
    if len(fields.topic.encode()) > TOPIC_BYTES_MAX:
        return None
    pairs = pairs_of(raw)
    if not _SPECIAL.isdisjoint(pairs) or len(pairs) > _PAIRS_MAX:
        return None
    try:
        properties, unique_key, waits, asks = stored_properties(raw, b"")
    except RecordError:
        return None
    if asks or not unique_key or properties not in (raw, raw + b"\x02"):
        return None
    return properties, unique_key, waits


def sends_of(
    message: tuple[str, int, bytes, bytes, int, bytes, int, int, int, int],
    is_batch: bool,
    request: tuple[int, int, int],
    waits: bool,
    queue_id: int,
    unique_key: bytes,
    recall_handle: str,
) -> Sends:
    """Returns one send that is stored as ``message``. The body of a batch contains its messages.

    ``request`` is the header form, opaque and flag of the request. The response contains ``queue_id``, ``unique_key``
    and ``recall_handle``.
    """
    stored = _checked(message, is_batch)
    send = _Send(stored, is_batch, *request, waits, queue_id, unique_key, recall_handle)
    return Sends([send], stored.born_host)


def _checked(
    message: tuple[str, int, bytes, bytes, int, bytes, int, int, int, int], is_batch: bool
) -> Message:
    """Returns a message whose fields have been checked for their types. Sizes are checked when it is encoded."""
    if len(message) != len(Message._fields):
        raise RecordError(f"the message cannot be stored: {len(message)} fields, not {len(Message._fields)}")
    try:
        stored = Message(*message)
        body = bytes(memoryview(stored.body))
        properties = b"" if is_batch else bytes(memoryview(stored.properties))
    except TypeError as error:
        raise RecordError(f"the message cannot be stored: {error}") from error
    stored = stored._replace(body=body, properties=properties, flag=0 if is_batch else stored.flag)
    encode_record(stored._replace(body=b"", properties=b""), 0, 0, 0, bytes(HOST_V4_BYTES))
    return stored


def queues_of_sends(turn: Sequence[Sends]) -> list[tuple[str, int]]:
    """Returns the distinct topics and queue ids of all sends, in the order of their first use."""
    return list(dict.fromkeys(queue for sends in turn for queue in sends.queues))


def encode_sends(
    turn: Sequence[Sends],
    next_offsets: Sequence[int],
    log_offset: int,
    store_ms: int,
    store_host: bytes,
    with_keys: int,
) -> EncodedSends:
    """Encode everything needed to store all sends from ``log_offset`` on.

    ``next_offsets`` has the next offset of each queue of ``queues_of_sends``. Raises ``RecordError`` like
    ``encode_records``, and for a body that is not a batch.
    """
    places = {queue: slot for slot, queue in enumerate(queues_of_sends(turn))}
    if len(places) != len(next_offsets):
        raise RecordError("as many offsets as queues are needed")
    all_sends = [(send, each) for each in turn for send in each._sends]
    split = [send.messages(each._born_host, each._added) for send, each in all_sends]
    flat = [message for messages in split for message in messages]
    slots = [places[message[:2]] for message in flat]
    records, log_offsets, queue_offsets, units, keys = encode_records(
        flat, slots, next_offsets, log_offset, store_ms, store_host, with_keys
    )
    counts = [(0, 0, 0)] * len(places)
    ends = [*log_offsets[1:], log_offset + len(records)]
    start = 0
    for (send, _), messages in zip(all_sends, split, strict=True):
        end = start + len(messages)
        send.log_offsets, send.queue_offset = log_offsets[start:end], queue_offsets[start]
        slot = slots[start]
        count, size, times = counts[slot]
        counts[slot] = (count + end - start, size + ends[end - 1] - log_offsets[start], times + 1)
        start = end
    return records, units, keys, counts


def encode_send_answers(
    turn: Sequence[Sends], code: int, waiting: bool | None, store_host: bytes, region: str, traced: bool
) -> bytes:
    """Returns the responses to all stored sends that request one, concatenated.

    ``waiting`` selects the sends that wait for the flush (True), those that do not (False), or both (None).
    """
    prefix = store_host.hex().upper()
    trace = "true" if traced else "false"
    frames = []
    for send in (send for sends in turn for send in sends._sends):
        if send.flag & _ONEWAY or waiting not in (None, send.waits):
            continue
        if not send.log_offsets:
            raise ValueError("a send that is not stored")
        texts = {
            "queueId": str(send.queue_id),
            "transactionId": send.unique_key.decode("utf-8", "replace"),
            "msgId": ",".join([f"{prefix}{log_offset & _UINT64:016X}" for log_offset in send.log_offsets]),
            "TRACE_ON": trace,
            "MSG_REGION": region,
            "queueOffset": str(send.queue_offset),
        }
        if send.recall_handle:
            texts["recallHandle"] = send.recall_handle
        header = _header(send.form, code, send.opaque, texts)
        frames.append(FRAME_PREFIX.pack(4 + len(header), send.form << 24 | len(header)) + header)
    return b"".join(frames)


_BINARY_ORDER: Final = (
    *("msgId", "queueId", "queueOffset", "transactionId", "TRACE_ON", "MSG_REGION"),
    "recallHandle",
)


def _header(form: int, code: int, opaque: int, texts: dict[str, str]) -> bytes:
    if form == _ROCKETMQ:
        ext_raw = encode_binary_fields({name: texts.get(name, "") for name in _BINARY_ORDER})
        fixed = BINARY_FIXED.pack(code, _PYTHON, Version.OURS, opaque, _RESPONSE, 0)
        return fixed + FRAME_LENGTH.pack(len(ext_raw)) + ext_raw
    return msgspec.json.encode(
        {
            "code": code,
            "extFields": texts,
            "flag": _RESPONSE,
            "language": "PYTHON",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": Version.OURS,
        }
    )
