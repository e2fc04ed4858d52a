"""The bodies of records in the revive topic: checkpoints and acknowledgements (Apache: PopCheckPoint, AckMsg).

They are the same JSON that an Apache broker writes, so either can resume where the other stopped. A checkpoint (tag
``ck``) has offsets relative to its start and a bit set of those already done. Acknowledgements contain one (``ack``)
or several (``bAck``) offsets of one checkpoint. The kernel writes them (``checkpoint_bodies``, ``ack_bodies``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from orbitmq.broker.pop.checkpoints import Checkpoint, CheckpointKey
from orbitmq.errors import BodyError

__all__ = [
    "ACK_TAG",
    "BATCH_ACK_TAG",
    "CHECKPOINT_TAG",
    "Acks",
    "decode_acks",
    "decode_checkpoint",
]

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
_COUNT_MAX: Final = 127
"""The count is a Java byte."""
T = TypeVar("T")


class Acks(NamedTuple):
    """Messages of one checkpoint that are done."""

    key: CheckpointKey
    offsets: Sequence[int]


class _CheckpointBody(msgspec.Struct):
    t: str
    c: str
    q: int
    so: int
    pt: int
    it: int
    n: int = 0
    bm: int = 0
    d: list[int] | None = None
    sp: bool = False


class _AckBody(msgspec.Struct):
    t: str
    c: str
    q: int
    so: int
    pt: int
    ao: int = -1
    aol: list[int] | None = None


def decode_checkpoint(body: bytes, revive_queue_id: int, revive_offset: int) -> Checkpoint:
    """Parse a ``ck`` body. Raises ``BodyError``."""
    found = _decode(body, _CheckpointBody)
    diffs = found.d
    if not diffs:
        # Brokers before 5.0.0 wrote only the count.
        diffs = list(range(max(0, min(found.n, _COUNT_MAX))))
    if len(diffs) > _COUNT_MAX or any(diff < 0 for diff in diffs):
        raise BodyError(f"a checkpoint of {len(diffs)} messages cannot be")
    offsets: Sequence[int] = [found.so + diff for diff in diffs]
    if offsets and list(offsets) == list(range(offsets[0], offsets[0] + len(offsets))):
        offsets = range(offsets[0], offsets[0] + len(offsets))
    bits = found.bm & (1 << len(offsets)) - 1
    return Checkpoint(
        found.t,
        found.c,
        found.q,
        found.so,
        found.pt,
        found.it,
        revive_queue_id,
        offsets,
        bits,
        bits,
        revive_offset,
        0,
        found.sp,
    )


def decode_acks(body: bytes) -> Acks:
    """Parse an ``ack`` or ``bAck`` body. Raises ``BodyError``."""
    found = _decode(body, _AckBody)
    offsets = found.aol if found.aol is not None else [found.ao]
    return Acks(CheckpointKey(found.t, found.c, found.q, found.so, found.pt), offsets)


def _decode(body: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BodyError(f"a record of the revive topic cannot be read: {error}") from None
