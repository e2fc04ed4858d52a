"""The testing kit that users add to their own suites."""

from __future__ import annotations

import queue
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.waiting import until

import orbitmq
from orbitmq import Message, ReceivedMessage, RetryLater
from orbitmq.client.sync import Producer, PullConsumer, PushConsumer
from orbitmq.errors import ConfigError
from orbitmq.testing import RunningBroker, run_broker

SUITE = """
from orbitmq import Message, sync

def test_send(rocketmq_broker, rocketmq_topic):
    with sync.Producer("p", rocketmq_broker.name_server) as producer:
        assert len(producer.queues(rocketmq_topic)) == 4
        assert producer.send(Message(rocketmq_topic, "x")).queue_offset == 0

def test_other_topic(rocketmq_topic):
    assert rocketmq_topic.startswith("test_other_topic")
"""


def test_fixtures_give_a_broker_and_new_topics(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(SUITE)
    # Named explicitly, in case the installation predates the entry point through which pytest finds it.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:orbitmq",
        "-p",
        "orbitmq.testing.pytest_plugin",
    ]
    ended = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_broker_with_data_of_its_own_keeps_it(tmp_path: Path) -> None:
    with run_broker(data=tmp_path) as broker, Producer("p", broker.name_server) as producer:
        broker.create_topic("kept", queue_count=1)
        producer.send(orbitmq.Message("kept", "still here"))
    with run_broker(data=tmp_path) as broker, PullConsumer("c", broker.name_server) as consumer:
        [queue] = consumer.fetch_queues("kept")
        assert [message.text() for message in consumer.pull(queue, 0).messages] == ["still here"]


def test_misspelt_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="autoCreateTopicEnabled"), run_broker(autoCreateTopicEnabled=False):
        pass


def test_public_names_load_on_first_use_only() -> None:
    script = (
        "import sys, orbitmq; assert not [m for m in sys.modules if m.startswith('orbitmq.')];"
        "import orbitmq; orbitmq.Producer; orbitmq.sync.Producer;"
        "from orbitmq import PushConsumer, Message, RetryLater"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


@pytest.mark.slow
def test_delays_and_retries_take_as_long_as_turning_the_clock() -> None:
    with run_broker() as broker:
        topic = broker.create_topic("delayed")
        seen: queue.Queue[tuple[str, int]] = queue.Queue()
        consumer = PushConsumer("delayed-readers", broker.name_server, start="first")

        @consumer.listen(topic)
        def handle(message: ReceivedMessage) -> None:
            seen.put((message.text(), message.attempt))
            if message.text() == "fails" and message.attempt < 4:
                raise RetryLater

        with consumer, Producer("delayed-writers", broker.name_server) as producer:
            producer.send(Message(topic, "in an hour", delay=timedelta(hours=1)))
            producer.send(Message(topic, "level 18", delay_level=18))
            producer.send(Message(topic, "now"))
            assert seen.get(timeout=10) == ("now", 1)
            broker.advance(timedelta(minutes=59))
            producer.send(Message(topic, "still now"))
            assert seen.get(timeout=10) == ("still now", 1), "the others wait for another minute"
            broker.advance(61)
            assert seen.get(timeout=10) == ("in an hour", 1)
            broker.advance(timedelta(hours=1))
            assert seen.get(timeout=10) == ("level 18", 1)
            producer.send(Message(topic, "fails"))
            for attempt in range(1, 5):
                assert seen.get(timeout=10) == ("fails", attempt)
                if attempt < 4:
                    settled(broker, seen)
        with pytest.raises(ValueError, match="only be moved forward"):
            broker.advance(-1)


def settled(broker: RunningBroker, seen: queue.Queue[tuple[str, int]]) -> None:
    """Advances the clock until the message that was sent back arrives; it may still be in flight to the broker."""

    def delivered() -> bool:
        broker.advance(timedelta(minutes=2))
        return not seen.empty()

    until(delivered, "the message that was sent back")
