"""Copies the state that is not in the log from the master to a slave (Apache: SlaveSynchronize,
handleSlaveSynchronize).

The first round runs 3 s after a broker becomes a slave, then every 10 s. A round copies, in this order: topics,
consumer offsets, delay cursors, groups, the 5.x additions (message request modes of groups, timer metrics, timer
checkpoint), and users and policies. This broker does not use the timer metrics; it stores them unchanged in the file
that an Apache broker on this store, or our slave, reads. Topics and groups are also copied as soon as the slave
connects to the master and, in a failover group, when the master reports a change, because a promoted slave cannot
learn of a topic without messages in any other way. Topics and groups are replaced when their data version differs.
Consumer offsets are merged over our own. The delay cursors are taken as they are, so that a promoted slave resumes
delivery where its master was. A part that fails is logged, and the next one is tried.

Consumer offsets and delay cursors are held back until our log has reached the master's log end at the time of its
answer, because they use a different connection from the log. A slave promoted with positions ahead of its log would
skip messages: the ones whose delivery or POP checkpoint it never received, and new ones that are stored in place of
lost ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from orbitmq.auth.infos import REPLICA, parse_acl, parse_user
from orbitmq.auth.table import AuthTable
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.schedule import Schedule
from orbitmq.broker.delivery.timers import Timers
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError, RequestCodeNotSupported, error_for_code
from orbitmq.model.data_version import DataVersion
from orbitmq.model.names import DLQ_PREFIX, RETRY_PREFIX
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import RpcClient
from orbitmq.wire import bodies, javajson
from orbitmq.wire.bodies.auth import AclInfo, UserInfo

__all__ = ["COPIED", "CopiedTable", "KeptTable", "MetadataSync", "SyncedTables", "copied_text"]

logger = logging.getLogger(__name__)

COPIED: Final = "orbitmqCopied"
"""Field of EXCHANGE_BROKER_HA_INFO in which a failover group's member reports the topics and groups it has."""
_NEWS_RETRY_S: Final = 0.5
_FIRST_S: Final = 3.0
_TIMEOUT_S: Final = 3.0
_LIST_TIMEOUT_S: Final = 30.0
_BYTES_MAX: Final = 256 << 20
_FOLLOW_S: Final = 0.1
_FOLLOW_TRIES: Final = 20
"""How often a round checks whether the log has caught up. If it has not by then, the next round tries again."""


def copied_text(member: int, topics: DataVersion, groups: DataVersion) -> str:
    """Returns the value of ``COPIED``: the member and the versions of the topics and groups it has copied."""
    versions = (f"{one.state_version}.{one.timestamp_ms}.{one.counter}" for one in (topics, groups))
    return f"{member}:{':'.join(versions)}"


class CopiedTable(Protocol):
    """A table that is replaced by a master's answer."""

    def take(self, content: bytes) -> None:
        """Store a master's answer. Raises ``BodyError``, ``OSError``."""


class KeptTable:
    """A table of an Apache master that this broker only stores and passes on: its file, and the answer to requests
    for it."""

    def __init__(self, file: SafeFile, kind: type[bodies.Body]) -> None:
        self._file = file
        self._kind = kind
        self._content = b""

    def load(self) -> None:
        """Read the file, if there is one. Raises ``CorruptionError``."""
        self._content = self._file.load(self._checked) or b""

    def take(self, content: bytes) -> None:
        """Store a master's answer. Raises ``BodyError``, ``OSError``."""
        if content and content != self._content:
            self._file.save(self._checked(content))
            self._content = content

    def encode(self) -> bytes:
        return self._content or self._kind().encode()

    def _checked(self, content: bytes) -> bytes:
        javajson.decode(content, self._kind, bytes_max=_BYTES_MAX)
        return content


@dataclass(frozen=True, slots=True)
class SyncedTables:
    """The tables of a slave that are copied from its master."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    schedule: Schedule
    timers: Timers
    users: AuthTable | None = None
    """Users and policies. ``None`` leaves our own unchanged, like an Apache slave."""
    kept: Mapping[int, CopiedTable] = field(default_factory=dict)
    """Other tables, by the code of the request that returns them."""


class MetadataSync:
    """Copies tables while this broker is a slave."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        tables: SyncedTables,
        rpc: RpcClient,
        store: MessageStore,
        events: BrokerEvents,
    ) -> None:
        self._config = config
        self._tables = tables
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._groups = tables.groups
        self._rpc = rpc
        self._store = store
        self._held: dict[int, tuple[bytes, int]] = {}
        """Positions held back and the log end they wait for, by the code of the request that returned them."""
        self._tasks: TaskOwner | None = None
        self._delay_offsets = b""
        self._failing: set[str] = set()
        self._news = asyncio.Event()
        self._copying = asyncio.Lock()
        """Serializes the copies of a table, so that the newer one is kept."""
        self.master_address = ""
        """The master's request address; empty while unknown. Never our own address."""
        self._copied = events.tables_copied
        events.master_tables_changed.append(self._news.set)
        self._topics_seen = self._groups_seen = DataVersion()
        """The versions of the master's tables that were last copied."""

    def start(self) -> None:
        """Start copying. Addresses and held positions from an earlier time as a slave are dropped."""
        if self._tasks is None:
            self.master_address = ""
            self._delay_offsets = b""
            self._held.clear()
            self._failing.clear()
            period_s = self._config.metadata_sync_interval_ms / 1000
            self._tasks = TaskOwner("metadata-sync", watched=True)
            self._tasks.start(every(period_s, self.run_once, first_s=min(_FIRST_S, period_s)), "round")
            self._news.clear()
            self._tasks.start(self._follow_news(), "news")

    def copy_from(self, master_address: str) -> None:
        """Copy from this master from now on."""
        self.master_address = master_address

    async def _follow_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            copied = await self._copy((("topics", self._sync_topics), ("groups", self._sync_groups)))
            if not copied and self.master_address:
                await asyncio.sleep(_NEWS_RETRY_S)
                self._news.set()
            if self._news.is_set():
                continue
            self._copied()
            if copied and self._config.failover_enabled:
                await self._copy((("confirmation of topics and groups", self._confirm),))

    async def copy_tables(self, address: str) -> None:
        """Copy topics and groups now. Raises ``OrbitError``, ``OSError``."""
        await self._sync_topics(address)
        await self._sync_groups(address)

    async def _confirm(self, address: str) -> None:
        """Report the versions of our tables to the master, which delays its answers to changes until it knows
        them."""
        told = copied_text(self._config.broker_id, self._topics_seen, self._groups_seen)
        answer = await self._rpc.call(
            address, RequestCode.EXCHANGE_BROKER_HA_INFO, timeout_s=_TIMEOUT_S, ext={COPIED: told}
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)

    async def stop(self) -> None:
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            await tasks.close()
            self.master_address = ""

    async def run_once(self) -> None:
        """Run one round, if a master is known."""
        await self._copy(
            (
                ("topics", self._sync_topics),
                ("consumer offsets", self._sync_offsets),
                ("delay offsets", self._sync_delay_offsets),
                ("groups", self._sync_groups),
                ("further tables", self._sync_kept),
                ("timer check point", self._sync_timers),
                ("users and policies", self._sync_users),
            )
        )

    async def _copy(self, parts: Sequence[tuple[str, Callable[[str], Awaitable[None]]]]) -> bool:
        """Copy each part, logging those that fail. Returns whether all parts were copied."""
        complete = True
        for name, part in parts:
            address = self.master_address
            if not address:
                return False
            try:
                await part(address)
            except (OrbitError, OSError) as error:
                # Warn once per outage, because a master may be down for days.
                level = logging.DEBUG if name in self._failing else logging.WARNING
                self._failing.add(name)
                logger.log(level, "%s not copied master=%s error=%s", name, address, error)
                complete = False
            except Exception:  # a bug in one part must not keep the parts after it from being copied
                if name not in self._failing:
                    logger.exception("%s not copied master=%s", name, address)
                self._failing.add(name)
                complete = False
            else:
                self._failing.discard(name)
        return complete

    async def _sync_users(self, address: str) -> None:
        """Copy users and policies. An Apache master includes passwords; an answer without any leaves our users
        unchanged."""
        table = self._tables.users
        if table is None:
            return
        answer = await self._ask_auth(address, RequestCode.AUTH_LIST_USER)
        infos = bodies.decode_body(list[UserInfo], answer) if answer else []
        users = [parse_user(info.username, info) for info in infos if info.username]
        if not users or not all(user.password for user in users):
            return
        answer = await self._ask_auth(address, RequestCode.AUTH_LIST_ACL)
        acls = bodies.decode_body(list[AclInfo], answer) if answer else []
        policies = {(info.subject or "").partition(":")[2]: parse_acl(info) for info in acls}
        if table.replace(users, policies):
            logger.info("users and policies copied master=%s users=%d", address, len(users))

    async def _ask_auth(self, address: str, code: int) -> bytes:
        answer = await self._rpc.call(address, code, timeout_s=_TIMEOUT_S, ext={REPLICA: "true"})
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return answer.body

    def adopt_topics(self) -> None:
        """On becoming master, adopt topics and queues that the previous master created after our last copy and whose
        messages we have.

        A topic or queue that the previous master deleted is not adopted: it has no message newer than the table that
        no longer lists it.
        """
        version = self._topics.data_version
        # A table that was never copied has no time.
        copied_ms = version.timestamp_ms if version.counter else 0
        for topic in self._store.topics():
            if self._topics.is_system(topic):
                continue
            known = self._topics.configs.get(topic)
            unknown_from = 0 if known is None else known.read_queue_nums
            newer = [
                queue_id
                for queue_id in self._store.queues(topic)
                if queue_id >= unknown_from and self._newest_ms(topic, queue_id) >= copied_ms
            ]
            if not newer:
                continue
            count = max(self._store.queues(topic)) + 1
            if known is not None:
                count = max(newer) + 1
                adopted = msgspec.structs.replace(
                    known, read_queue_nums=count, write_queue_nums=max(count, known.write_queue_nums)
                )
            else:
                if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                    count = max(count, self._config.default_queue_count)
                adopted = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            logger.warning("topic recreated from its messages topic=%s queues=%d", topic, count)
            self._topics.update(adopted)

    def _newest_ms(self, topic: str, queue_id: int) -> int:
        store = self._store
        return store.store_time_at(topic, queue_id, store.max_offset(topic, queue_id) - 1)

    async def _ask(self, address: str, code: int, timeout_s: float = _TIMEOUT_S) -> bytes:
        answer = await self._rpc.call(address, code, timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return bytes(answer.body)

    async def _sync_topics(self, address: str) -> None:
        async with self._copying:
            await self._take_topics(address)

    async def _take_topics(self, address: str) -> None:
        body = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, _LIST_TIMEOUT_S)
        table = javajson.decode(body, bodies.TopicConfigWrapper, bytes_max=_BYTES_MAX)
        if self._is_new(table.data_version, self._topics_seen, self._topics) and table.topic_config_table:
            self._topics.replace_all(table.topic_config_table, table.data_version)
            logger.info("topics copied count=%d", len(table.topic_config_table))
        self._topics_seen = table.data_version

    @staticmethod
    def _is_new(version: DataVersion, seen: DataVersion, own: TopicTable | GroupTable) -> bool:
        """Whether a master's table must be copied. Equal versions do not suffice: both brokers may have changed their
        tables in the same millisecond, so the version must also be the one that was copied last."""
        return version != own.data_version or version != seen

    async def _positions(self, address: str, code: int) -> bytes | None:
        """Returns the master's answer once our log has caught up with it; ``None`` while it has not."""
        if code not in self._held:
            body = await self._ask(address, code)
            info = bodies.KvTable.decode(await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO))
            end = info.table.get("commitLogMaxOffset", "")
            self._held[code] = body, int(end) if end.isdecimal() else 0
        body, wanted = self._held[code]
        for _ in range(_FOLLOW_TRIES):
            if self._store.whole_log_offset >= wanted:
                del self._held[code]
                return body
            await asyncio.sleep(_FOLLOW_S)
        return None

    async def _sync_offsets(self, address: str) -> None:
        body = await self._positions(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        if body is None:
            return
        table = javajson.decode(body, bodies.ConsumerOffsets, bytes_max=_BYTES_MAX)
        self._offsets.merge(table.offset_table, table.data_version or DataVersion())
        if table.pull_offset_table is not None:
            self._offsets.take_pulled(table.pull_offset_table)
        await self._offsets.persist_aside()

    async def _sync_delay_offsets(self, address: str) -> None:
        body = await self._positions(address, RequestCode.GET_ALL_DELAY_OFFSET)
        if body is not None and body != self._delay_offsets:
            self._tables.schedule.take(body)
            self._delay_offsets = body

    async def _sync_groups(self, address: str) -> None:
        async with self._copying:
            await self._take_groups(address)

    async def _take_groups(self, address: str) -> None:
        body = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _LIST_TIMEOUT_S)
        table = javajson.decode(body, bodies.SubscriptionGroupWrapper, bytes_max=_BYTES_MAX)
        if (
            self._is_new(table.data_version, self._groups_seen, self._groups)
            and table.subscription_group_table
        ):
            self._groups.replace_all(
                table.subscription_group_table,
                table.forbidden_table or {},
                table.data_version,
            )
            logger.info("groups copied count=%d", len(table.subscription_group_table))
        self._groups_seen = table.data_version

    async def _sync_kept(self, address: str) -> None:
        for code, table in self._tables.kept.items():
            try:
                table.take(await self._ask(address, code))
            except RequestCodeNotSupported:
                return  # a master of 4.x

    async def _sync_timers(self, address: str) -> None:
        if not self._config.timer_wheel_enabled:
            return
        try:
            body = await self._ask(address, RequestCode.GET_TIMER_CHECK_POINT)
        except RequestCodeNotSupported:
            return  # a master of 4.x has no timers
        self._tables.timers.take(body)
