"""The subscription groups of this broker (Apache: SubscriptionGroupManager, file ``subscriptionGroup.json``).

Configs are replaced, never changed in place. Every change increments the data version, and is on disk after
``saves.saved()`` (see ``topics``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.limits import Bound
from orbitmq.broker.tables.table_file import TableFile, TableSaves, differences
from orbitmq.errors import InvalidParameter
from orbitmq.model import names
from orbitmq.model.data_version import DataVersion
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.topic import (
    NO_LITE_TOPICS,
    Attribute,
    alter_attributes,
    attributes_without_effect,
)
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["ForbiddenTable", "GroupTable"]

logger = logging.getLogger(__name__)

_BOOLEANS: Final = frozenset({"true", "false"})
BUILT_IN_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    names.TRANSACTION_GROUP,
)
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(low=0, high=100),
    "lite.bind.topic": Attribute(refused=NO_LITE_TOPICS),
    "lite.sub.model": Attribute(values=frozenset({"Shared", "Exclusive"}), refused=NO_LITE_TOPICS),
    "lite.sub.reset.offset.exclusive": Attribute(values=_BOOLEANS, refused=NO_LITE_TOPICS),
    "lite.sub.reset.offset.unsubscribe": Attribute(values=_BOOLEANS, refused=NO_LITE_TOPICS),
    "lite.sub.client.quota": Attribute(low=-1, refused=NO_LITE_TOPICS),
    "lite.sub.client.max.event.cnt": Attribute(low=10, refused=NO_LITE_TOPICS),
    "lite.sub.wildcard": Attribute(refused=NO_LITE_TOPICS),
}
"""The group attributes of Apache 5.5.0. Pops of PRIORITY topics use the first one."""
_CONFIG_BYTES_MAX: Final = 1536
"""The size limit of a config as compact JSON, which keeps it below 2 KiB in the file. Without attributes, a config
has about 400 bytes."""
_READ_BIT: Final = 1 << 2
_FORBIDDEN_MEMBER: Final = "forbiddenTable"

ForbiddenTable = dict[str, dict[str, int]]
"""Maps group and topic to the bits of the forbidden operations."""


class GroupTable:
    """The group configs by name, and the topics that groups must not read."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        file: SafeFile,
        events: BrokerEvents,
        tasks: TaskOwner | None = None,
    ) -> None:
        """``tasks`` runs background saves. Without it, every save is synchronous."""
        self._config = config
        self._clock = clock
        self._events = events
        self._file = TableFile(file, "subscriptionGroupTable", SubscriptionGroupConfig)
        self._others: dict[str, Any] = {}
        self.saves = TableSaves("groups", self._content, self._file.write, tasks)
        self.configs: dict[str, SubscriptionGroupConfig] = {
            group: SubscriptionGroupConfig(group_name=group) for group in BUILT_IN_GROUPS
        }
        self.bound = Bound("groups", "maxGroups", lambda: len(self.configs), lambda: config.groups_max)
        self.forbidden_table: ForbiddenTable = {}
        self._forbidden_count = 0
        self.forbidden_bound = Bound(
            "forbidden topics of groups",
            "maxGroups",
            lambda: self._forbidden_count,
            lambda: config.groups_max,
        )
        self.data_version = DataVersion(timestamp_ms=clock.now_ms())

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Returns the config of a group, or None. An unknown group is created if auto-creation is enabled and its
        name is valid. Raises ``InvalidParameter`` if there are too many groups."""
        known = self.configs.get(group)
        if known is not None:
            return known
        if not self._config.auto_create_groups and not (
            names.is_system_group(group) and self._config.create_system_groups
        ):
            return None
        try:
            names.check_group(group)
        except InvalidParameter:
            return None
        self.bound.check(f"group {group} is not created")
        created = SubscriptionGroupConfig(group_name=group)
        # If it is lost, the next heartbeat recreates it, so no request waits for the disk.
        self._put_all([created])
        return created

    def forbidden(self, group: str, topic: str) -> bool:
        """Whether the group must not read the topic."""
        return (
            bool(self.forbidden_table) and self.forbidden_table.get(group, {}).get(topic, 0) & _READ_BIT != 0
        )

    # -- changes ---------------------------------------------------------------------------------------

    def update(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace one group, without checking its attributes."""
        self._put_all([config])

    def apply(self, requests: Sequence[SubscriptionGroupConfig]) -> None:
        """Create or replace groups, all or none. Their ``attributes`` are signed changes (``+name``, ``-name``).

        Raises ``InvalidParameter`` if an attribute is not allowed, a config is too large, or there are too many
        groups.
        """
        new = {wanted.group_name for wanted in requests if wanted.group_name not in self.configs}
        if new:
            self.bound.check(f"group {min(new)} is not created", len(new))
        altered: list[SubscriptionGroupConfig] = []
        for wanted in requests:
            known = self.configs.get(wanted.group_name)
            attributes = alter_attributes(
                known.attributes if known is not None else {},
                wanted.attributes,
                create=known is None,
                known=GROUP_ATTRIBUTES,
            )
            config = msgspec.structs.replace(wanted, attributes=attributes)
            size = len(msgspec.json.encode(config))
            if size > _CONFIG_BYTES_MAX:
                raise InvalidParameter(
                    f"the config of group {config.group_name} is {size:,} bytes; the limit is {_CONFIG_BYTES_MAX:,}"
                )
            altered.append(config)
        self._put_all(altered)

    def delete(self, group: str) -> bool:
        """Remove a group. Returns False if it does not exist."""
        forbidden = self.forbidden_table.pop(group, None)
        self._forbidden_count -= len(forbidden or ())
        known = self.configs.pop(group, None)
        if known is None and forbidden is None:
            return False
        self._file.forget(group)
        logger.info("group deleted group=%s", group)
        self._bump()
        self.saves.aside()
        return known is not None

    def disable_consume(self, group: str) -> None:
        """Stop a group from consuming, until an admin allows it again."""
        known = self.configs.get(group)
        if known is not None and known.consume_enable:
            self.update(msgspec.structs.replace(known, consume_enable=False))

    def forbid_reading(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Forbid or allow a group to read a topic. Raises ``InvalidParameter`` if there are too many entries."""
        topics = self.forbidden_table.get(group, {})
        before = topics.get(topic, 0)
        after = before | _READ_BIT if forbidden else before & ~_READ_BIT
        if after > 0 and not before:
            self.forbidden_bound.check(f"topic {topic} is not forbidden for group {group}")
            self._forbidden_count += 1
        if after > 0:
            self.forbidden_table.setdefault(group, topics)[topic] = after
        elif topics.pop(topic, None) is not None:
            self._forbidden_count -= 1
            if not topics:
                del self.forbidden_table[group]
        if after != before:
            logger.info("group %s reading group=%s topic=%s", "stopped" if forbidden else "let", group, topic)
            self._bump()
            self.saves.aside()

    def replace_all(
        self,
        configs: Mapping[str, SubscriptionGroupConfig],
        forbidden_table: ForbiddenTable,
        data_version: DataVersion,
    ) -> None:
        """Replace this slave's table with its master's."""
        for group in self.configs.keys() - configs.keys():
            self._file.forget(group)
        self.configs.clear()
        self.configs.update(configs)
        self._take_forbidden(forbidden_table)
        self.data_version = data_version
        self.saves.aside()

    # -- saving ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the file if it exists. Raises ``CorruptionError``."""
        loaded = self._file.load()
        if loaded is None:
            return
        built_in = dict(self.configs)
        self.configs.clear()
        self.configs.update(loaded.entries)
        for group, config in built_in.items():
            self.configs.setdefault(group, config)
        self._take_forbidden(_forbidden(loaded.others.pop(_FORBIDDEN_MEMBER, None)))
        self._others = loaded.others
        self.data_version = loaded.data_version
        for group, config in self.configs.items():
            for attribute, reason in attributes_without_effect(config.attributes, GROUP_ATTRIBUTES).items():
                logger.warning(
                    "attribute has no effect group=%s attribute=%s reason=%s", group, attribute, reason
                )

    def persist(self) -> None:
        """Save the table if the last attempt failed. Raises ``OSError``."""
        self.saves.persist()

    def _take_forbidden(self, table: ForbiddenTable) -> None:
        self.forbidden_table = table
        self._forbidden_count = sum(map(len, table.values()))

    def _content(self) -> bytes:
        others = {**self._others, _FORBIDDEN_MEMBER: self.forbidden_table}
        return self._file.content(self.data_version, self.configs, others)

    def _put_all(self, configs: Sequence[SubscriptionGroupConfig]) -> None:
        for config in configs:
            known = self.configs.get(config.group_name)
            self.configs[config.group_name] = config
            before = SubscriptionGroupConfig(group_name=config.group_name) if known is None else known
            verb = "created" if known is None else "changed"
            logger.info("group %s group=%s%s", verb, config.group_name, differences(before, config))
            self._bump()
        self.saves.aside()

    def _bump(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self._events.tables_changed()


def _forbidden(value: Any) -> ForbiddenTable:
    try:
        return msgspec.convert(value or {}, ForbiddenTable, strict=False)
    except msgspec.ValidationError as error:
        logger.warning("forbidden table ignored error=%s", error)
        return {}
