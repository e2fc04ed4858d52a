"""Creates, changes, deletes and shows topics: requests 17, 18, 215 and 351.

Follows the topic part of Apache's AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import InvalidParameter, ServerError, TopicNotFound
from orbitmq.model.names import check_topic, pop_retry_topic
from orbitmq.model.topic import (
    MESSAGE_TYPE_ATTRIBUTE,
    QUEUE_NUMS_MAX,
    TopicConfig,
    TopicFilterType,
    is_perm_valid,
    parse_attribute_changes,
)
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.bodies import TopicConfigList, encode_body
from orbitmq.wire.headers import (
    DeleteTopicInBrokerRequest,
    GetTopicConfigRequest,
    UpdateAndCreateTopicListRequest,
    UpdateAndCreateTopicRequest,
)

__all__ = ["TopicHandlers"]

logger = logging.getLogger(__name__)


class TopicHandlers:
    """Manages topics for admins."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        store: MessageStore,
        events: BrokerEvents,
        known_elsewhere: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """Each callback in ``known_elsewhere`` waits, up to a time limit, until others know the last change. The
        others are the name servers and, with failover, the members of the failover group."""
        self._config = config
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._deleted = events.topic_deleted
        self._known_elsewhere = known_elsewhere

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.UPDATE_AND_CREATE_TOPIC, self.update_topic, UpdateAndCreateTopicRequest),
            Route(
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.update_topics, UpdateAndCreateTopicListRequest
            ),
            Route(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete_topic, DeleteTopicInBrokerRequest),
            Route(RequestCode.GET_TOPIC_CONFIG, self.topic_config, GetTopicConfigRequest),
        ]

    def update_topic(self, call: Call[UpdateAndCreateTopicRequest]) -> Reply | Awaitable[Reply]:
        """Create or change a topic. The answer is sent once the name servers know the topic, because admin tools
        query its route next."""
        header = call.header
        self._check_name(header.topic)
        try:
            filter_type = TopicFilterType(header.topic_filter_type or "")
        except ValueError:
            kinds = " or ".join(TopicFilterType)
            raise ServerError(f"topicFilterType is {header.topic_filter_type!r}, not {kinds}") from None
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order is True,
        )
        try:
            changes = parse_attribute_changes(header.attributes)
        except InvalidParameter as error:
            raise ServerError(error.remark) from None
        self._apply([(config, changes)], call.peer.remote_text)
        return self._when_known()

    def update_topics(self, call: Call[UpdateAndCreateTopicListRequest]) -> Reply | Awaitable[Reply]:
        """Create or change several topics, all or none. In this request, a topic's attributes are signed changes."""
        requests = []
        for config in TopicConfigList.decode(call.body).topic_config_list:
            self._check_name(config.topic_name)
            requests.append((config, config.attributes))
        self._apply(requests, call.peer.remote_text)
        return self._when_known()

    def _when_known(self) -> Reply | Awaitable[Reply]:
        """Returns the answer, delayed until the change is on disk and others know it. Another thread writes to
        disk."""
        saves = self._topics.saves
        waits = [*((saves.saved,) if saves.is_running else ()), *self._known_elsewhere]
        return _after(waits) if waits else Reply()

    def _check_name(self, topic: str) -> None:
        check_topic(topic)
        self._refuse_system(topic)

    def _refuse_system(self, topic: str) -> None:
        if self._config.validate_system_topics and self._topics.is_system(topic):
            raise InvalidParameter(f"topic {topic} belongs to the system and cannot be changed by request")

    def _apply(self, requests: Sequence[tuple[TopicConfig, Mapping[str, str]]], caller: str) -> None:
        changed = []
        for config, changes in requests:
            _check_numbers(config)
            if (
                changes.get(f"+{MESSAGE_TYPE_ATTRIBUTE}") == "MIXED"
                and not self._config.mixed_message_type_enabled
            ):
                raise InvalidParameter("message type MIXED is not allowed here (enableMixedMessageType)")
            # The comparison uses the changes as attributes, so that only a request without changes is skipped.
            if msgspec.structs.replace(config, attributes=dict(changes)) != self._topics.find(
                config.topic_name
            ):
                changed.append((config, changes))
        if not changed:
            return
        logger.info(
            "topics changed by request caller=%s topics=%s", caller, [c.topic_name for c, _ in changed]
        )
        try:
            self._topics.apply(changed)
        except InvalidParameter as error:
            # Apache answers bad attributes with a different code.
            raise ServerError(error.remark) from None

    def delete_topic(self, call: Call[DeleteTopicInBrokerRequest]) -> Reply | Awaitable[Reply]:
        """Delete a topic, its offsets and its queues. The log keeps the messages until they expire."""
        topic = call.header.topic
        if not topic.strip():
            raise InvalidParameter("the topic name is blank")
        self._refuse_system(topic)
        doomed = [topic]
        if self._config.clear_retry_topics:
            for group in self._offsets.groups_of(topic):
                for version_2 in (True, False):
                    retry = pop_retry_topic(topic, group, version_2=version_2)
                    if self._topics.find(retry) is not None:
                        doomed.append(retry)
        logger.info("topics deleted by request caller=%s topics=%s", call.peer.remote_text, doomed)
        for name in doomed:
            self._topics.delete(name)
            self._offsets.remove_topic(name)
            self._store.delete_topic(name)
            self._deleted(name)
        return self._when_known()

    def topic_config(self, call: Call[GetTopicConfigRequest]) -> Reply:
        config = self._topics.find(call.header.topic)
        if config is None:
            raise TopicNotFound(f"topic {call.header.topic} does not exist on this broker")
        return Reply(body=encode_body(config))


def _check_numbers(config: TopicConfig) -> None:
    for name, count in (
        ("readQueueNums", config.read_queue_nums),
        ("writeQueueNums", config.write_queue_nums),
    ):
        if not 0 <= count <= QUEUE_NUMS_MAX:
            raise InvalidParameter(f"{name} {count} is not within 0 to {QUEUE_NUMS_MAX}")
    if not is_perm_valid(config.perm):
        raise InvalidParameter(f"perm {config.perm} is not made of 4 (read), 2 (write) and 1 (inherit)")


async def _after(waits: Sequence[Callable[[], Awaitable[None]]]) -> Reply:
    for wait in waits:
        await wait()
    return Reply()
