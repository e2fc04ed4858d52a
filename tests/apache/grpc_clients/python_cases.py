"""Cases of the official Python client (rocketmq-python-client), run in an environment of its own.

    python python_cases.py ENDPOINT PREFIX [case ...]

Topics PREFIX + Normal, Fifo, Delay, Trans, Priority and groups PREFIX + Orderly (ordered), Short (two attempts)
exist. Prints one JSON object per case: its name, whether it went well, what was seen, and how many messages came
again after their acknowledgement. Calls are signed when CASES_ACCESS_KEY and CASES_SECRET_KEY are set. CASES_TLS=1
makes the cases of sending and receiving use TLS.
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]  # only in the client's own environment
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType  # type: ignore[import-not-found]  # the same

ENDPOINT, PREFIX = sys.argv[1:3]
CONFIG = ClientConfiguration(
    ENDPOINT, Credentials(os.environ.get("CASES_ACCESS_KEY", ""), os.environ.get("CASES_SECRET_KEY", ""))
)
TLS = os.environ.get("CASES_TLS") == "1"
REPEATED = threading.local()
"""``count``: messages received again by the case of this thread."""
OUTPUT = threading.Lock()
CASES: list[Callable[[], Any]] = []


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES.append(function)
    return function


def message(topic: str, body: str, **settings: Any) -> Message:
    built = Message()
    built.topic = PREFIX + topic
    built.body = body.encode()
    for name, value in settings.items():
        if name == "properties":
            for key, text in value.items():
                built.add_property(key, text)
        else:
            setattr(built, name, value)
    return built


class Collector(MessageListener):  # type: ignore[misc]  # of a package without types
    """Notes what it gets; fails the first ``fail`` deliveries of each message."""

    def __init__(self, fail: int = 0) -> None:
        self.fail = fail
        self.got: list[tuple[str, int]] = []
        self.lock = threading.Condition()

    def consume(self, received: Message) -> ConsumeResult:
        with self.lock:
            self.got.append((received.body.decode(), received.delivery_attempt))
            self.lock.notify_all()
        return ConsumeResult.FAILURE if received.delivery_attempt <= self.fail else ConsumeResult.SUCCESS

    def wait(self, count: int, timeout_s: float = 40.0) -> list[tuple[str, int]]:
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.got) >= count, timeout_s), self.got
            return list(self.got)


def receive(
    topic: str, group: str, count: int, expression: FilterExpression | None = None, timeout_s: float = 40.0
) -> list[Message]:
    """Receive and acknowledge."""
    consumer = SimpleConsumer(
        CONFIG,
        PREFIX + group,
        {PREFIX + topic: expression or FilterExpression()},
        await_duration=5,
        tls_enable=TLS,
    )
    consumer.startup()
    try:
        found: list[Message] = []
        end = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < end:
            try:
                batch = consumer.receive(16, 30)
            except (
                Exception
            ):  # Apache's proxy fails until it has the settings, for which this client does not wait
                if time.monotonic() + 1 > end:
                    raise
                time.sleep(0.2)
                continue
            for received in batch:
                consumer.ack(received)
                if received.message_id in {one.message_id for one in found}:
                    REPEATED.count += 1
                else:
                    found.append(received)
        assert len(found) == count, [one.body for one in found]
        return found
    finally:
        consumer.shutdown()


def producer(*topics: str, checker: TransactionChecker | None = None) -> Producer:
    made = Producer(CONFIG, [PREFIX + topic for topic in topics], checker=checker, tls_enable=TLS)
    made.startup()
    return made


@case
def normal() -> Any:
    sender = producer("Normal")
    sent = sender.send(
        message("Normal", "n1", tag="TagA", keys="k1", properties={"color": "blue", "size": "5"})
    )
    (received,) = receive("Normal", "Plain", 1, FilterExpression("TagA"))
    sender.shutdown()
    assert received.message_id == sent.message_id
    assert (received.body, received.tag, list(received.keys)) == (b"n1", "TagA", ["k1"])
    assert received.properties["color"] == "blue"
    assert received.delivery_attempt == 1
    assert not received.corrupted
    return sent.message_id


@case
def filters() -> Any:
    sender = producer("Normal")
    for number in range(6):
        tag = "Even" if number % 2 == 0 else "Odd"
        sender.send(message("Normal", f"f{number}", tag=tag, properties={"number": str(number)}))
    by_tag = receive("Normal", "ByTag", 3, FilterExpression("Even"))
    sql = FilterExpression("number BETWEEN 2 AND 4", FilterType.SQL)
    by_sql = receive("Normal", "BySql", 3, sql)
    sender.shutdown()
    assert sorted(one.body for one in by_tag) == [b"f0", b"f2", b"f4"]
    assert sorted(one.body for one in by_sql) == [b"f2", b"f3", b"f4"]


@case
def fifo() -> Any:
    collector = Collector()
    consumer = PushConsumer(CONFIG, PREFIX + "Orderly", collector, {PREFIX + "Fifo": FilterExpression()})
    consumer.startup()
    sender = producer("Fifo")
    for number in range(8):
        sender.send(message("Fifo", f"o{number}", message_group="one"))
    got = collector.wait(8)
    sender.shutdown()
    consumer.shutdown()
    assert [body for body, _ in got] == [f"o{number}" for number in range(8)], got
    return got


@case
def delay() -> Any:
    sender = producer("Delay")
    due = int(time.time()) + 4
    sender.send(message("Delay", "later", tag="Later", delivery_timestamp=due))
    (received,) = receive("Delay", "Waiting", 1, FilterExpression("Later"))
    late_s = time.time() - due
    sender.shutdown()
    assert received.body == b"later"
    assert -1.1 <= late_s <= 60, late_s  # the wheel turns by seconds
    return late_s


@case
def recall() -> Any:
    """Of two delayed messages the first is recalled: the second alone is delivered."""
    sender = producer("Delay")
    sender.send(message("Delay", "first", delivery_timestamp=int(time.time())))  # connects
    now = int(time.time())
    sent = sender.send(message("Delay", "never", tag="Recall", delivery_timestamp=now + 6))
    sender.send(message("Delay", "after", tag="Recall", delivery_timestamp=now + 8))
    sender.recall_message(PREFIX + "Delay", sent.recall_handle)
    (received,) = receive("Delay", "Recalling", 1, FilterExpression("Recall"))
    sender.shutdown()
    assert received.body == b"after", received.body
    return sent.message_id


@case
def priority() -> Any:
    """What has the higher priority is delivered first, though sent last."""
    sender = producer("Priority")
    for level in (0, 1):
        for number in range(3):
            sender.send(message("Priority", f"p{level}{number}", priority=level))
    found = [one.body.decode() for one in receive("Priority", "Ranked", 6)]
    sender.shutdown()
    assert [body[:2] for body in found] == ["p1"] * 3 + ["p0"] * 3, found
    return found


class Committing(TransactionChecker):  # type: ignore[misc]  # of a package without types
    """Commits what was left open. Brokers may ask again about what is ended but not yet noted as such."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, asked: Message) -> TransactionResolution:
        self.asked.append(asked.body.decode())
        return TransactionResolution.ROLLBACK if asked.body == b"gone" else TransactionResolution.COMMIT


@case
def transaction() -> Any:
    checker = Committing()
    sender = producer("Trans", checker=checker)
    for body, end in (("committed", "commit"), ("gone", "rollback"), ("checked", "")):
        transaction = sender.begin_transaction()
        sender.send(message("Trans", body), transaction)
        if end:
            getattr(transaction, end)()
    found = receive("Trans", "Transacted", 2, timeout_s=60)
    sender.shutdown()
    assert sorted(one.body for one in found) == [b"checked", b"committed"], [one.body for one in found]
    assert "checked" in checker.asked, checker.asked
    return checker.asked


@case
def change_invisible_duration() -> Any:
    sender = producer("Normal")
    consumer = SimpleConsumer(CONFIG, PREFIX + "Changing", {PREFIX + "Normal": FilterExpression("Change")}, 5)
    consumer.startup()
    time.sleep(2)  # see receive
    consumer.receive(16, 15)  # the group starts here
    sender.send(message("Normal", "twice", tag="Change"))
    attempts: list[int] = []
    end = time.monotonic() + 40
    while len(attempts) < 2 and time.monotonic() < end:
        for received in consumer.receive(16, 30):
            attempts.append(received.delivery_attempt)
            if len(attempts) == 1:
                consumer.change_invisible_duration(received, 1)
            else:
                consumer.ack(received)
    consumer.shutdown()
    sender.shutdown()
    assert attempts == [1, 2], attempts


@case
def push_with_retry() -> Any:
    collector = Collector(fail=1)
    consumer = PushConsumer(
        CONFIG, PREFIX + "Retrying", collector, {PREFIX + "Normal": FilterExpression("Retry")}
    )
    consumer.startup()
    sender = producer("Normal")
    for number in range(3):
        sender.send(message("Normal", f"r{number}", tag="Retry"))
    got = collector.wait(6)
    sender.shutdown()
    consumer.shutdown()
    assert sorted(got) == [(f"r{number}", attempt) for number in range(3) for attempt in (1, 2)], got


@case
def dead_letters() -> Any:
    collector = Collector(fail=99)
    consumer = PushConsumer(
        CONFIG, PREFIX + "Short", collector, {PREFIX + "Normal": FilterExpression("Dead")}
    )
    consumer.startup()
    sender = producer("Normal")
    sender.send(message("Normal", "hopeless", tag="Dead"))
    got = collector.wait(2)
    time.sleep(12)  # a third delivery would come by now; the test looks for the dead letter
    consumer.shutdown()
    sender.shutdown()
    assert collector.got == [("hopeless", 1), ("hopeless", 2)], collector.got
    return got


def refused(work: Callable[[], Any]) -> str:
    """The code of the status, or what the client itself raised."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - which one it is is what the case shows
        return str(getattr(error, "code", None) or type(error).__name__)
    return "accepted"


@case
def late_ack() -> Any:
    """An acknowledgement after the invisible time is refused, and the message is redelivered."""
    sender = producer("Normal")
    consumer = SimpleConsumer(CONFIG, PREFIX + "Late", {PREFIX + "Normal": FilterExpression("Late")}, 5)
    consumer.startup()
    time.sleep(2)  # see receive
    consumer.receive(16, 15)  # the group starts here
    sender.send(message("Normal", "late", tag="Late"))
    attempts: list[int] = []
    seen = ""
    end = time.monotonic() + 60
    while len(attempts) < 2 and time.monotonic() < end:
        for received in consumer.receive(16, 10):
            attempts.append(received.delivery_attempt)
            if len(attempts) == 1:
                time.sleep(10.5)
                seen = refused(partial(consumer.ack, received))
            else:
                consumer.ack(received)
    consumer.shutdown()
    sender.shutdown()
    assert attempts == [1, 2], attempts
    return f"ack: {seen}"


@case
def refusals() -> Any:
    sender = producer("Normal")
    delaying = producer("Delay")
    ordering = producer("Fifo")
    consumer = SimpleConsumer(CONFIG, PREFIX + "Refused", {PREFIX + "Normal": FilterExpression()}, 5)
    consumer.startup()
    time.sleep(2)  # see receive
    wrong_sql = SimpleConsumer(
        CONFIG, PREFIX + "RefusedSql", {PREFIX + "Normal": FilterExpression("number >", FilterType.SQL)}, 5
    )
    wrong_sql.startup()
    time.sleep(2)
    tomorrow = int(time.time()) + 2 * 86_400
    seen = {
        "unknown topic": refused(lambda: sender.send(message("Unknown", "x"))),
        "wrong type": refused(lambda: sender.send(message("Normal", "x", message_group="g"))),
        "large body": refused(lambda: sender.send(message("Normal", "x" * (4 * 1024 * 1024 + 1)))),
        "reserved property": refused(lambda: sender.send(message("Normal", "x", properties={"TAGS": "t"}))),
        "long message group": refused(lambda: ordering.send(message("Fifo", "x", message_group="g" * 64))),
        "far delivery": refused(lambda: delaying.send(message("Delay", "x", delivery_timestamp=tomorrow))),
        "recall handle": refused(lambda: delaying.recall_message(PREFIX + "Delay", "junk")),
        "invisible time": refused(lambda: consumer.receive(16, 1)),
        "sql": refused(lambda: wrong_sql.receive(16, 15)),
    }
    for client in (sender, delaying, ordering, consumer, wrong_sql):
        client.shutdown()
    return "; ".join(f"{name}: {code}" for name, code in sorted(seen.items()))


def steady() -> Any:
    """Sends and receives until there is a file ``stop``, for CASES_SECONDS at most, whatever happens to
    proxies; then receives the rest. Only when named."""
    until = time.monotonic() + float(os.environ["CASES_SECONDS"])
    sent: set[str] = set()
    figures = {"failed sends": 0, "failed receives": 0}
    sender = producer("Normal")

    def send() -> None:
        number = 0
        while time.monotonic() < until and not os.path.exists("stop"):
            number += 1
            try:
                sender.send(message("Normal", f"s{number}"))
                sent.add(f"s{number}")
            except Exception:  # noqa: BLE001 - not acknowledged: it may be stored or not
                figures["failed sends"] += 1
            time.sleep(0.01)

    sending = threading.Thread(target=send)
    consumer = SimpleConsumer(CONFIG, PREFIX + "Plain", {PREFIX + "Normal": FilterExpression()}, 5)
    consumer.startup()
    sending.start()
    got: dict[str, int] = {}
    while time.monotonic() < until + 60 and (sending.is_alive() or not sent <= got.keys()):
        try:
            for received in consumer.receive(16, 10):
                body = received.body.decode()
                got[body] = got.get(body, 0) + 1
                consumer.ack(received)
        except Exception:  # noqa: BLE001 - it is redelivered
            figures["failed receives"] += 1
            time.sleep(0.2)
    sending.join()
    REPEATED.count = sum(got.values()) - len(got)
    assert sent <= got.keys(), sorted(sent - got.keys())[:20]
    assert sent
    return figures | {"sent": len(sent)}


def run(function: Callable[[], Any]) -> None:
    outcome: dict[str, Any] = {"case": function.__name__}
    started = time.monotonic()
    REPEATED.count = 0
    try:
        outcome |= {"ok": True, "seen": function()}
    except BaseException:  # noqa: BLE001 - the test shows it
        outcome |= {"ok": False, "seen": traceback.format_exc()[-1500:]}
    outcome["repeated"] = REPEATED.count
    outcome["seconds"] = round(time.monotonic() - started, 1)
    with OUTPUT:  # print writes a line and its end apart
        print(json.dumps(outcome, default=str), flush=True)


def main() -> None:
    """All cases at once: most of their time is waiting."""
    wanted = sys.argv[3:]
    chosen = [function for function in CASES if not wanted or function.__name__ in wanted]
    if "steady" in wanted:
        chosen.append(steady)
    threads = [threading.Thread(target=run, args=(function,)) for function in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the client's own threads would hold the process
