"""The transport: kombu's virtual channels, with topics as queues."""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
import weakref
from queue import Empty
from typing import Any, Final
from uuid import uuid4

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from orbitmq import (
    ClientStateError,
    Credentials,
    LitePullConsumer,
    Message,
    OrbitError,
    PoppedMessage,
    SimpleConsumer,
    sync,
)
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.groups import delete_group
from orbitmq.admin.session import Admin, AdminOptions
from orbitmq.admin.topics import delete_topic, update_topic
from orbitmq.model.topic import TopicConfig
from orbitmq_kombu.sources import Arrivals, Broadcast, SharedQueue

__all__ = ["Channel", "Transport", "topic_of"]

logger = logging.getLogger(__name__)

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_|-]")
_POLL_S: Final = 1.0
_DELIVERED_AT_ONCE: Final = 64


def topic_of(name: str) -> str:
    """Returns the topic of a queue or an exchange. Characters that a topic cannot contain are written as ``%`` and
    two digits or more.
    """
    return _FORBIDDEN.sub(lambda found: f"%{ord(found[0]):02X}", name)


class QoS(virtual.QoS):
    """Acknowledges messages at the broker, or returns them to it."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.finish(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.give_back(delivery_tag)
        else:
            self.channel.finish(delivery_tag)
        self._quick_ack(delivery_tag)


class Channel(virtual.Channel):
    """The queues of one connection."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._sources: dict[str, SharedQueue] = {}
        self._unfinished: dict[str, tuple[SharedQueue, PoppedMessage]] = {}
        self._no_ack: set[str] = set()
        self._own: set[str] = set()
        """Queues that end with this channel (``auto_delete``)."""
        self._broadcasts = connection.broadcasts
        self._transport = connection  # ``connection`` is gone after close_channel

    # -- sending ---------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._send(queue, message)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self._send(_exchange_name(exchange), message)

    def _send(self, name: str, message: dict[str, Any]) -> None:
        keys = (message.get("properties") or {}).get("correlation_id") or ()
        self._transport.producer.send(Message(topic_of(name), dumps(message).encode(), keys=keys))

    # -- receiving -------------------------------------------------------------------------------------

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        broadcast = self._broadcasts.get(queue)
        if broadcast is not None:
            if not broadcast.ready:
                raise Empty
            return self._payload(broadcast.ready.popleft().body, 1)
        source = self._source(queue)
        if not source.ready:
            # None: no limit is set, and messages are requested in small batches.
            wanted = self.qos.can_consume_max_estimate()
            source.ask(16 if wanted is None else wanted)
            raise Empty
        message = source.ready.popleft()
        payload = self._payload(message.body, message.attempt)
        if queue in self._no_ack:
            source.acknowledge(message)
        else:
            self._unfinished[payload["properties"]["delivery_tag"]] = (source, message)
        return payload

    @staticmethod
    def _payload(body: bytes, attempt: int) -> dict[str, Any]:
        payload: dict[str, Any] = loads(body.decode())
        properties = payload.setdefault("properties", {})
        properties["delivery_tag"] = uuid4().hex  # of this delivery: it may not be the first
        if attempt > 1:
            properties.setdefault("delivery_info", {})["redelivered"] = True
            payload["redelivered"] = True
        return payload

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        if no_ack:
            self._no_ack.add(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        result = super().basic_cancel(consumer_tag)
        self._no_ack.discard(queue)
        return result

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        if queue not in self._broadcasts:
            source = self._source(queue)
            if not source.ready:
                source.receive_now(1)
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.finish(message.delivery_tag)
        return message

    def finish(self, delivery_tag: str) -> None:
        """Acknowledges the message."""
        found = self._unfinished.pop(delivery_tag, None)
        if found is not None:
            found[0].acknowledge(found[1])

    def give_back(self, delivery_tag: str) -> None:
        """Releases the message for redelivery."""
        found = self._unfinished.pop(delivery_tag, None)
        if found is not None:
            found[0].give_back(found[1])

    def _restore(self, message: Any) -> None:
        self.give_back(message.delivery_tag)

    _restore_at_beginning = _restore

    # -- queues ----------------------------------------------------------------------------------------

    def _source(self, queue: str) -> SharedQueue:
        source = self._sources.get(queue)
        if source is None:
            source = self._sources[queue] = self._transport.shared_queue(queue)
        return source

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        if self.typeof(exchange).type == "fanout" and queue not in self._broadcasts:
            # Read from now on: messages sent before the first consumer also belong to the queue.
            self._transport.create_topic(_exchange_name(exchange))
            self._broadcasts[queue] = self._transport.broadcast(_exchange_name(exchange))

    def get_table(self, exchange: str) -> Any:
        table = self.state.exchanges.get(exchange)
        return [] if table is None else table["table"]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Bindings are known only to the process that created them. Reply queues are bound by another process; their
        names follow from the exchange and the key (``kombu.pidbox.Mailbox``).
        """
        if exchange and self.typeof(exchange).type == "direct":
            table = self.get_table(exchange)
            found: list[str] = self.typeof(exchange).lookup(table, exchange, routing_key, default)
            return found or [f"{routing_key}.{exchange}"]
        queues: list[str] = super()._lookup(exchange, routing_key, default)
        return queues

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        if self._transport.create_topic(queue) and auto_delete:
            self._own.add(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._transport.has_topic(queue)

    def _size(self, queue: str) -> int:
        return 0 if queue in self._broadcasts else self._source(queue).size()

    def _purge(self, queue: str) -> int:
        """Receives and acknowledges the available messages. Messages that other readers hold are not affected."""
        if queue in self._broadcasts:
            return 0
        source, count = self._source(queue), 0
        while True:
            if not source.ready:
                source.receive_now(16)
            if not source.ready:
                return count
            while source.ready:
                source.acknowledge(source.ready.popleft())
                count += 1

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Purges and closes the queue. The topic stays: others may use it."""
        self._purge(queue)
        source = self._sources.pop(queue, None) or self._broadcasts.pop(queue, None)
        if source is not None:
            source.close()

    def close(self) -> None:
        closing = not self.closed
        try:
            super().close()
        finally:
            if closing:
                _close_all(self._sources)
                self.delete_own()

    def delete_own(self) -> None:
        """Deletes the queues that end with this channel."""
        while self._own:
            queue = self._own.pop()
            source = self._sources.pop(queue, None)
            if source is not None:  # its next heartbeat would create the group again
                _close_all({queue: source})
            self._transport.delete_topic(queue)


def _exchange_name(exchange: str) -> str:
    """Returns a name whose topic differs from that of a queue with the same name."""
    return f"{exchange}.fanout"


def _close_all(sources: dict[str, SharedQueue] | dict[str, Broadcast]) -> None:
    for source in sources.values():
        try:
            source.close()
        except OrbitError:  # forked, or the broker is gone: leases run out
            pass
    sources.clear()


_open: weakref.WeakSet[Transport] = weakref.WeakSet()


@atexit.register
def _delete_own_queues() -> None:
    """Deletes queues at exit, because programs like ``celery inspect`` end without closing their connections."""
    for transport in list(_open):
        for channel in list(transport.channels):
            try:
                channel.delete_own()
            except ClientStateError:  # a child of a fork
                pass


class Transport(virtual.Transport):
    """One connection: a loop thread, a producer, and a consumer for each queue that is read."""

    Channel = Channel
    default_port = 9876
    driver_type = "rocketmq"
    driver_name = "orbitmq"
    can_parse_url = False
    connection_errors = (*virtual.Transport.connection_errors, ConnectionError, TimeoutError, OrbitError)
    recoverable_connection_errors = connection_errors
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options: dict[str, Any] = dict(client.transport_options)
        self._name_servers: str = options.get("name_servers") or (
            f"{client.hostname or '127.0.0.1'}:{client.port or self.default_port}"
        )
        self._settings: dict[str, Any] = dict(options.get("client") or {})
        if client.userid:
            self._settings.setdefault("credentials", Credentials(client.userid, client.password or ""))
        self._group_prefix: str = options.get("group_prefix", "kombu-")
        self._lease_s = float(options.get("lease_s", 30.0))
        self._queue_count = int(options.get("queue_count", 4))
        self._create_topics = bool(options.get("create_topics", True))
        self._topics: set[str] = set()
        self._arrived = Arrivals()
        self._hub: Any = None
        self._hub_pid = 0
        self._regularly: Any = None
        self._loop: sync.LoopThread | None = None
        self._producer: sync.Producer | None = None
        self._making = threading.Lock()
        self.broadcasts: dict[str, Broadcast] = {}
        """Queues bound to a fanout exchange; of the connection, since one channel binds and another consumes."""
        _open.add(self)

    def driver_version(self) -> str:
        import orbitmq

        return orbitmq.__version__

    @property
    def loop(self) -> sync.LoopThread:
        if self._loop is None:
            self._loop = sync.LoopThread()
        return self._loop

    @property
    def producer(self) -> sync.Producer:
        with self._making:
            if self._producer is None:
                producer = sync.Producer(
                    f"{self._group_prefix}producer", self._name_servers, loop=self.loop, **self._settings
                )
                producer.start()
                self._producer = producer
            return self._producer

    def establish_connection(self) -> Any:
        connection = super().establish_connection()
        try:
            self.producer.wait_ready(timeout_s=self.client.connect_timeout or 5.0)
        except BaseException:
            self.close_connection(self)
            raise
        return connection

    def close_connection(self, connection: Any) -> None:
        self._leave_hub()
        super().close_connection(connection)
        _close_all(self.broadcasts)
        producer, self._producer = self._producer, None
        loop, self._loop = self._loop, None
        try:
            if producer is not None:
                producer.stop()
            if loop is not None:
                loop.close()
        except ClientStateError:  # a child of a fork: threads and sockets are the parent's
            pass
        self._arrived.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Works like the virtual transport's, but the wait ends when a message arrives."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._arrived.clear()
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                left_s = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
                if left_s <= 0:
                    raise TimeoutError from None
                self._arrived.wait(left_s)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Delivers from kombu's hub. A Celery worker on a hub accepts commands while all its processes are busy; one
        that calls ``drain_events`` is blocked then.
        """
        self._hub, self._hub_pid = loop, os.getpid()
        loop.add_reader(self._arrived.fileno(), self._deliver_ready)
        loop.on_tick.add(self._deliver_ready)
        self._regularly = loop.call_repeatedly(_POLL_S, self._deliver_ready)

    def _leave_hub(self) -> None:
        hub, self._hub = self._hub, None
        # A child of a fork shares the hub's epoll with its parent.
        if hub is not None and self._hub_pid == os.getpid():
            hub.remove_reader(self._arrived.fileno())
            hub.on_tick.discard(self._deliver_ready)
            self._regularly.cancel()

    def _deliver_ready(self, *events: Any) -> None:
        """Delivers the received messages and requests more, a few at a time, because the hub serves others too."""
        self._arrived.clear()
        for _ in range(_DELIVERED_AT_ONCE):
            try:
                self.cycle.get(self._deliver, timeout=0)
            except Empty:
                return
        self._arrived.set()

    # -- what channels need ----------------------------------------------------------------------------

    def shared_queue(self, queue: str) -> SharedQueue:
        topic = topic_of(queue)
        consumer = SimpleConsumer(f"{self._group_prefix}{topic}", self._name_servers, **self._settings)
        return SharedQueue(self.loop, topic, consumer, self._lease_s, self._arrived)

    def broadcast(self, exchange: str) -> Broadcast:
        group = f"{self._group_prefix}broadcast"
        consumer = LitePullConsumer(group, self._name_servers, auto_commit=False, **self._settings)
        return Broadcast(self.loop, topic_of(exchange), consumer, self._arrived)

    def has_topic(self, name: str) -> bool:
        return self.loop.run(self._has_topic(topic_of(name)))

    def create_topic(self, name: str) -> bool:
        """Creates the topic on all masters. Returns False if it exists or this connection may not create it."""
        topic = topic_of(name)
        if not self._create_topics or topic in self._topics:
            return False
        self._topics.add(topic)
        return self.loop.run(self._create_topic(topic))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic this connection created, and its group; objects that cannot be deleted remain."""
        self._topics.discard(topic_of(name))
        try:
            self.loop.run(self._delete_topic(topic_of(name)))
        except OrbitError as error:
            logger.warning("topic not deleted topic=%s error=%s", topic_of(name), error)

    def _admin(self) -> Admin:
        known = {key: self._settings[key] for key in ("credentials", "tls") if key in self._settings}
        return Admin(self._name_servers, AdminOptions(**known))

    async def _has_topic(self, topic: str) -> bool:
        async with self._admin() as admin:
            try:
                await admin.route(topic)
            except OrbitError:
                return False
            return True

    async def _create_topic(self, topic: str) -> bool:
        if await self._has_topic(topic):
            return False
        count = self._queue_count
        config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
        async with self._admin() as admin:
            for cluster in (await admin.cluster_info()).cluster_addr_table:
                await update_topic(admin, config, {}, broker=None, cluster=cluster)
        return True

    async def _delete_topic(self, topic: str) -> None:
        async with self._admin() as admin:
            for cluster in (await admin.cluster_info()).cluster_addr_table:
                await delete_topic(admin, topic, cluster)
                try:
                    group = f"{self._group_prefix}{topic}"
                    await delete_group(admin, group, broker=None, cluster=cluster, remove_offset=True)
                except UnknownNameError:
                    pass  # nothing was received from it
