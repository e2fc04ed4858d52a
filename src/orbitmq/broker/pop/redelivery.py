"""Redelivers messages that were not acknowledged in time (Apache: the writing half of PopReviveService).

A message is stored in the pop retry topic of its topic and group, with its attempt count incremented, in one append
with the record that ends its checkpoint. If the group was switched to pulling, it goes to the retry topic for pulls;
Apache would leave it in a topic that is not read until the group pops again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.pop.checkpoint_log import CheckpointLog
from orbitmq.broker.pop.checkpoints import Checkpoint
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import Property
from orbitmq.errors import RecordError
from orbitmq.model.names import RETRY_PREFIX, pop_retry_topic, retry_topic
from orbitmq.model.topic import PERM_READ_WRITE
from orbitmq.record.codec import Record, decode_record, decode_records
from orbitmq.record.properties import find_property, set_property
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError, StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage, ReadStatus

__all__ = ["Redelivery"]

logger = logging.getLogger(__name__)

_DUE_PORTION: Final = 32
_FIRST_POP_TIME: Final = Property.FIRST_POP_TIME.encode()
_ORIGIN_GROUP: Final = Property.ORIGIN_GROUP.encode()
_RETRY_TOPIC: Final = Property.RETRY_TOPIC.encode()


@dataclass(kw_only=True, eq=False)
class Redelivery:
    """Ends due checkpoints by redelivering their messages."""

    config: BrokerConfig
    store: MessageStore
    store_host: bytes
    puts: WritePath
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    log: CheckpointLog
    clock: Clock
    is_pulled: Callable[[str, str], bool]
    """Whether a group was switched to pulling a topic, so that its consumers do not read pop retry topics."""

    def __post_init__(self) -> None:
        self.count = 0
        """Number of messages redelivered since the start."""

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """Returns the pop retry topics of a group and topic, the one in use first. They may not exist."""
        if topic.startswith(RETRY_PREFIX):
            return []
        version_2 = self.config.retry_topic_v2
        names = [pop_retry_topic(topic, group, version_2=version_2)]
        if self.config.reads_pop_retry_v1:
            names.append(pop_retry_topic(topic, group, version_2=not version_2))
        return names

    def redeliver_due(self) -> bool:
        """Redeliver a batch of due messages. Returns True if more may be due."""
        table = self.log.table
        due = table.take_due(self.clock.now_ms(), _DUE_PORTION)
        for place, checkpoint in enumerate(due):
            try:
                self._redeliver(checkpoint)
            except StoreUnavailable as error:
                logger.warning("redelivery waits for the store reason=%s", error.remark)
                late_ms = self.clock.now_ms() + self.config.pop_revive_interval_ms
                for one in due[place:]:
                    table.postpone(one, late_ms - one.due_ms)
                return False
        return len(due) == _DUE_PORTION

    def _redeliver(self, checkpoint: Checkpoint) -> None:
        messages: list[NewMessage] = []
        if checkpoint.topic in self.topics.configs and checkpoint.group in self.groups.configs:
            for queue_offset in checkpoint.open_offsets():
                message = self._retry_of(checkpoint, queue_offset)
                if message is not None:
                    messages.append(message)
        try:
            self.log.put_and_finish(messages, checkpoint)
        except StoreUnavailable:
            raise
        except StoreError:
            self._redeliver_one_by_one(messages, checkpoint)
        self.count += len(messages)

    def _redeliver_one_by_one(self, messages: list[NewMessage], checkpoint: Checkpoint) -> None:
        """Redeliver the messages one by one. Used when the store permanently rejects one of them because a limit was
        lowered."""
        for message in list(messages):
            try:
                self.puts.deliver((message,))
            except StoreUnavailable:
                raise
            except StoreError as error:
                messages.remove(message)
                logger.error(
                    "message cannot be redelivered topic=%s group=%s reason=%s",
                    checkpoint.topic,
                    checkpoint.group,
                    error.remark,
                )
        self.log.put_and_finish((), checkpoint)

    def _retry_of(self, checkpoint: Checkpoint, queue_offset: int) -> NewMessage | None:
        """Returns the copy of a message to store for redelivery, or None if the message no longer exists or is
        damaged."""
        topic, group = checkpoint.topic, checkpoint.group
        log_offset = self.store.log_offset_at(topic, checkpoint.queue_id, queue_offset)
        raw = None if log_offset < 0 else self.store.record_at(log_offset)
        if raw is None:
            logger.warning(
                "message cannot be redelivered, it was deleted topic=%s queue_id=%d offset=%d",
                topic,
                checkpoint.queue_id,
                queue_offset,
            )
            return None
        try:
            record = decode_record(raw)
        except RecordError as error:
            logger.error(
                "message cannot be redelivered topic=%s offset=%d reason=%s", topic, queue_offset, error
            )
            return None
        properties = record.properties
        if find_property(properties, _FIRST_POP_TIME) is None:
            properties = set_property(properties, _FIRST_POP_TIME, b"%d" % checkpoint.pop_time_ms)
        record.properties = set_property(properties, _ORIGIN_GROUP, group.encode())
        record.reconsume_times += 0 if checkpoint.suspended else 1
        if self.is_pulled(_origin(topic, group), group):
            return self._pulled_retry(record, _origin(topic, group), group)
        name, queue_id = self._retry_place(topic, group, checkpoint.queue_id)
        return self._stored_again(record, name, queue_id)

    def _stored_again(self, record: Record, topic: str, queue_id: int) -> NewMessage:
        return NewMessage(
            topic,
            queue_id,
            record.body,
            record.properties,
            record.born_timestamp_ms,
            self.store_host,
            record.flag,
            record.sys_flag,
            record.reconsume_times,
        )

    def _pulled_retry(self, record: Record, origin: str, group: str) -> NewMessage:
        """Returns a copy for the retry topic that pulling consumers read. Apache leaves it in a topic that they do
        not read."""
        record.properties = set_property(record.properties, _RETRY_TOPIC, origin.encode())
        name = retry_topic(group)
        count = max(1, self.groups.configs[group].retry_queue_nums)
        self.topics.create_own(name, count, PERM_READ_WRITE)
        return self._stored_again(record, name, 0)

    def move_retries(self, topic: str, group: str) -> int:
        """Move the messages in a group's pop retry topics to the retry topic for pulls, after the group was switched
        to pulling. Returns the number of messages moved. Raises ``StoreError``."""
        moved = 0
        if group not in self.groups.configs:
            return moved
        for name in self.retry_topics(topic, group):
            config = self.topics.configs.get(name)
            for queue_id in range(config.read_queue_nums) if config is not None else ():
                moved += self._move_queue(name, queue_id, topic, group)
        if moved:
            logger.info("retries moved topic=%s group=%s count=%d", topic, group, moved)
        return moved

    def _move_queue(self, name: str, queue_id: int, topic: str, group: str) -> int:
        moved = 0
        while True:
            start = max(self.offsets.query(group, name, queue_id), self.store.min_offset(name, queue_id), 0)
            result = self.store.read(name, queue_id, start, _DUE_PORTION)
            if result.status is not ReadStatus.FOUND:
                return moved
            records = decode_records(b"".join(result.slices))
            self.puts.deliver([self._pulled_retry(record, topic, group) for record in records])
            self.offsets.commit("pop", group, name, queue_id, result.next_offset, own=True)
            moved += len(records)

    def _retry_place(self, topic: str, group: str, queue_id: int) -> tuple[str, int]:
        if topic.startswith(RETRY_PREFIX):
            return topic, queue_id
        name = pop_retry_topic(topic, group, version_2=self.config.retry_topic_v2)
        count = 1
        if self.config.pop_separate_retry_queues:
            count = max(1, self.topics.configs[topic].read_queue_nums)
        config = self.topics.create_own(name, count, PERM_READ_WRITE)
        return name, queue_id if queue_id < config.read_queue_nums and count > 1 else 0


def _origin(topic: str, group: str) -> str:
    """Returns the topic that a pop retry topic belongs to; any other topic is returned unchanged."""
    for mark in "_+":
        prefix = f"{RETRY_PREFIX}{group}{mark}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic
