"""Reads the records of pull and pop answers. Damaged records are skipped, logged and counted; they never reach a
handler.

If only the body of a record does not match its CRC, that record alone is skipped, because the next one can still be
found. After a record with a wrong length or layout nothing else in the answer can be found, so the rest of the answer
is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from orbitmq.errors import RecordError
from orbitmq.kernel import body_crc
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import Record, decode_record, decode_records

__all__ = ["AnswerReader", "Records"]

logger = logging.getLogger(__name__)


class Records(NamedTuple):
    """The messages decoded from an answer."""

    whole: list[Record]
    damaged: Sequence[Record] = ()
    """Records with a wrong body CRC, already logged and counted."""
    fault: RecordError | None = None
    """Why the rest of the answer cannot be read."""


class AnswerReader:
    """Reads the answers of one consumer."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.skipped = 0
        """Damaged messages so far."""

    def read(self, queue: MessageQueue, body: bytes) -> Records:
        """Decode and decompress the records of an answer."""
        try:
            return Records(decode_records(body, decompress=True))  # hot path: the kernel compares all CRCs
        except RecordError:
            return self._salvage(queue, body)

    def _salvage(self, queue: MessageQueue, body: bytes) -> Records:
        whole: list[bytes] = []
        damaged: list[Record] = []
        fault: RecordError | None = None
        at = 0
        while at < len(body):
            try:
                record = decode_record(body, at, check_crc=False)
            except RecordError as error:
                fault = error
                break
            found = body_crc(record.body)
            if found == record.body_crc:
                whole.append(body[at : at + record.size])
            else:
                damaged.append(record)
                reason = f"body CRC is {found:#010x}; the record has {record.body_crc:#010x}"
                self.skip(queue, record.queue_id, record.queue_offset, reason)
            at += record.size
        return Records(decode_records(b"".join(whole), check_crc=False, decompress=True), damaged, fault)

    def skip(self, queue: MessageQueue, queue_id: int, offset: int, reason: object) -> None:
        """Log and count a message that is not delivered."""
        self.skipped += 1
        # One line per message: the offsets are all that is left to find it by.
        logger.warning(
            "damaged message skipped group=%s topic=%s broker=%s queue=%d offset=%d reason=%s",
            self._group,
            queue.topic,
            queue.broker_name,
            queue_id,
            offset,
            reason,
        )
