"""Filters of groups: registered by heartbeats, kept in consumerFilter.json, forgotten after a day."""

from __future__ import annotations

import json
import logging

import pytest

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.consumer_filters import ConsumerFilters, compile_subscription
from orbitmq.errors import FilterDataNotExist, FilterDataNotLatest, SubscriptionParseFailed
from orbitmq.model.subscription import SubscriptionData
from orbitmq.record.codec import encode_record
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.types import NewMessage
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock

DAY_MS = 24 * 3600 * 1000


class Kit:
    def __init__(self, **options: object) -> None:
        self.clock = ManualClock()
        self.fs = FaultyFileSystem()
        self.file = SafeFile(self.fs, "/store/config/consumerFilter.json")
        self.config = BrokerConfig(**options)  # type: ignore[arg-type]  # values of several types by name
        self.filters = self.again()

    def again(self) -> ConsumerFilters:
        filters = ConsumerFilters(self.config, self.clock, self.file, events=BrokerEvents())
        filters.load()
        return filters

    def content(self) -> str:
        found = self.file.load(lambda data: data.decode())
        assert found is not None
        return found


def sql(topic: str, expression: str, version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind, sub_version=version)


def record(properties: bytes, topic: str = "T") -> memoryview:
    host = b"\x7f\0\0\x01\0\0\x2a\x9f"
    return memoryview(encode_record(NewMessage(topic, 0, b"b", properties, 1, host), 0, 0, 1, host))


def selects(filters: ConsumerFilters, subscription: SubscriptionData, properties: bytes) -> bool:
    return filters.filter_for("g", subscription, from_request=False).matches_record(record(properties))


def test_registered_expression_filters_pulls() -> None:
    kit = Kit()
    wanted = sql("T", "a > 5")
    kit.filters.subscribed("g", [wanted, SubscriptionData(topic="U")])
    assert selects(kit.filters, wanted, b"a\x016\x02")
    assert not selects(kit.filters, wanted, b"a\x015\x02")
    first = kit.filters.filter_for("g", wanted, from_request=False)
    kit.filters.subscribed("g", [wanted])
    assert kit.filters.filter_for("g", wanted, from_request=False) is first, "compiled once"


def test_unknown_or_old_filter_is_refused() -> None:
    kit = Kit()
    with pytest.raises(FilterDataNotExist):
        kit.filters.filter_for("g", sql("T", "a > 5"), from_request=False)
    kit.filters.subscribed("g", [sql("T", "a > 5", 1)])
    with pytest.raises(FilterDataNotLatest):
        kit.filters.filter_for("g", sql("T", "a > 6", 2), from_request=False)


def test_newer_expression_replaces_and_older_is_ignored() -> None:
    kit = Kit()
    kit.filters.subscribed("g", [sql("T", "a > 5", 5)])
    kit.filters.subscribed("g", [sql("T", "a > 1", 4)])
    assert not selects(kit.filters, sql("T", "a > 5", 5), b"a\x015\x02")
    kit.filters.subscribed("g", [sql("T", "a > 1", 6)])
    assert selects(kit.filters, sql("T", "a > 1", 6), b"a\x015\x02")


def test_bad_expression_removes_the_old_one_so_that_pulls_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kit = Kit()
    kit.filters.subscribed("g", [sql("T", "a > 5", 1)])
    with caplog.at_level(logging.WARNING):
        kit.filters.subscribed("g", [sql("T", "a > ", 2)])
    assert "column 5" in caplog.text
    with pytest.raises(FilterDataNotExist):
        kit.filters.filter_for("g", sql("T", "a > ", 2), from_request=False)


def test_ignored_text_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit()
    with caplog.at_level(logging.WARNING):
        kit.filters.subscribed("g", [sql("T", "a LIKE 'x'")])
    assert "column=3" in caplog.text


def test_expression_in_the_request_needs_no_registration() -> None:
    kit = Kit()
    wanted = kit.filters.filter_for("g", sql("T", "a = 'x'"), from_request=True)
    assert wanted.matches_record(record(b"a\x01x\x02"))
    with pytest.raises(SubscriptionParseFailed, match="column"):
        kit.filters.filter_for("g", sql("T", "a ="), from_request=True)
    with pytest.raises(SubscriptionParseFailed, match="FOO"):
        compile_subscription("FOO", "x")


def test_file_has_apache_form_and_is_written_only_on_change() -> None:
    kit = Kit()
    kit.filters.subscribed("GroupA", [sql("TopicA", "a > 5", 1700000000001)])
    kit.filters.persist()
    content = kit.content()
    [data] = json.loads(content)["filterDataByTopic"]["TopicA"]["groupFilterData"].values()
    assert list(data) == [
        "bloomFilterData",
        "bornTime",
        "clientVersion",
        "consumerGroup",
        "dead",
        "deadTime",
        "expression",
        "expressionType",
        "topic",
    ]
    assert data["bloomFilterData"]["bitNum"] == 112
    assert len(data["bloomFilterData"]["bitPos"]) == 3
    assert content.startswith('{\n\t"filterDataByTopic":{\n\t\t"TopicA":{\n\t\t\t"groupFilterData":{\n')
    before = kit.fs.stat(kit.file.path)
    kit.clock.advance(60_000)
    kit.filters.subscribed("GroupA", [sql("TopicA", "a > 5", 1700000000001)])
    kit.filters.persist()
    assert kit.fs.stat(kit.file.path) == before


def test_loaded_filter_is_dead_until_its_group_is_back() -> None:
    kit = Kit()
    wanted = sql("T", "a > 5", 7)
    kit.filters.subscribed("g", [wanted])
    kit.clock.advance(3_600_000)
    kit.filters.persist()
    loaded = kit.again()
    assert '"dead":true' in loaded.encode().decode()
    assert selects(loaded, wanted, b"a\x016\x02")
    loaded.subscribed("g", [wanted])
    assert '"dead":false' in loaded.encode().decode()
    assert '"deadTime":0' in loaded.encode().decode()


def test_filter_of_a_gone_group_is_forgotten_after_a_day() -> None:
    kit = Kit()
    wanted = sql("T", "a > 5")
    kit.filters.subscribed("g", [wanted])
    kit.filters.subscribed("other", [wanted])
    kit.filters.group_gone("g")
    kit.clock.advance(DAY_MS - 1)
    kit.filters.persist()
    assert selects(kit.filters, wanted, b"a\x016\x02")
    kit.clock.advance(1)
    kit.filters.persist()
    with pytest.raises(FilterDataNotExist):
        kit.filters.filter_for("g", wanted, from_request=False)
    assert kit.filters.filter_for("other", wanted, from_request=False).node_count > 0
    assert '"g"' not in kit.content()


def test_topic_left_out_of_a_heartbeat_is_dead() -> None:
    kit = Kit()
    kit.filters.subscribed("g", [sql("T", "a > 5"), sql("U", "b = 'x'")])
    kit.filters.subscribed("g", [sql("U", "b = 'x'")])
    tables = json.loads(kit.filters.encode())["filterDataByTopic"]
    assert tables["T"]["groupFilterData"]["g"]["dead"] is True
    assert tables["U"]["groupFilterData"]["g"]["dead"] is False


def test_file_of_another_bitmap_size_or_broken_file_is_not_used() -> None:
    kit = Kit()
    wanted = sql("T", "a > 5")
    kit.filters.subscribed("g", [wanted])
    kit.filters.persist()
    kit.config = BrokerConfig(filter_consumers_expected=64)
    with pytest.raises(FilterDataNotExist):
        kit.again().filter_for("g", wanted, from_request=False)
    for broken in (
        b"{",
        b'{"filterDataByTopic":5}',
        b'{"filterDataByTopic":{"T":{"groupFilterData":{"g":{}}}}}',
    ):
        kit.file.save(broken)
        kit.file.save(broken)
        with pytest.raises(FilterDataNotExist):
            kit.again().filter_for("g", wanted, from_request=False)


def test_retried_message_is_judged_by_the_expression_of_its_own_topic() -> None:
    kit = Kit(filter_retries=True)
    kit.filters.subscribed("g", [sql("T", "a > 5")])
    retry = sql("%RETRY%g", "TRUE")
    predicate = kit.filters.filter_for("g", retry, from_request=True).matches_record
    assert predicate(record(b"RETRY_TOPIC\x01T\x02a\x016\x02"))
    assert not predicate(record(b"RETRY_TOPIC\x01T\x02a\x015\x02"))
    assert predicate(record(b"RETRY_TOPIC\x01Elsewhere\x02a\x015\x02"))
    assert predicate(record(b""))


def test_bitmap_has_the_bits_of_every_group_that_selects_the_message() -> None:
    kit = Kit(filter_bitmap_enabled=True)
    filters, bloom = kit.filters, kit.filters.bloom
    assert filters.bitmap("T", b"a\x016\x02") == b"", "nobody filters this topic"
    filters.subscribed("g", [sql("T", "a > 5")])
    filters.subscribed("h", [sql("T", "a > 7")])
    mine, other = bloom.positions("g#T"), bloom.positions("h#T")
    both = filters.bitmap("T", b"a\x018\x02")
    assert bloom.hits(both, mine)
    assert bloom.hits(both, other)
    one = filters.bitmap("T", b"a\x016\x02")
    expected = bytearray(bloom.byte_count)
    bloom.mark(expected, mine)
    assert one == expected
    assert filters.bitmap("T", b"a\x01x\x02") == bytes(bloom.byte_count)
    assert Kit().filters.bitmap("T", b"") == b"", "switched off"
