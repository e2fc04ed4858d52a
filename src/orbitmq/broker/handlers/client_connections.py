"""Client connections and subscriptions: requests 203, 204, 300, 305, 328, 343 and 345.

Follows part of Apache's AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Iterable

from orbitmq.broker.tables.clients import ClientChannel, ConsumerTable, ProducerTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import ConsumerNotOnline, ServerError
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies
from orbitmq.wire.headers import (
    Empty,
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
)

__all__ = ["ClientInspection"]


class ClientInspection:
    """Lists client connections, and the topics that groups read."""

    def __init__(
        self,
        *,
        consumers: ConsumerTable,
        producers: ProducerTable,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        address: str,
    ) -> None:
        """``address`` is this broker's own address, as clients know it."""
        self._consumers = consumers
        self._producers = producers
        self._offsets = offsets
        self._topics = topics
        self._address = address

    def routes(self) -> list[Route]:
        return [
            Route(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                self.consumer_connections,
                GetConsumerConnectionListRequest,
            ),
            Route(
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                self.producer_connections,
                GetProducerConnectionListRequest,
            ),
            Route(RequestCode.GET_ALL_PRODUCER_INFO, self.all_producers, Empty),
            Route(
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic, QueryTopicConsumeByWhoRequest
            ),
            Route(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group, QueryTopicsByConsumerRequest),
            Route(
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
                self.subscription,
                QuerySubscriptionByConsumerRequest,
            ),
            Route(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, Empty),
        ]

    def consumer_connections(self, call: Call[GetConsumerConnectionListRequest]) -> Reply:
        group = self._consumers.group(call.header.consumer_group)
        if group is None:
            raise ConsumerNotOnline(f"no consumer of group {call.header.consumer_group} is online")
        return Reply(
            body=bodies.ConsumerConnection(
                connection_set=_connections(group.members.values()),
                consume_from_where=group.from_where or None,
                consume_type=group.consume_type,
                message_model=group.message_model,
                subscription_table=group.subscriptions,
            ).encode()
        )

    def producer_connections(self, call: Call[GetProducerConnectionListRequest]) -> Reply:
        channels = self._producers.groups.get(call.header.producer_group)
        if channels is None:
            raise ServerError(f"no producer of group {call.header.producer_group} is online")
        return Reply(body=bodies.ProducerConnection(connection_set=_connections(channels.values())).encode())

    def all_producers(self, _call: Call[Empty]) -> Reply:
        table: dict[str, list[bodies.ProducerInfo]] = {}
        for group, channel in self._producers.channels():
            table.setdefault(group, []).append(
                bodies.ProducerInfo(
                    client_id=channel.client_id,
                    language=channel.language,
                    last_update_timestamp=channel.last_update_ms,
                    # Java prints a slash before an address without a host name.
                    remote_ip=f"/{channel.connection.remote_text}",
                    version=channel.version,
                )
            )
        return Reply(body=bodies.ProducerTable(data=table).encode())

    def groups_of_topic(self, call: Call[QueryTopicConsumeByWhoRequest]) -> Reply:
        """Returns the groups that currently read a topic or have committed offsets in it."""
        topic = call.header.topic
        groups = {*self._consumers.groups_of_topic(topic), *self._offsets.groups_of(topic)}
        return Reply(body=bodies.GroupList(group_list=sorted(groups)).encode())

    def topics_of_group(self, call: Call[QueryTopicsByConsumerRequest]) -> Reply:
        topics = self._offsets.topics_of(call.header.group)
        return Reply(body=bodies.TopicList(broker_addr=self._address, topic_list=topics).encode())

    def subscription(self, call: Call[QuerySubscriptionByConsumerRequest]) -> Reply:
        group, topic = call.header.group, call.header.topic
        found = self._consumers.known_subscription(group, topic) if topic is not None else None
        return Reply(
            body=bodies.QuerySubscriptionResponse(group=group, topic=topic, subscription_data=found).encode()
        )

    def system_topics(self, _call: Call[Empty]) -> Reply:
        return Reply(body=bodies.TopicList(topic_list=sorted(self._topics.system_topics)).encode())


def _connections(channels: Iterable[ClientChannel]) -> list[bodies.ClientConnection]:
    return [
        bodies.ClientConnection(
            client_addr=channel.connection.remote_text,
            client_id=channel.client_id,
            language=channel.language,
            version=channel.version,
        )
        for channel in channels
    ]
