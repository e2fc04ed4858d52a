"""Quotas of sends by client and topic: accepted, refused and exempt sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.test_send_handlers import Sender

from orbitmq.broker.quotas import LimitsConfig, Quota, Quotas, parse_overrides
from orbitmq.broker.tables.clients import PeerInfo
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConfigError
from orbitmq.record.batch import encode_batch
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame, encode_request

FIELDS = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}


def request(body: bytes = b"x", opaque: int = 1, **fields: str) -> bytes:
    return encode_request(RequestCode.SEND_MESSAGE_V2, opaque, {**FIELDS, **fields}, body)


class Limited:
    """A sender whose broker has quotas."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.sender = Sender(directory)
        self.clock = ManualClock()
        self.quotas = Quotas(LimitsConfig(**options), self.clock.monotonic)
        self.sender.handlers.checks.quotas = self.quotas
        self.named("client-1")

    def named(self, client_id: str) -> None:
        self.sender.fake.attachment = PeerInfo(b"", {client_id})

    def send(self, *requests: bytes) -> list[Frame]:
        return self.sender.feed(*requests)

    def codes(self, count: int) -> list[int]:
        return sorted(frame.code for _ in range(count) for frame in self.send(request()))


def refused(count: int, of: int) -> list[int]:
    return [0] * (of - count) + [int(ResponseCode.SYSTEM_BUSY)] * count


def test_messages_of_a_client_pass_at_their_rate_and_other_clients_are_not_touched(tmp_path: Path) -> None:
    limited = Limited(tmp_path, client_messages=5)
    assert limited.codes(8) == refused(3, 8)
    limited.clock.advance(400)
    assert limited.codes(4) == refused(2, 4)
    limited.named("client-2")
    assert limited.codes(5) == [0] * 5
    assert limited.quotas.refused_count == 5


def test_refusal_says_which_quota_with_apaches_code_and_stores_nothing(tmp_path: Path) -> None:
    limited = Limited(tmp_path, topic_messages=1)
    first, second = (limited.send(request())[0] for _ in range(2))
    assert (first.code, second.code) == (0, ResponseCode.SYSTEM_BUSY)
    assert second.remark == (
        "[QUOTA]broker busy, start flow control for a while, topic:T may send 1 messages/s"
    )
    assert limited.sender.world.store.max_offset("T", 0) == 1


def test_message_larger_than_a_second_of_bytes_passes_once_and_is_paid_back(tmp_path: Path) -> None:
    limited = Limited(tmp_path, client_bytes=100)
    assert limited.send(request(b"x" * 350))[0].code == 0
    limited.clock.advance(2_000)
    assert limited.send(request(b"x"))[0].code == ResponseCode.SYSTEM_BUSY
    limited.clock.advance(600)
    assert limited.send(request(b"x"))[0].code == 0


def test_batch_counts_each_of_its_messages(tmp_path: Path) -> None:
    limited = Limited(tmp_path, topic_messages=10)
    batch = encode_batch([(0, b"x", b"UNIQ_KEY\x01%032d\x02" % number) for number in range(10)])
    assert limited.send(request(batch, m="true"))[0].code == 0
    assert limited.send(request())[0].code == ResponseCode.SYSTEM_BUSY


def test_override_wins_over_the_common_quota_in_both_directions(tmp_path: Path) -> None:
    limited = Limited(tmp_path, client_messages=2, overrides="client:client-1=0/0; topic:T=3/0")
    assert limited.codes(5) == refused(2, 5)
    limited.named("client-2")
    limited.clock.advance(1_000)
    assert limited.codes(5) == refused(3, 5)


def test_retry_and_system_topics_are_free(tmp_path: Path) -> None:
    limited = Limited(tmp_path, client_messages=1, topic_messages=1)
    assert limited.codes(1) == [0]
    limited.sender.world.topic("%RETRY%G")
    limited.sender.world.groups.find("G")
    for _ in range(3):
        answer = limited.send(request(b="%RETRY%G"))[0]
        assert answer.code != ResponseCode.SYSTEM_BUSY


def test_client_without_a_heartbeat_is_known_by_its_host(tmp_path: Path) -> None:
    limited = Limited(tmp_path, client_messages=1)
    limited.sender.fake.attachment = None
    assert limited.codes(2) == refused(1, 2)


def test_options_that_change_count_at_once_and_nothing_is_asked_when_all_are_off() -> None:
    config = LimitsConfig()
    quotas = Quotas(config, ManualClock().monotonic)
    assert not quotas.enabled
    object.__setattr__(config, "topic_bytes", 10)
    quotas.options_changed()
    assert quotas.enabled


def test_table_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("orbitmq.broker.quotas._BUCKETS_MAX", 3)
    limited = Limited(tmp_path, client_messages=1)
    for number in range(10):
        limited.named(f"client-{number}")
        assert limited.codes(1) == [0]
    assert len(limited.quotas._buckets) == 3


@pytest.mark.parametrize(
    "text", ["T=1/2", "topic:T", "topic:T=1", "topic:T=a/b", "queue:T=1/2", "topic:=1/2"]
)
def test_override_that_cannot_be_read_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="quotaOverrides"):
        LimitsConfig(overrides=text)


def test_overrides_are_read() -> None:
    assert parse_overrides("topic:A=B=5/0;client:x@y=1/2;") == {
        "topic:A=B": Quota(5, 0),
        "client:x@y": Quota(1, 2),
    }
