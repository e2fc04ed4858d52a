"""The kit users put into their own suites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import orbitmq
from orbitmq.client.sync import Producer, PullConsumer
from orbitmq.errors import ConfigError
from orbitmq.testing import run_broker

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
    # Named, in case the installation is older than the entry point by which pytest finds it.
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
