"""The topics of this broker (Apache: TopicConfigManager, file ``topics.json``).

Invariants
1. Configs are replaced, never changed in place. A reference thus stays consistent, and ``is`` tests whether it is
   still the current config.
2. Every change increments the data version, is saved, and emits ``topic_changed``, in this order. A failed save
   does not undo the change: it is logged, and the next ``persist`` retries.
3. Built-in topics are created at start if the file lacks them; the file overrides their defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.limits import Bound
from orbitmq.broker.tables.table_file import TableFile, TableSaves, differences
from orbitmq.codes import Perm
from orbitmq.model import names
from orbitmq.model.data_version import DataVersion
from orbitmq.model.topic import (
    PERM_READ_WRITE,
    QUEUE_NUMS_DEFAULT,
    TopicConfig,
    alter_attributes,
    attributes_without_effect,
    is_inherited,
)
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["TopicTable"]

logger = logging.getLogger(__name__)

_INHERIT: Final = int(Perm.INHERIT)
_SCHEDULE_QUEUES: Final = 18
_BENCHMARK_QUEUES: Final = 1024


class TopicTable:
    """The topic configs by name."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        file: SafeFile,
        events: BrokerEvents,
        tasks: TaskOwner | None = None,
    ) -> None:
        """Deleting a topic does not emit ``topic_changed``; the deletion is published with the next registration.
        ``tasks`` runs background saves; without it, every save is synchronous."""
        self._config = config
        self._clock = clock
        self._events = events
        events.elected.append(self._elected)
        events.options_changed.append(self._options_changed)
        self._file = TableFile(file, "topicConfigTable", TopicConfig)
        self.saves = TableSaves(
            "topics", lambda: self._file.content(self.data_version, self.configs), self._file.write, tasks
        )
        self.configs: dict[str, TopicConfig] = {topic.topic_name: topic for topic in _built_in_topics(config)}
        self.bound = Bound("topics", "maxTopics", lambda: len(self.configs), lambda: config.topics_max)
        self.system_topics: frozenset[str] = names.SYSTEM_TOPICS | self.configs.keys()
        """The topics that no request may change. Topics with the system prefix are not listed."""
        self.data_version = DataVersion(timestamp_ms=clock.now_ms())
        self._state_version = 0
        """With failover, the epoch in which this broker is master. It makes name servers ignore the previous master's
        table."""
        self.mapping_version = self.data_version
        """Version of the table of static topics, which is always empty here."""

    # -- views -----------------------------------------------------------------------------------------

    def find(self, topic: str) -> TopicConfig | None:
        return self.configs.get(topic)

    def is_system(self, topic: str) -> bool:
        """Whether a topic is a system topic. Topics named after this broker are system topics, too."""
        return topic in self.system_topics or names.is_system_topic(topic)

    def is_ordered(self, topic: str) -> bool:
        config = self.configs.get(topic)
        return config is not None and config.order

    def seen_outside(self, config: TopicConfig) -> TopicConfig:
        """Returns the config to publish to name servers, limited by the broker's own read and write permissions."""
        allowed = self._config.permission
        if allowed & PERM_READ_WRITE == PERM_READ_WRITE:
            return config
        return msgspec.structs.replace(config, perm=config.perm & allowed)

    # -- creation by use -------------------------------------------------------------------------------

    def create_in_send(
        self, topic: str, default_topic: str, client_queue_count: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Returns the topic. If it is missing, it is created from ``default_topic``; None is returned if that is not
        allowed.

        The topic is saved before returning, because its first message is acknowledged soon. Raises
        ``InvalidParameter`` if there are too many topics.
        """
        known = self.configs.get(topic)
        if known is not None:
            return known
        template = self.configs.get(default_topic)
        if template is None or not is_inherited(template.perm):
            logger.warning("topic not created topic=%s default_topic=%s", topic, default_topic)
            return None
        if default_topic == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topics:
            return None
        self.bound.check(f"topic {topic} is not created")
        queue_count = max(0, min(client_queue_count, template.write_queue_nums))
        return self._put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=template.perm & ~_INHERIT,
                topic_sys_flag=sys_flag,
                topic_filter_type=template.topic_filter_type,
            )
        )

    def create_in_send_back(
        self,
        topic: str,
        queue_count: int,
        perm: int,
        sys_flag: int = 0,
        *,
        order: bool | None = None,
        aside: bool = False,
    ) -> TopicConfig:
        """Returns a retry or dead letter topic, which is created if it is missing. ``order`` also corrects an
        existing topic.

        With ``aside`` it is saved in the background, which is enough if no message is stored in it yet. Raises
        ``InvalidParameter`` if there are too many topics.
        """
        known = self.configs.get(topic)
        if known is None:
            self.bound.check(f"topic {topic} is not created")
            queue_count = max(0, queue_count)
            return self._put(
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queue_count,
                    write_queue_nums=queue_count,
                    perm=perm,
                    topic_sys_flag=sys_flag,
                    order=bool(order),
                ),
                aside=aside,
            )
        if order is not None and order != known.order:
            return self._put(msgspec.structs.replace(known, order=order), aside=aside)
        return known

    def create_own(self, topic: str, queue_count: int, perm: int) -> TopicConfig:
        """Returns a topic in which the broker itself stores messages. If it is missing, it is created even above the
        limit, because the message has already been accepted. Pops that may need such a topic are refused earlier
        (``check_room_for``)."""
        known = self.configs.get(topic)
        if known is None:
            config = TopicConfig(
                topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm
            )
            return self._put(config)
        return known

    def check_room_for(self, topic: str) -> None:
        """Raise ``InvalidParameter`` if the topic is missing and there is no room to create it."""
        if topic not in self.configs:
            self.bound.check(f"topic {topic} could not be created")

    # -- changes by admins, masters and name servers ---------------------------------------------------

    def update(self, config: TopicConfig) -> None:
        """Create or replace one topic, without checking its attributes."""
        self._put(config)

    def apply(self, requests: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> None:
        """Create or replace topics, all or none. Their attributes are signed changes (``+name``, ``-name``).

        The change is on disk after ``saves.saved()``.

        Raises ``InvalidParameter`` if an attribute is not allowed or there are too many topics.
        """
        new = {wanted.topic_name for wanted, _ in requests if wanted.topic_name not in self.configs}
        if new:
            self.bound.check(f"topic {min(new)} is not created", len(new))
        altered: list[TopicConfig] = []
        for wanted, changes in requests:
            known = self.configs.get(wanted.topic_name)
            attributes = alter_attributes(
                known.attributes if known is not None else {}, changes, create=known is None
            )
            altered.append(msgspec.structs.replace(wanted, attributes=attributes))
        self._put_all(altered, aside=True)

    def delete(self, topic: str) -> bool:
        """Remove a topic's config. Returns False if there is none. The change is on disk after ``saves.saved()``."""
        if self.configs.pop(topic, None) is None:
            return False
        self._file.forget(topic)
        logger.info("topic deleted topic=%s", topic)
        self._bump()
        self.saves.aside()
        return True

    def touch(self) -> None:
        """Increment the version of an unchanged table, because name servers process a table only if its version is
        new."""
        self._bump()
        self.saves.now()

    def mark_ordered(self, topics: Iterable[str]) -> None:
        """Set the order flag of topics that a name server lists as ordered. Unknown topics are ignored."""
        unordered = [
            config for topic in topics if (config := self.configs.get(topic)) is not None and not config.order
        ]
        if not unordered:
            return
        for config in unordered:
            self.configs[config.topic_name] = msgspec.structs.replace(config, order=True)
            logger.info("topic marked as ordered topic=%s", config.topic_name)
        self._bump()
        self.saves.now()

    def replace_all(self, configs: Mapping[str, TopicConfig], data_version: DataVersion) -> None:
        """Replace this slave's table with its master's."""
        for topic in self.configs.keys() - configs.keys():
            self._file.forget(topic)
        self.configs.clear()
        self.configs.update(configs)
        self.data_version = data_version
        self.saves.aside()

    def _elected(self, epoch: int) -> None:
        """Publish the topics under the new epoch, by which name servers distinguish the new master from the old
        one."""
        self._state_version = epoch
        self.touch()

    def _options_changed(self, keys: frozenset[str]) -> None:
        if "brokerPermission" in keys:
            self.touch()

    # -- saving ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the file if it exists. Raises ``CorruptionError``."""
        loaded = self._file.load()
        if loaded is None:
            return
        built_in = dict(self.configs)
        # Updated in place because the hot path holds this dict, and in file order so that a rewrite changes nothing.
        self.configs.clear()
        self.configs.update(loaded.entries)
        for topic, config in built_in.items():
            self.configs.setdefault(topic, config)
        self.data_version = loaded.data_version
        for topic, config in self.configs.items():
            for attribute, reason in attributes_without_effect(config.attributes).items():
                logger.warning(
                    "attribute has no effect topic=%s attribute=%s reason=%s", topic, attribute, reason
                )

    def persist(self) -> None:
        """Save the table if the last attempt failed. Raises ``OSError``."""
        self.saves.persist()

    def _put(self, config: TopicConfig, *, aside: bool = False) -> TopicConfig:
        self._put_all([config], aside=aside)
        return config

    def _put_all(self, configs: Sequence[TopicConfig], *, aside: bool = False) -> None:
        for config in configs:
            known = self.configs.get(config.topic_name)
            self.configs[config.topic_name] = config
            before = TopicConfig(topic_name=config.topic_name) if known is None else known
            verb = "created" if known is None else "changed"
            logger.info("topic %s topic=%s%s", verb, config.topic_name, differences(before, config))
            self._bump()
        if aside:
            self.saves.aside()
        else:
            self.saves.now()
        for config in configs:
            self._events.topic_changed(config)

    def _bump(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms(), self._state_version)
        self._events.tables_changed()


def _built_in_topics(config: BrokerConfig) -> list[TopicConfig]:
    def topic(name: str, queues: int = 1, perm: int = PERM_READ_WRITE) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    own = PERM_READ_WRITE | _INHERIT
    found = [topic(names.SELF_TEST_TOPIC)]
    if config.auto_create_topics:
        found.append(topic(names.AUTO_CREATE_TOPIC, config.default_queue_count, own))
    found += (
        topic(names.BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        topic(config.cluster_name, QUEUE_NUMS_DEFAULT, own if config.cluster_topic_enabled else _INHERIT),
        topic(config.broker_name, 1, own if config.broker_topic_enabled else _INHERIT),
        topic(names.OFFSET_MOVED_TOPIC),
        topic(names.SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
    )
    if config.trace_topic_enabled:
        found.append(topic(config.trace_topic))
    found += (
        topic(names.reply_topic(config.cluster_name)),
        topic(f"{names.SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{config.cluster_name}", config.revive_queue_count),
        topic(f"{names.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{config.broker_name}", 1, _INHERIT),
        topic(names.HALF_TOPIC),
        topic(names.HALF_OP_TOPIC),
        topic(names.ROCKSDB_HALF_TOPIC),
        topic(names.ROCKSDB_HALF_OP_TOPIC),
    )
    if config.timer_wheel_enabled:
        found.append(topic(f"{names.SYSTEM_TOPIC_PREFIX}wheel_timer"))
    return found
