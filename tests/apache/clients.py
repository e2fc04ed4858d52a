"""The official Java and Go clients, each in its own process, as Python objects.

    with JavaClients("5.5.0") as java:
        producer = java.producer("group", namesrv)
        producer.send(Message(topic="T", body=b"hello"))
        consumer = java.push_consumer("readers", namesrv, {"T": "*"}, from_first=True)
        [delivery] = consumer.wait(1)

`namesrv` is an address or anything with one. Settings of the client are passed by Apache's bean names
(`sendMsgTimeout=500`, `messageModel="BROADCASTING"`); an unknown name is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self

from tests.apache.artifacts import LATEST, go_driver
from tests.apache.driver import CALL_TIMEOUT_S, Driver
from tests.apache.process import SMALL_JVM, HarnessTimeout, java_command, wait_until
from tests.apache.servers import Addressed, address_of
from tests.apache.values import (
    Check,
    Delivery,
    Message,
    PullResult,
    Queue,
    Received,
    SendResult,
    body_of,
)

__all__ = [
    "Admin",
    "ClassFilter",
    "Client",
    "Clients",
    "GoClients",
    "JavaClients",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Script",
    "Sql",
]

Mode = Literal["sync", "async", "oneway"]
WAIT_S: Final = 60.0
QUICK_ROUND_MS: Final = 1_000
PATIENT_MS: Final = 15_000
"""How long a Java client waits for an answer; its default of 3 s makes a busy machine look like a refusal."""
ROUNDS: Final = ("pollNameServerInterval", "heartbeatBrokerInterval", "persistConsumerOffsetInterval")


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression in place of a tag expression."""

    expression: str


@dataclass(frozen=True, slots=True)
class ClassFilter:
    """A filter class in place of a tag expression; client 4.9.7 uploads its source to filter servers."""

    class_name: str
    source: str = ""


Subscriptions = Mapping[str, str | Sql | ClassFilter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The behaviour of a push consumer's listener.

    The first `fail_times` deliveries of each message (only those with `fail_tag`, if given) fail as `fail_mode`
    says: "later" returns RECONSUME_LATER, or SUSPEND_CURRENT_QUEUE_A_MOMENT when orderly; "throw" raises; "null"
    returns nothing. `reply_by` answers requests through that producer with b"reply to " + body. With
    `report=False` messages are only counted, for loads too big to report one by one.
    """

    fail_times: int = 0
    fail_tag: str | None = None
    fail_mode: Literal["later", "throw", "null"] = "later"
    sleep_ms: int = 0
    delay_level: int | None = None
    ack_index: int | None = None
    suspend_ms: int | None = None
    reply_by: Producer | None = None
    report: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "failTimes": self.fail_times,
            "failTag": self.fail_tag,
            "failMode": self.fail_mode,
            "sleepMs": self.sleep_ms,
            "delayLevel": self.delay_level,
            "ackIndex": self.ack_index,
            "suspendMs": self.suspend_ms,
            "replyBy": self.reply_by.handle if self.reply_by else None,
            "report": self.report,
        }


class Client:
    """One client inside a driver process."""

    kind = ""

    def __init__(self, driver: Driver, request: dict[str, Any]) -> None:
        self.driver = driver
        self.handle = driver.new_handle(self.kind)
        self.inbox = driver.inbox(self.handle)
        started = self.call("start", **request)
        self.client_id: str = started["clientId"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.driver.child.running:
            self.stop()

    def call(self, op: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        return self.driver.call(f"{self.kind}.{op}", handle=self.handle, timeout_s=timeout_s, **fields)

    def _wait_events(
        self, kind: str, enough: Callable[[list[dict[str, Any]]], bool], timeout_s: float, what: str
    ) -> list[dict[str, Any]]:
        try:
            return self.inbox.wait(kind, enough, timeout_s=timeout_s, what=what)
        except HarnessTimeout as error:
            raise HarnessTimeout(f"{error}\n{self.driver.child.log_tail(30)}") from None

    def stop(self) -> None:
        """Stops like a well-behaved client."""
        self.call("stop")

    def query(self, op: str, **fields: Any) -> Any:
        return self.driver.call(f"query.{op}", handle=self.handle, **fields)

    def query_by_key(
        self, topic: str, key: str, *, max_count: int = 32, begin_ms: int = 0, end_ms: int = 2**62
    ) -> list[Received]:
        found = self.query("byKey", topic=topic, key=key, max=max_count, begin=begin_ms, end=end_ms)
        return [Received.from_json(item) for item in found]

    def query_by_id(self, topic: str, msg_id: str) -> Received:
        """Queries by unique key or by offset id, which the client tells apart."""
        return Received.from_json(self.query("byId", topic=topic, msgId=msg_id))

    def max_offset(self, queue: Queue) -> int:
        return int(self.query("maxOffset", queue=queue.to_json()))

    def min_offset(self, queue: Queue) -> int:
        return int(self.query("minOffset", queue=queue.to_json()))

    def search_offset(self, queue: Queue, timestamp_ms: int) -> int:
        return int(self.query("searchOffset", queue=queue.to_json(), timestamp=timestamp_ms))

    def earliest_time_ms(self, queue: Queue) -> int:
        return int(self.query("earliestTime", queue=queue.to_json()))


class Producer(Client):
    """Sends in every mode of the official producer."""

    kind = "producer"

    def send(
        self,
        message: Message,
        *,
        mode: Mode = "sync",
        queue: Queue | None = None,
        selector: tuple[Literal["hash", "index", "random"], str | int] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Sends one message and returns the client's result; with `mode="async"` that of the callback."""
        assert mode != "oneway", "a oneway send has no result: use send_oneway"
        future = self.submit(message, mode=mode, queue=queue, selector=selector, timeout_ms=timeout_ms)
        return SendResult.from_json(self.driver.result(future, "send"))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        selector: tuple[Literal["hash", "index", "random"], str | int] | None = None,
    ) -> None:
        self.driver.result(self.submit(message, mode="oneway", queue=queue, selector=selector), "send")

    def submit(
        self,
        message: Message,
        *,
        mode: Mode = "sync",
        queue: Queue | None = None,
        selector: tuple[Literal["hash", "index", "random"], str | int] | None = None,
        timeout_ms: int | None = None,
    ) -> Future[Any]:
        """Starts a send that runs in the background; the future holds the result's JSON."""
        return self.driver.submit(
            "producer.send",
            handle=self.handle,
            message=message.to_json(),
            mode=mode,
            queue=queue.to_json() if queue else None,
            selector={"kind": selector[0], "arg": selector[1]} if selector else None,
            timeoutMs=timeout_ms,
        )

    def send_many(
        self,
        messages: Sequence[Message],
        *,
        mode: Literal["sync", "async"] = "sync",
        queue: Queue | None = None,
        timeout_s: float = 60.0,
    ) -> list[SendResult]:
        """Sends single messages, all in one request to the driver: thousands take a second or two."""
        results = self.call(
            "sendMany",
            messages=[message.to_json() for message in messages],
            mode=mode,
            queue=queue.to_json() if queue else None,
            timeout_s=timeout_s,
        )
        return [SendResult.from_json(item) for item in results]

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        mode: Literal["sync", "async"] = "sync",
        queue: Queue | None = None,
    ) -> SendResult:
        """Sends one batch message; ids and offset id are joined by commas."""
        result = self.call(
            "sendBatch",
            messages=[message.to_json() for message in messages],
            mode=mode,
            queue=queue.to_json() if queue else None,
        )
        return SendResult.from_json(result)

    def send_in_transaction(
        self, message: Message, *, local: str = "COMMIT_MESSAGE", checks: Sequence[str] = ()
    ) -> SendResult:
        """`local` is the local result and `checks` the answers to the checks in turn, the last one repeated:
        COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW (sic) or THROW."""
        result = self.call(
            "sendTransaction", message=message.to_json(), local=local, checks=list(checks) or None
        )
        return SendResult.from_json(result)

    def checks(self) -> list[Check]:
        """Returns the transaction checks so far."""
        return [Check.from_json(event) for event in self.inbox.events("check")]

    def wait_checks(self, count: int, *, timeout_s: float = WAIT_S) -> list[Check]:
        events = self.inbox.wait(
            "check",
            lambda found: len(found) >= count,
            timeout_s=timeout_s,
            what=f"{count} transaction checks",
        )
        return [Check.from_json(event) for event in events]

    def request(self, message: Message, *, timeout_ms: int = 5_000) -> Received:
        """Sends a request and returns the reply."""
        return Received.from_json(self.call("request", message=message.to_json(), timeoutMs=timeout_ms))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Recalls a timer message (5.5.0)."""
        return str(self.call("recall", topic=topic, recallHandle=recall_handle))

    def queues(self, topic: str) -> list[Queue]:
        """Returns the queues this producer may send to."""
        return [Queue.from_json(item) for item in self.query("publishQueues", topic=topic)]


class PushConsumer(Client):
    """Reports every delivery; `deliveries` holds them all, in order of arrival."""

    kind = "push"

    @property
    def deliveries(self) -> list[Delivery]:
        return [Delivery.from_json(event) for event in self.inbox.events("message")]

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    def wait(self, count: int, *, timeout_s: float = WAIT_S) -> list[Delivery]:
        """Returns the deliveries as soon as there are at least `count`."""
        events = self._wait_events(
            "message", lambda found: len(found) >= count, timeout_s, f"{count} deliveries"
        )
        return [Delivery.from_json(event) for event in events]

    def wait_bodies(self, bodies: set[bytes], *, timeout_s: float = WAIT_S) -> list[Delivery]:
        """Returns the deliveries as soon as each of these bodies arrived at least once."""
        missing, seen = set(bodies), 0

        def all_came(events: list[dict[str, Any]]) -> bool:
            nonlocal seen
            missing.difference_update(body_of(event["message"]) for event in events[seen:])
            seen = len(events)
            return not missing

        events = self._wait_events("message", all_came, timeout_s, f"{len(bodies)} different bodies")
        return [Delivery.from_json(event) for event in events]

    def count(self) -> int:
        """Returns how many messages the listener has received, including unreported ones."""
        return int(self.call("count"))

    def wait_count(self, count: int, *, timeout_s: float = WAIT_S) -> None:
        wait_until(lambda: self.count() >= count, timeout_s=timeout_s, what=f"{count} messages consumed")

    def queues(self) -> list[Queue]:
        """Returns the queues this consumer currently works on (including those of its retry topic)."""
        return [Queue.from_json(item) for item in self.call("queues")]

    def wait_queues(
        self, enough: Callable[[list[Queue]], bool], *, topic: str, timeout_s: float = WAIT_S
    ) -> list[Queue]:
        """Returns its queues of that topic as soon as `enough` accepts them."""
        found: list[Queue] = []

        def settled() -> bool:
            found[:] = [queue for queue in self.queues() if queue.topic == topic]
            return enough(found)

        wait_until(settled, timeout_s=timeout_s, what=f"the queues of {topic} at {self.client_id}")
        return found

    def offsets(self, topic: str) -> dict[Queue, int]:
        """Returns the offsets this consumer will commit, by queue."""
        return {Queue.from_json(row): row["offset"] for row in self.call("offsets", topic=topic)}

    def persist(self) -> None:
        """Commits the offsets to the broker now instead of in the next round."""
        self.call("persist")

    def rebalance(self) -> None:
        """Rebalances now instead of in the next round."""
        self.call("rebalance")

    def suspend(self) -> None:
        self.call("suspend")

    def resume(self) -> None:
        self.call("resume")

    def subscribe(self, topic: str, expression: str | Sql = "*") -> None:
        self.call("subscribe", **_subscription(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        self.call("unsubscribe", topic=topic)


class PullConsumer(Client):
    """The legacy pull consumer: the caller names queue and offset."""

    kind = "pull"

    def queues(self, topic: str) -> list[Queue]:
        return [Queue.from_json(item) for item in self.call("queues", topic=topic)]

    def balanced_queues(self, topic: str) -> list[Queue]:
        """Returns the queues assigned to this member of the group; the topic must be among `topics` at start."""
        return [Queue.from_json(item) for item in self.call("balanced", topic=topic)]

    def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        expression: str | Sql = "*",
        max_count: int = 32,
        block: bool = False,
        timeout_ms: int = 10_000,
    ) -> PullResult:
        result = self.call(
            "pull",
            queue=queue.to_json(),
            offset=offset,
            max=max_count,
            block=block,
            timeoutMs=timeout_ms,
            expression=expression.expression if isinstance(expression, Sql) else expression,
            type="SQL92" if isinstance(expression, Sql) else "TAG",
            timeout_s=60.0,
        )
        return PullResult.from_json(result)

    def fetch_offset(self, queue: Queue, *, from_store: bool = True) -> int:
        """Returns the committed offset, from the broker or from this client's own table."""
        return int(self.call("fetchOffset", queue=queue.to_json(), fromStore=from_store))

    def update_offset(self, queue: Queue, offset: int, *, persist: bool = True) -> None:
        self.call("updateOffset", queue=queue.to_json(), offset=offset, persist=persist)

    def send_back(self, queue: Queue, offset: int, *, delay_level: int = 0) -> Received:
        """Returns the message at that offset to the broker for a later delivery."""
        result = self.call("sendBack", queue=queue.to_json(), offset=offset, delayLevel=delay_level)
        return Received.from_json(result)


class LitePullConsumer(Client):
    """The lite pull consumer, by subscription or, started with none, by `assign`."""

    kind = "lite"

    def poll(self, *, timeout_ms: int = 1_000) -> list[Received]:
        found = self.call("poll", timeoutMs=timeout_ms)
        return [Received.from_json(item) for item in found]

    def poll_until(self, count: int, *, timeout_s: float = WAIT_S) -> list[Received]:
        """Polls repeatedly until at least `count` messages arrived."""
        found: list[Received] = []

        def enough() -> bool:
            found.extend(self.poll(timeout_ms=200))
            return len(found) >= count

        wait_until(enough, timeout_s=timeout_s, what=f"{count} polled messages")
        return found

    def queues(self, topic: str) -> list[Queue]:
        return [Queue.from_json(item) for item in self.call("queues", topic=topic)]

    def assignment(self) -> list[Queue]:
        return [Queue.from_json(item) for item in self.call("assignment")]

    def assign(self, queues: Sequence[Queue]) -> None:
        self.call("assign", queues=[queue.to_json() for queue in queues])

    def seek(self, queue: Queue, offset: int | Literal["begin", "end"]) -> None:
        self.call("seek", queue=queue.to_json(), offset=offset)

    def pause(self, queues: Sequence[Queue]) -> None:
        self.call("pause", queues=[queue.to_json() for queue in queues])

    def resume(self, queues: Sequence[Queue]) -> None:
        self.call("resume", queues=[queue.to_json() for queue in queues])

    def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Commits the polled messages, or exactly these offsets."""
        rows = None
        if offsets is not None:
            rows = [queue.to_json() | {"offset": offset} for queue, offset in offsets.items()]
        self.call("commit", offsets=rows)

    def committed(self, queue: Queue) -> int:
        return int(self.call("committed", queue=queue.to_json()))

    def offset_for_time(self, queue: Queue, timestamp_ms: int) -> int:
        return int(self.call("offsetForTime", queue=queue.to_json(), timestamp=timestamp_ms))


class Admin(Client):
    """The admin client (DefaultMQAdminExt): every method by its name, results as JSON."""

    kind = "admin"

    def invoke(self, method: str, *args: Any) -> Any:
        """Calls a method: `admin.invoke("examineTopicStats", "T")`. Map keys that are objects are returned as their
        text.
        """
        return self.call("call", method=method, args=list(args))


class Clients(Driver):
    """The operations common to both languages."""

    default_options: Mapping[str, Any] = MappingProxyType({})
    producer_options: Mapping[str, Any] = MappingProxyType({})

    def _split(self, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Splits options into (fields of the request, settings of the client)."""
        request = {name: value for name, value in extra.items() if name in _NOT_OPTIONS}
        if "strategyQueues" in request:
            request["strategyQueues"] = [queue.to_json() for queue in request["strategyQueues"]]
        options = {name: value for name, value in extra.items() if name not in _NOT_OPTIONS}
        return request, dict(self.default_options) | options

    def producer(
        self,
        group: str,
        namesrv: Addressed | str,
        *,
        transactional: bool = False,
        checks: Sequence[str] = (),
        **extra: Any,
    ) -> Producer:
        """`checks`: how a transactional producer answers checks of messages it has no script for. Extra keywords
        that are not options: accessKey, secretKey, trace, traceTopic."""
        request, options = self._split({**self.producer_options, **extra})
        request |= {
            "group": group,
            "namesrv": address_of(namesrv),
            "transactional": transactional,
            "checks": list(checks),
            "options": options,
        }
        return Producer(self, request)

    def push_consumer(
        self,
        group: str,
        namesrv: Addressed | str,
        subscriptions: Subscriptions,
        *,
        orderly: bool = False,
        from_first: bool = False,
        script: Script | None = None,
        **extra: Any,
    ) -> PushConsumer:
        """Returns a started consumer whose first rebalance is in progress. `from_first`: a new group reads from the
        beginning. Extra keywords that are not options: accessKey, secretKey, trace, traceTopic, strategy,
        strategyQueues (CONFIG), rooms (MACHINE_ROOM), roomCount (MACHINE_ROOM_NEARBY).
        """
        request, options = self._split(extra)
        if from_first:
            options.setdefault("consumeFromWhere", "CONSUME_FROM_FIRST_OFFSET")
        request |= {
            "group": group,
            "namesrv": address_of(namesrv),
            "subscriptions": [_subscription(*item) for item in subscriptions.items()],
            "orderly": orderly,
            "script": (script or Script()).to_json(),
            "options": options,
        }
        return PushConsumer(self, request)

    def pull_consumer(
        self, group: str, namesrv: Addressed | str, *, topics: Sequence[str] = (), **extra: Any
    ) -> PullConsumer:
        request, options = self._split(extra)
        request |= {
            "group": group,
            "namesrv": address_of(namesrv),
            "topics": list(topics),
            "options": options,
        }
        return PullConsumer(self, request)


class JavaClients(Clients):
    """The official Java client of one release in one JVM, with any number of producers and consumers in it.

    `quick` shortens the client's rounds (routes 30 s, heartbeats 30 s, rebalance 20 s, offsets 5 s) to one second: a
    consumer that just misses a round is idle for half a minute, also with Apache's own servers.
    `serialize="ROCKETMQ"` makes it write binary headers, and `tls=True` makes it connect with TLS. Other settings
    that are read once per JVM are passed as `properties` (`tls.client.trustCertPath`,
    `com.rocketmq.sendMessageWithVIPChannel`, ...).
    """

    def __init__(
        self,
        version: str = LATEST,
        *,
        quick: bool = True,
        serialize: Literal["JSON", "ROCKETMQ"] = "JSON",
        tls: bool = False,
        properties: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] = SMALL_JVM,
        workdir: Path | None = None,
    ) -> None:
        settings = {"rocketmq.serialize.type": serialize, "tls.enable": str(tls).lower()}
        options: dict[str, Any] = {"mqClientApiTimeout": PATIENT_MS}
        if quick:
            settings["rocketmq.client.rebalance.waitInterval"] = str(QUICK_ROUND_MS)
            options |= dict.fromkeys(ROUNDS, QUICK_ROUND_MS)
        self.default_options = options
        self.producer_options = {"sendMsgTimeout": PATIENT_MS}
        settings |= properties or {}

        def command(directory: Path) -> list[str]:
            main = "orbitmq.driver.Driver"
            return java_command(version, directory, main, jvm_args=jvm_args, properties=settings)

        self.version = version
        super().__init__(f"java-{version}", command, workdir)

    def lite_pull_consumer(
        self,
        group: str,
        namesrv: Addressed | str,
        subscriptions: Subscriptions | None = None,
        *,
        from_first: bool = False,
        **extra: Any,
    ) -> LitePullConsumer:
        request, options = self._split(extra)
        if from_first:
            options.setdefault("consumeFromWhere", "CONSUME_FROM_FIRST_OFFSET")
        request |= {
            "group": group,
            "namesrv": address_of(namesrv),
            "subscriptions": [_subscription(*item) for item in (subscriptions or {}).items()],
            "options": options,
        }
        return LitePullConsumer(self, request)

    def admin(self, namesrv: Addressed | str, **extra: Any) -> Admin:
        request, options = self._split(extra)
        return Admin(self, request | {"namesrv": address_of(namesrv), "options": options})


class GoClients(Clients):
    """The official Go client 2.1.2. It has fewer settings (`go/message.go` lists them) and reports less: no queues
    and offsets of a push consumer, no queries. A pull consumer must be started with its `topics`.
    """

    def __init__(self, *, workdir: Path | None = None) -> None:
        super().__init__("go", lambda directory: [str(go_driver())], workdir)


def _subscription(topic: str, expression: str | Sql | ClassFilter) -> dict[str, Any]:
    if isinstance(expression, ClassFilter):
        return {
            "topic": topic,
            "expression": expression.class_name,
            "source": expression.source,
            "type": "CLASS",
        }
    if isinstance(expression, Sql):
        return {"topic": topic, "expression": expression.expression, "type": "SQL92"}
    return {"topic": topic, "expression": expression, "type": "TAG"}


_NOT_OPTIONS: Final = frozenset(
    {"accessKey", "secretKey", "trace", "traceTopic", "strategy", "strategyQueues", "rooms", "roomCount"}
)
