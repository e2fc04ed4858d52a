"""Arguments of ``read_topic`` and ``read_store`` become the options of the readers, or a clear refusal."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from orbitmq.arrow import read_store, read_topic
from orbitmq.arrow.settings import TopicSettings, store_options, topic_options
from orbitmq.client.options import Credentials
from orbitmq.errors import ConfigError
from orbitmq.spark.options import EARLIEST, LATEST, SourceOptions

SERVER: TopicSettings = {"name_servers": "127.0.0.1:9876"}


def parsed(topic: Any = "orders", start: Any = None, stop: Any = None, **more: Any) -> SourceOptions:
    settings: Any = SERVER | more
    return topic_options(topic, start, stop, settings)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV", "ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN", "TLS", "TLS_CA", "TLS_CERT"):
        monkeypatch.delenv(f"ORBITMQ_{name}", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_a_read_is_of_everything_unless_bounds_are_given() -> None:
    options = parsed()
    assert (options.topics, options.starting, options.ending) == (("orders",), EARLIEST, LATEST)
    assert parsed(["a", "b"]).topics == ("a", "b")


@pytest.mark.parametrize(
    "moment",
    [
        "2026-11-19T12:00:00+00:00",
        "2026-11-19 12:00",
        1_795_089_600_000,
        datetime(2026, 11, 19, 12, tzinfo=UTC),
        datetime(2026, 11, 19, 14, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_time_may_be_text_number_or_datetime_and_is_utc(moment: Any) -> None:
    assert parsed(start=moment).starting_timestamp_ms == 1_795_089_600_000
    assert parsed(stop=moment).ending_timestamp_ms == 1_795_089_600_000
    assert store_options("/x", {"start": moment}).starting_ms == 1_795_089_600_000


def test_offsets_and_queues_are_given_by_topic_and_broker() -> None:
    offsets = {"orders": {"broker-a": {0: 7, "1": 8}}}
    assert parsed(start=offsets).starting == {"orders": {"broker-a": {"0": 7, "1": 8}}}
    assert parsed(queues=[1, 0]).assigned == (("orders", "", 0), ("orders", "", 1))
    assert parsed(queues={"broker-a": [2]}).assigned == (("orders", "broker-a", 2),)


def test_a_namespace_is_put_before_topics_groups_and_offsets() -> None:
    options = parsed(["a", "b"], {"a": {"x": {"0": 1}}}, namespace="shop", group="g")
    assert options.topics == ("shop%a", "shop%b")
    assert options.group == "shop%g"
    assert options.starting == {"shop%a": {"x": {"0": 1}}}


def test_servers_and_keys_default_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITMQ_NAMESRV", "10.0.0.1:9876")
    monkeypatch.setenv("ORBITMQ_ACCESS_KEY", "key")
    monkeypatch.setenv("ORBITMQ_SECRET_KEY", "secret")
    access = topic_options("orders", None, None, {}).access
    assert (access.name_servers, access.credentials) == ("10.0.0.1:9876", Credentials("key", "secret"))
    given = parsed(credentials=Credentials("a", "b")).access
    assert (given.name_servers, given.credentials) == ("127.0.0.1:9876", Credentials("a", "b"))


def test_one_tls_setting_is_one_context_so_that_connections_are_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parsed().access.tls is None
    assert parsed(tls=True).access == parsed(tls=True).access
    context = ssl.create_default_context()
    given = parsed(tls=context).access.tls
    assert given is not None
    assert given.context() is context
    monkeypatch.setenv("ORBITMQ_TLS", "true")
    found = parsed().access
    assert found == parsed().access
    assert found.tls is not None
    assert found.tls.context().verify_mode == ssl.CERT_REQUIRED
    assert parsed(tls=False).access.tls is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"topic": ""}, "needs the name of a topic"),
        ({"topic": []}, "needs the name of a topic"),
        ({"start": 42}, "offsets are given by queue"),
        ({"start": "yesterday"}, "ISO 8601"),
        ({"stop": "earliest"}, "latest, a time or offsets"),
        ({"start": "group"}, "group"),
        ({"tags": "A", "sql": "a > 1"}, "exclude each other"),
        ({"sql": "a >"}, "sql"),
        ({"options": {"pullBatchsize": "1", "nonsense": "2"}}, "nonsense"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parsed(**arguments)


def test_a_table_without_a_server_unknown_columns_and_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="ORBITMQ_NAMESRV"):
        read_topic("orders")
    with pytest.raises(ConfigError, match="no column 'boddy'"):
        read_topic("orders", columns=["boddy"], **SERVER)
    with pytest.raises(ConfigError, match="a list of names"):
        read_topic("orders", columns="body", **SERVER)
    with pytest.raises(TypeError, match="tag'"):
        read_topic("orders", **SERVER, tag="A")  # type: ignore[call-arg]  # the mistake to be told
    with pytest.raises(TypeError, match="topics'"):
        read_store("/x", topics="a")  # type: ignore[call-arg]  # the same


def test_creating_a_table_asks_no_server() -> None:
    table = read_topic("orders", columns=["body"], name_servers="127.0.0.1:1")
    assert table.schema.names == ["body"]
    assert table.reader().schema == table.schema
