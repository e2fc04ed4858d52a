"""Reads and changes options, cleans up files and clones offsets: requests 25, 26, 306, 314, 316 and 329.

Follows the part of Apache's AdminBrokerProcessor that changes the broker itself.
"""

from __future__ import annotations

import logging

from orbitmq.broker.live_config import LiveConfig
from orbitmq.broker.tables.clients import ConsumerTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import ServerError
from orbitmq.model.names import check_group
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import javajson
from orbitmq.wire.headers import CloneGroupOffsetRequest, Empty, GetBrokerConfigResponse

__all__ = ["MaintenanceHandlers"]

logger = logging.getLogger(__name__)


class MaintenanceHandlers:
    """Serves operations on a running broker."""

    def __init__(
        self,
        *,
        live_config: LiveConfig,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        store: MessageStore,
    ) -> None:
        self._live_config = live_config
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.UPDATE_BROKER_CONFIG, self.update_config, Empty),
            Route(RequestCode.GET_BROKER_CONFIG, self.config, Empty),
            Route(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired_queues, Empty),
            Route(RequestCode.DELETE_EXPIRED_COMMITLOG, self.delete_expired_log, Empty),
            Route(RequestCode.CLEAN_UNUSED_TOPIC, self.clean_unused_topics, Empty),
            Route(RequestCode.CLONE_GROUP_OFFSET, self.clone_offsets, CloneGroupOffsetRequest),
        ]

    async def update_config(self, call: Call[Empty]) -> Reply:
        try:
            text = call.body.decode()
        except UnicodeDecodeError as error:
            raise ServerError(f"the body is not UTF-8: {error}") from None
        logger.info("options sent caller=%s bytes=%d", call.peer.remote_text, len(call.body))
        await self._live_config.update(text)
        return Reply()

    def config(self, _call: Call[Empty]) -> Reply:
        version = javajson.encode(self._live_config.version).decode()
        return Reply(header=GetBrokerConfigResponse(version=version), body=self._live_config.text().encode())

    def clean_expired_queues(self, call: Call[Empty]) -> Reply:
        """Delete queue files whose messages are no longer in the log."""
        logger.info("queue clean-up requested caller=%s", call.peer.remote_text)
        self._store.clean_expired()
        return Reply()

    def delete_expired_log(self, call: Call[Empty]) -> Reply:
        """Delete expired log segments now, regardless of the configured hour."""
        removed = self._store.clean_expired(force=True)
        logger.info("log clean-up requested caller=%s removed=%d", call.peer.remote_text, removed)
        return Reply()

    def clean_unused_topics(self, call: Call[Empty]) -> Reply:
        """Delete the queues of topics that are no longer configured."""
        dropped = self._store.keep_topics(self._topics.configs)
        logger.info("unused topics dropped caller=%s topics=%s", call.peer.remote_text, dropped)
        return Reply()

    def clone_offsets(self, call: Call[CloneGroupOffsetRequest]) -> Reply:
        """Copy one group's offsets to another group, in one topic or in all topics with offsets of the source group.

        Unless ``offline`` is set, topics to which the members of an online source group do not subscribe are left
        out.
        """
        header = call.header
        source = header.src_group
        check_group(header.dest_group)
        named = header.topic if header.topic and header.topic.strip() else None
        online = self._consumers.group(source)
        for topic in self._offsets.topics_of(source) if named is None else [named]:
            if self._topics.find(topic) is None:
                logger.warning("offsets not cloned, unknown topic topic=%s", topic)
                continue
            if (
                not header.offline
                and online is not None
                and online.subscriptions
                and self._consumers.known_subscription(source, topic) is None
            ):
                logger.warning("offsets not cloned, not subscribed group=%s topic=%s", source, topic)
                continue
            self._offsets.clone(source, header.dest_group, topic)
        logger.info(
            "offsets cloned caller=%s from=%s to=%s", call.peer.remote_text, source, header.dest_group
        )
        return Reply()
