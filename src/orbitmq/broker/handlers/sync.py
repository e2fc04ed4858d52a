"""Serves the tables that other brokers and tools copy: requests 21, 43, 45, 60, 61, 201, 402, 906 and 907.

Follows the part of Apache's AdminBrokerProcessor that slaves and mqadmin query. Topics and groups are sent in pages
if the request names the version of the previous pages. They are sent from the start if that version is no longer the
current one. Offsets, delay cursors and the timer checkpoint are sent only once the messages they have passed are as
safe as a send, because a slave that becomes master skips everything before them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.registration import SECOND_MASTER
from orbitmq.broker.replication.metadata_sync import COPIED
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import BodyError, ServerError
from orbitmq.model.data_version import DataVersion
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Answer, Call, Reply, Route
from orbitmq.wire import bodies, javajson
from orbitmq.wire.headers import (
    Empty,
    ExchangeBrokerHaInfoRequest,
    ExchangeBrokerHaInfoResponse,
    GetAllSubscriptiongroupConfigRequest,
    GetAllSubscriptiongroupConfigResponse,
    GetAllTopicConfigRequest,
    GetAllTopicConfigResponse,
)

__all__ = ["SyncHandlers", "SyncSources", "page"]

V = TypeVar("V")
logger = logging.getLogger(__name__)

_ADDRESS_CHARS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class SyncSources:
    """Callbacks to other parts of the broker, which supply the answers. Each default is the answer when that part is
    absent."""

    delay_offsets: Callable[[], bytes] = bodies.DelayOffsets(data_version=DataVersion()).encode
    """Body of GET_ALL_DELAY_OFFSET."""
    message_request_modes: Callable[[], bytes] = bodies.MessageRequestModes().encode
    timer_check_point: Callable[[], bytes] = bodies.TimerCheckPoint().encode
    timer_metrics: Callable[[], bytes] = bodies.TimerMetrics().encode
    master_info: Callable[[], ExchangeBrokerHaInfoResponse | None] = lambda: None
    """Returns the addresses and log end of this master; None on a slave."""
    on_master_info: Callable[[ExchangeBrokerHaInfoRequest], None] | None = None
    """Called on a slave with the addresses that its master sends."""
    on_tables_copied: Callable[[str, DataVersion, DataVersion], None] = lambda _told, _topics, _groups: None
    """Called with the versions of topics and groups that a failover group's member reports, and with ours."""
    on_slave: Callable[[Call[Any]], None] = lambda _call: None
    """Called for each request that only other brokers send."""
    ha_status: Callable[[], bodies.HaRuntimeInfo | None] = lambda: None
    when_safe: Callable[[Call[Any], Reply], Answer] = lambda _call, reply: reply
    """Answers once everything stored so far is safe, or with the reason why it is not."""


class SyncHandlers:
    """Serves whole tables, or pages of them."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        sources: SyncSources,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._sources = sources
        self._second_master = ""

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.GET_ALL_TOPIC_CONFIG, self.all_topics, GetAllTopicConfigRequest),
            Route(
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                self.all_groups,
                GetAllSubscriptiongroupConfigRequest,
            ),
            Route(RequestCode.GET_ALL_CONSUMER_OFFSET, self.all_consumer_offsets, Empty),
            Route(RequestCode.GET_ALL_DELAY_OFFSET, self.all_delay_offsets, Empty),
            Route(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.message_request_modes, Empty),
            Route(RequestCode.GET_TIMER_CHECK_POINT, self.timer_check_point, Empty),
            Route(RequestCode.GET_TIMER_METRICS, self.timer_metrics, Empty),
            Route(RequestCode.EXCHANGE_BROKER_HA_INFO, self.exchange_ha_info, ExchangeBrokerHaInfoRequest),
            Route(RequestCode.GET_BROKER_HA_STATUS, self.ha_status, Empty),
        ]

    def all_topics(self, call: Call[GetAllTopicConfigRequest]) -> Reply:
        header = call.header
        topics = self._topics
        table = topics.configs
        if self._paged(header.data_version, header.topic_seq, header.max_topic_num):
            table = page(
                topics.configs,
                topics.data_version,
                asked_version=header.data_version,
                start=header.topic_seq,
                count=self._page_count(header.max_topic_num),
            )
        body = bodies.TopicConfigWrapper(
            data_version=topics.data_version,
            mapping_data_version=topics.mapping_version,
            topic_config_table=table,
            topic_queue_mapping_detail_map={},
            topic_queue_mapping_info_map={},
        ).encode()
        return Reply(header=GetAllTopicConfigResponse(total_topic_num=len(topics.configs)), body=body)

    def all_groups(self, call: Call[GetAllSubscriptiongroupConfigRequest]) -> Reply:
        header = call.header
        groups = self._groups
        table = groups.configs
        forbidden = groups.forbidden_table
        if self._paged(header.data_version, header.group_seq, header.max_group_num):
            table = page(
                groups.configs,
                groups.data_version,
                asked_version=header.data_version,
                start=header.group_seq,
                count=self._page_count(header.max_group_num),
            )
            forbidden = {group: topics for group, topics in forbidden.items() if group in table}
        body = bodies.SubscriptionGroupWrapper(
            data_version=groups.data_version, forbidden_table=forbidden, subscription_group_table=table
        ).encode()
        return Reply(
            header=GetAllSubscriptiongroupConfigResponse(total_group_num=len(groups.configs)), body=body
        )

    def _paged(self, *fields: object) -> bool:
        """Whether to send a page instead of the whole table. Clients before 5.4 send none of these fields and expect
        the whole table."""
        return self._config.split_metadata and any(field is not None for field in fields)

    def _page_count(self, asked: int | None) -> int:
        limit = self._config.split_metadata_count
        return limit if asked is None else min(limit, asked)

    def _cursors(self, call: Call[Empty], body: bytes) -> Answer:
        reply = Reply(body=body)
        # A slave does not advance the cursors. It copies them from its master.
        return reply if self._config.is_slave else self._sources.when_safe(call, reply)

    def all_consumer_offsets(self, call: Call[Empty]) -> Answer:
        self._sources.on_slave(call)
        return self._cursors(call, self._offsets.encode())

    def all_delay_offsets(self, call: Call[Empty]) -> Answer:
        self._sources.on_slave(call)
        return self._cursors(call, self._sources.delay_offsets())

    def message_request_modes(self, _call: Call[Empty]) -> Reply:
        return Reply(body=self._sources.message_request_modes())

    def timer_check_point(self, call: Call[Empty]) -> Answer:
        return self._cursors(call, self._sources.timer_check_point())

    def timer_metrics(self, _call: Call[Empty]) -> Reply:
        return Reply(body=self._sources.timer_metrics())

    def exchange_ha_info(self, call: Call[ExchangeBrokerHaInfoRequest]) -> Reply:
        """Exchange addresses with a broker of the group. Without fields, a slave queries its master; with fields, the
        master notifies a slave."""
        self._sources.on_slave(call)
        copied = call.frame.ext_fields.get(COPIED)
        if copied:
            self._sources.on_tables_copied(copied, self._topics.data_version, self._groups.data_version)
        if call.header.master_ha_address is not None:
            if self._sources.on_master_info is not None:
                self._sources.on_master_info(call.header)
            return Reply()
        return Reply(header=self._sources.master_info())

    def ha_status(self, call: Call[Empty]) -> Reply:
        status = self._sources.ha_status()
        if status is None:
            raise ServerError("this broker does not replicate")
        second = call.frame.ext_fields.get(SECOND_MASTER)
        # Warn once per address, because the second master may be restarted every few seconds.
        if second and second != self._second_master and not self._config.is_slave:
            self._second_master = second
            logger.warning(
                "a second master of this name was started and refused to run broker=%s address=%s",
                self._config.broker_name,
                second[:_ADDRESS_CHARS_MAX],
            )
        return Reply(body=status.encode())


def page(
    table: Mapping[str, V], version: DataVersion, *, asked_version: str | None, start: int | None, count: int
) -> dict[str, V]:
    """Returns up to ``count`` entries in order of name, from index ``start`` on. Starts at 0 if the requested version
    is unreadable or not the current one."""
    begin = max(0, start or 0) if _version(asked_version) == version else 0
    return {name: table[name] for name in sorted(table)[begin : begin + max(0, count)]}


def _version(text: str | None) -> DataVersion | None:
    try:
        return javajson.decode(text.encode(), DataVersion) if text else None
    except (BodyError, UnicodeEncodeError):
        return None
