"""The output at 80 columns, and ten wrong inputs, each with its exact text.

The screens are stored in ``tests/integration/screens``. To renew them after an intended change:
``ORBITMQ_WRITE_SCREENS=1 pytest tests/integration/test_screens.py``, then look at the difference.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from orbitmq import ConsumeFromWhere, Message
from orbitmq.admin import Admin, doctor
from orbitmq.client import PushConsumer
from orbitmq.model.route import BrokerData
from orbitmq.sync import Producer
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

SCREENS: Final = Path(__file__).parent / "screens"
COLUMNS: Final = 80
COMMAND: Final = (sys.executable, "-c", "from orbitmq.cli.entry import main; main('orbitmq')")
_SAME_WIDTH: Final = (
    (re.compile(r"127\.0\.0\.1:\d{5}\b"), "127.0.0.1:NNNNN"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "YYYY-MM-DD hh:mm:ss"),
    (re.compile(r"hh:mm:ss,\d{3}"), "hh:mm:ss,mmm"),
    (re.compile(r"\d+\.\d\d\("), "N.NN("),
    (re.compile(r"SPACE \d\.\d{4}"), "SPACE N.NNNN"),
    (re.compile(r"Hour \d+\.\d\d"), "Hour N.NN"),
    (re.compile(r"in \d+ ms"), "in N ms"),
    (re.compile(r"\b(fast|plain) kernel"), "K kernel"),
    (re.compile(r"is \d+% full"), "is NN% full"),
    (re.compile(r"orbitmq \d+\.\d+\.\d+"), "orbitmq N.N.N"),
    (re.compile(r"TPS: \d+\.\d+"), "TPS: N.N"),
)


def on_terminal(*arguments: str) -> str:
    """Returns the command's output on a terminal of 80 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NAMESRV_ADDR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"}
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # what Linux says when the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
    process.wait(timeout=60)
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def steady(text: str) -> str:
    for pattern, replacement in _SAME_WIDTH:
        text = pattern.sub(replacement, text)
    return text


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        running.create_topic("Orders", queue_count=2)
        with Producer("shop", running.name_server) as producer:
            for number in range(4):
                producer.send(Message("Orders", f"{number}", keys=f"order-{number}"))
        asyncio.run(consume(running.name_server))
        yield running


async def consume(name_server: str) -> None:
    consumer = PushConsumer("billing", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Orders")
    async with consumer, asyncio.timeout(30):
        count = 0
        async for _ in consumer:
            count += 1
            if count == 4:
                break


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("help", "--help"),
        ("up-help", "up --help"),
        ("doctor-help", "doctor --help"),
        ("clusterList", "admin clusterList -n {namesrv}"),
        ("topicList", "admin topicList -n {namesrv}"),
        ("topicStatus", "admin topicStatus -t Orders -n {namesrv}"),
        ("consumerProgress", "admin consumerProgress -n {namesrv}"),
        ("consumerProgress-group", "admin consumerProgress -g billing -s true -n {namesrv}"),
        ("doctor", "doctor -t Orders -n {namesrv}"),
        ("doctor-no-route", "doctor -t Missing -n {namesrv}"),
        ("error-no-such-topic", "admin topicStatus -t Order -n {namesrv}"),
        ("error-delete-of-nothing", "admin deleteTopic -t Order -c DefaultCluster -n {namesrv}"),
        ("error-delete-of-no-group", "admin deleteSubGroup -g biling -c DefaultCluster -n {namesrv}"),
        ("error-no-such-command", "clusterlist"),
    ],
)
def test_screen_is_the_one_that_was_looked_at(name: str, line: str, broker: RunningBroker) -> None:
    shown = steady(on_terminal(*line.format(namesrv=broker.name_server).split()))
    golden = SCREENS / f"{name}.txt"
    if os.environ.get("ORBITMQ_WRITE_SCREENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown)
    assert shown == golden.read_text()
    assert all(len(one) <= COLUMNS for one in shown.splitlines()), "a line that the terminal breaks"


# -- wrong inputs ------------------------------------------------------------------------------------------


def told(*arguments: str, stdin: str = "") -> list[str]:
    """Returns the lines on standard error of a command that fails."""
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.returncode not in (0, -15), done.stdout
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if " WARNING " not in line]


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = told("up", "--data", str(tmp_path), "--port", str(port), "--broker-port", "0", "--no-console")
    assert lines == [
        f"orbitmq: port {port} of 127.0.0.1 is in use. Stop the program that has it, or choose another port: "
        "--port, --broker-port, --metrics-port"
    ]


def test_wrong_address() -> None:
    assert told("produce", "Orders", "x", "-n", "127.0.0.1:1") == [
        "orbitmq: no name server answers: cannot connect to 127.0.0.1:1: [Errno 111] Connect call failed "
        "('127.0.0.1', 1). Check the name server address and that it can be reached from here",
        "  If none runs there: `orbitmq up` starts one, with a broker. If it is elsewhere: -n HOST:PORT.",
        "  If it takes only encrypted connections (TLS): --tls, or --tlsCa FILE with its authority.",
    ]


def test_unwritable_folder() -> None:
    assert told("up", "--data", "/proc/orbitmq", "--port", "0", "--broker-port", "0") == [
        "orbitmq: No such file or directory: '/proc/orbitmq'. Name a folder that this user may write: --data, "
        "--set storePathRootDir=..."
    ]


def test_second_instance(broker: RunningBroker) -> None:
    store = broker.data / "store"
    lines = told("broker", "--set", f"storePathRootDir={store}", "--set", "listenPort=0")
    assert lines == [
        f"orbitmq: {store}/lock is locked: another broker has this store open; stop it or use another directory"
    ]


def test_wrong_key() -> None:
    assert told("broker", "--set", "brokrName=x") == [
        "orbitmq: --set:1: there is no option brokrName; did you mean brokerName?"
    ]


def test_wrong_value() -> None:
    assert told("broker", "--set", "listenPort=abc") == [
        "orbitmq: --set:1: listenPort='abc' is not a whole number from 0 to 65535"
    ]


def test_missing_topic(broker: RunningBroker) -> None:
    assert told("consume", "Missing", "-n", broker.name_server) == [
        "orbitmq: no route for topic Missing: no live broker holds it (code 17)",
        "  `orbitmq admin topicList` lists the topics, `updateTopic` creates or changes one.",
        f"  `orbitmq doctor -n {broker.name_server}` searches for the cause.",
    ]


def test_message_that_is_too_big(broker: RunningBroker) -> None:
    assert told("produce", "Orders", "-n", broker.name_server, stdin="x" * 5_000_000 + "\n") == [
        "orbitmq: the body has 5000000 bytes; 1 to 4194304 (message_bytes_max) are allowed (code 13)",
        "  Send less in one message; a broker's own limit is maxMessageSize.",
    ]


def test_topic_without_permission() -> None:
    with run_broker() as own:
        own.create_topic("Closed")
        subprocess.run(
            [
                *COMMAND,
                *("admin", "updateTopicPerm", "-t", "Closed", "-p", "4", "-b", own.address),
                *("-n", own.name_server),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        lines = told("produce", "Closed", "x", "-n", own.name_server)
        assert lines == [
            "orbitmq: topic Closed has no queue that can be written. Create the topic, or set "
            "autoCreateTopicEnable=true on a broker registered with this name server",
            "  `orbitmq admin topicList` lists the topics, `updateTopic` creates or changes one.",
            f"  `orbitmq doctor -n {own.name_server}` searches for the cause.",
        ]
        found = asyncio.run(look(own.name_server, "Closed"))
        assert found[-1].what == "topic Closed: no broker lets it be written"
        assert "updateTopicPerm -t Closed -p 6" in found[-1].remedy


async def look(name_server: str, topic: str | None = None) -> list[doctor.Finding]:
    async with Admin(name_server) as admin:
        return (await doctor.checkup(admin, topic)).findings


def test_broker_that_is_down(tmp_path: Path) -> None:
    """Recently registered and gone: the name server may or may not still name it."""
    with run_broker(autoCreateTopicEnable=False) as own:
        settings = [f"storePathRootDir={tmp_path}", "listenPort=0", "brokerIP1=127.0.0.1", "brokerName=gone"]
        process = subprocess.Popen(
            [*COMMAND, "broker", "-n", own.name_server, *(p for s in settings for p in ("--set", s))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            address = re.search(r"address (\S+)", ready)
            assert address, ready
            wait_for_broker(own.name_server, "gone")
            subprocess.run(
                [
                    *(*COMMAND, "admin", "updateTopic", "-t", "Far", "-b", address[1]),
                    *("-n", own.name_server),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        lines = told("produce", "Far", "x", "-n", own.name_server)
        assert lines[-1] == f"  `orbitmq doctor -n {own.name_server}` searches for the cause.", lines


def wait_for_broker(name_server: str, name: str) -> None:
    async def registered() -> None:
        async with Admin(name_server) as admin, asyncio.timeout(30):
            known: dict[str, BrokerData] = {}
            while name not in known:  # every round is a request to the name server
                known = (await admin.cluster_info()).broker_addr_table

    asyncio.run(registered())
