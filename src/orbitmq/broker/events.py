"""The events by which parts of the broker notify each other, with a list of subscribers for each.

The lists are created first and passed to constructors. A part that acts on an event appends its method to the list
when it is constructed, so nothing is assigned to another object afterwards. README.md lists the subscribers of every
event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVarTuple, Unpack

from orbitmq.model.subscription import SubscriptionData
from orbitmq.model.topic import TopicConfig

__all__ = ["BrokerEvents", "Event", "QueueEvent"]

Values = TypeVarTuple("Values")


class Event(list[Callable[[Unpack[Values]], object]], Generic[*Values]):
    """The subscribers of an event. They are called in list order."""

    __slots__ = ()

    def __call__(self, *values: *Values) -> None:
        for subscriber in self:
            subscriber(*values)


class QueueEvent:
    """An event of a queue. It calls the subscribers for all queues first, then the one for the queue's topic."""

    __slots__ = ("of_any", "of_topic")

    def __init__(self) -> None:
        self.of_any: Event[str, int] = Event()
        self.of_topic: dict[str, Callable[[int], None]] = {}
        """Subscribers by topic; they receive only the queue id."""

    def __call__(self, topic: str, queue_id: int) -> None:
        for subscriber in self.of_any:
            subscriber(topic, queue_id)
        if topic in self.of_topic:
            self.of_topic[topic](queue_id)


@dataclass(frozen=True, slots=True)
class BrokerEvents:
    """The events of one broker."""

    arrived: Event[str, int] = field(default_factory=Event)
    """A queue (topic, queue id) received messages, here or from a master. They may not be readable yet."""
    readable: QueueEvent = field(default_factory=QueueEvent)
    """Consumers may read new messages of a queue."""
    uncovered: Event[str, str, int] = field(default_factory=Event)
    """Messages of a queue (topic, group, queue id) may have become visible to a POP group again."""
    deliveries_stopping: Event[()] = field(default_factory=Event[()])
    """This broker is about to stop delivering as master."""
    role_changed: Event[()] = field(default_factory=Event[()])
    """This broker has changed between master and slave."""
    options_changed: Event[frozenset[str]] = field(default_factory=Event)
    """Options with these keys have new values."""
    announcement_changed: Event[()] = field(default_factory=Event[()])
    """The data registered with name servers has changed, apart from topics."""
    topic_changed: Event[TopicConfig] = field(default_factory=Event)
    """A topic was created or changed."""
    topic_deleted: Event[str] = field(default_factory=Event)
    group_deleted: Event[str] = field(default_factory=Event)
    subscribed: Event[str, Collection[SubscriptionData]] = field(default_factory=Event)
    """A group's heartbeat listed its subscriptions. Subscribers may raise ``InvalidParameter`` if there are too
    many."""
    group_gone: Event[str] = field(default_factory=Event)
    """The last member of a group has left."""
    tables_changed: Event[()] = field(default_factory=Event[()])
    """The topics or the groups have a new version."""
    elected: Event[int] = field(default_factory=Event)
    """This broker was elected master for an epoch, and does not accept sends yet."""
    master_known: Event[str, str] = field(default_factory=Event)
    """A name server or the master named our master's address and replication address."""
    master_lost: Event[()] = field(default_factory=Event[()])
    """A connection to the master could not be made or has ended."""
    master_tables_changed: Event[()] = field(default_factory=Event[()])
    """The master's topics or groups may have changed. Emitted when the master notifies this broker, and after
    connecting."""
    tables_copied: Event[()] = field(default_factory=Event[()])
    """Topics and groups are copied from the master, and no later change is known."""
