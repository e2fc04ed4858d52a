"""The subscriptions of one consumer: its filter for each topic, and the version that brokers know."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from orbitmq.client.checks import check_type
from orbitmq.model.names import check_topic, retry_topic, wrap_namespace
from orbitmq.model.subscription import SQL92, TAG, SubscriptionData, parse_subscription, subscribe_by_tags
from orbitmq.runtime.clock import Clock, ForwardClock

__all__ = ["Subscriptions"]


class Subscriptions:
    """Subscriptions by topic. The keys are topics as brokers name them, with the namespace."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self._namespace = namespace
        self._versions = ForwardClock(clock)
        """Brokers ignore a subscription that is older than the one they have."""
        self.wanted: dict[str, SubscriptionData] = {}
        self.missing: set[str] = set()
        """Topics that did not exist when they were looked up; all their messages were sent after the start."""
        self._announced: dict[str, SubscriptionData] = {}
        self._assigned: dict[str, SubscriptionData] = {}

    def wire(self, topic: str) -> str:
        """Returns a topic as brokers name it, with the namespace."""
        return wrap_namespace(self._namespace, topic)

    def _checked(self, topic: str) -> str:
        check_type("topic", topic, str)
        wire_topic = self.wire(topic)
        check_topic(wire_topic)
        return wire_topic

    def topics(self) -> set[str]:
        """Returns the topics whose routes are needed."""
        return self.wanted.keys() | self._assigned.keys()

    # -- what the user wants ---------------------------------------------------------------------------

    def add(self, topic: str, expression: str, *, sql: bool) -> str:
        """Subscribe by tags or by an SQL92 expression. Returns the topic as brokers name it."""
        topic = self._checked(topic)
        kind = SQL92 if sql else TAG
        self.wanted[topic] = parse_subscription(topic, expression, kind, self._versions.now_ms())
        return topic

    def add_class(self, topic: str, class_name: str) -> str:
        """Subscribe by a class that a filter server runs. Returns the topic as brokers name it."""
        topic = self._checked(topic)
        self.wanted[topic] = SubscriptionData(
            topic=topic, sub_string=class_name, class_filter_mode=True, sub_version=self._versions.now_ms()
        )
        return topic

    def add_retries(self, group: str) -> None:
        """Subscribe to the group's retry topic."""
        topic = retry_topic(group)
        self.wanted[topic] = subscribe_by_tags(topic, "*", self._versions.now_ms())

    def remove(self, topic: str) -> str:
        """Unsubscribe. Returns the topic as brokers name it."""
        topic = self.wire(topic)
        self.wanted.pop(topic, None)
        self._announced.pop(topic, None)
        return topic

    def assign(self, topics: Iterable[str], expression: str) -> None:
        """Read topics by a tag expression without subscribing to them."""
        self._assigned = {topic: subscribe_by_tags(topic, expression) for topic in topics}

    # -- what brokers know -----------------------------------------------------------------------------

    def for_pull(self, topic: str) -> SubscriptionData | None:
        """Returns the subscription to pull with; None if the topic is not subscribed. It is the version that brokers
        know, because they refuse unknown versions."""
        return self._announced.get(topic) or self.wanted.get(topic) or self._assigned.get(topic)

    def renew(self, topic: str) -> SubscriptionData | None:
        """Give a topic's subscription a new version, and return it. Pulls use it after ``announced``."""
        subscription = self.wanted.get(topic)
        if subscription is None:
            return None
        self._announced.setdefault(topic, subscription)
        self.wanted[topic] = renewed = msgspec.structs.replace(
            subscription, sub_version=self._versions.now_ms()
        )
        return renewed

    def announced(self, topic: str) -> None:
        """Use the topic's current subscription in pulls, because a heartbeat has announced it."""
        if topic in self.wanted:
            self._announced[topic] = self.wanted[topic]
