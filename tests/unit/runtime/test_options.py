"""Options: one declaration parses, bounds and documents a value; Apache's ``.conf`` files are read as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import orbitmq
from orbitmq.auth.config import AuthConfig
from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.quotas import LimitsConfig
from orbitmq.errors import ConfigError
from orbitmq.filtersrv.config import FilterServerConfig
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.proxy.config import ProxyConfig
from orbitmq.runtime.apache_options import BROKER_KEYS, NAME_SERVER_KEYS, REFUSED, refusal_of
from orbitmq.runtime.options import (
    config_from_properties,
    decode_properties,
    escape_property,
    given_without_effect,
    kept_without_effect,
    option,
    options_of,
    parse_properties,
    render_value,
)
from orbitmq.store.config import StoreConfig
from orbitmq.transport.tls import TlsConfig

ROOT = Path(orbitmq.__file__).parent


class Flush(StrEnum):
    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass(frozen=True, kw_only=True)
class Config:
    port: int = option(9876, apache="listenPort", low=0, high=65535, doc="Port.")
    interval_ms: int = option(500, apache="flushIntervalCommitLog", low=1, reload=True, doc="Interval.")
    ratio: float = option(0.75, apache="ratio", low=0, high=1, doc="Ratio.")
    enabled: bool = option(True, apache="enabled", doc="Switch.")
    flush: Flush = option(Flush.ASYNC, apache="flushDiskType", doc="Mode.")  # noqa: RUF009 - gives a field
    level: str = option("a", apache="level", choices=("a", "b"), doc="Level.")
    home: Path | None = option(None, apache="home", doc="Folder.")  # noqa: RUF009 - gives a field
    limit: int | None = option(None, apache="limit", high=10, doc="Limit.")
    name: str = option("", apache="brokerName", doc="Name.")
    not_an_option: int = 3


def read(text: str) -> tuple[Config, list[str]]:
    return config_from_properties(Config, parse_properties(text, "broker.conf"))


def test_empty_text_gives_the_defaults() -> None:
    assert read("") == (Config(), [])


def test_every_type_is_read() -> None:
    config, unknown = read(
        "listenPort = 10911\nratio=0.5\nenabled=FALSE\nflushDiskType=SYNC_FLUSH\nlevel=b\nhome=data/store\n"
        "limit: 7\nbrokerName broker-a\n"
    )
    assert config == Config(
        port=10911,
        ratio=0.5,
        enabled=False,
        flush=Flush.SYNC,
        level="b",
        home=Path("data/store"),
        limit=7,
        name="broker-a",
    )
    assert unknown == []


def test_unknown_keys_are_given_back_in_order_and_do_no_harm() -> None:
    config, unknown = read("useEpollNativeSelector=true\nlistenPort=1\nzzz=\n")
    assert config.port == 1
    assert unknown == ["useEpollNativeSelector", "zzz"]


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("listenPort=many", "a whole number from 0 to 65535"),
        ("listenPort=65536", "a whole number from 0 to 65535"),
        ("listenPort=", "a whole number from 0 to 65535"),
        ("flushIntervalCommitLog=0", "a whole number of at least 1"),
        ("limit=11", "a whole number of at most 10"),
        ("ratio=2", "a number from 0 to 1"),
        ("ratio=nan", "a number from 0 to 1"),
        ("enabled=yes", "true or false"),
        ("flushDiskType=SOMETIMES", "one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("level=c", "one of a, b"),
    ],
)
def test_bad_value_names_file_line_key_value_and_what_is_accepted(line: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"# a comment\n\n{line}\n")
    key, _, value = line.partition("=")
    assert str(caught.value) == f"broker.conf:3: {key}={value!r} is not {accepted}"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1\nb:2\nc 3\nd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# no\n! no\n   # no\na=1 # yes", {"a": "1 # yes"}),
        ("a=one\\\n   two\\\n   three\nb=2", {"a": "onetwothree", "b": "2"}),
        ("a=one\\", {"a": "one"}),
        ("a=back\\\\slash\\\\\nb=2", {"a": "back\\slash\\", "b": "2"}),
        ("a\\=b=c\\:d", {"a=b": "c:d"}),
        ("a=\\u00e4\\t\\n\\q\\u12", {"a": "ä\t\nqu12"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("a\nb=", {"a": "", "b": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("namesrvAddr=h1:1;h2:2", {"namesrvAddr": "h1:1;h2:2"}),
    ],
)
def test_properties_text_is_read_as_java_reads_it(text: str, values: dict[str, str]) -> None:
    assert parse_properties(text, "x").values == values


def test_line_of_a_continued_value_is_where_it_starts() -> None:
    properties = parse_properties("a=1\n\nb=one\\\ntwo\nc=3", "x")
    assert properties.lines == {"a": 1, "b": 3, "c": 5}


def test_declared_options_say_all_about_themselves() -> None:
    by_name = {declared.name: declared for declared in options_of(Config)}
    assert "not_an_option" not in by_name
    assert len(by_name) == 9
    interval = by_name["interval_ms"]
    assert (interval.key, interval.default, interval.low, interval.reload, interval.doc) == (
        "flushIntervalCommitLog",
        500,
        1,
        True,
        "Interval.",
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (Flush.SYNC, "SYNC_FLUSH"),
        (Path("a/b"), "a/b"),
    ],
)
def test_values_are_printed_as_apache_prints_them(value: Any, text: str) -> None:
    assert render_value(value) == text


def test_number_that_apache_clamps_is_clamped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Clamped:
        ratio: int = option(75, apache="diskMaxUsedSpaceRatio", low=10, high=95, clamp=True, doc="Ratio.")

    properties = parse_properties("diskMaxUsedSpaceRatio=98", "broker.conf")
    assert config_from_properties(Clamped, properties)[0].ratio == 95
    assert "key=diskMaxUsedSpaceRatio given=98 used=95" in caplog.text
    properties = parse_properties("diskMaxUsedSpaceRatio=1", "broker.conf")
    assert config_from_properties(Clamped, properties)[0].ratio == 10


def test_key_nobody_knows_is_refused_with_the_one_that_was_meant() -> None:
    properties = parse_properties("\nlistenPrt=1\n", "broker.conf")
    with pytest.raises(
        ConfigError, match=r"^broker.conf:2: there is no option listenPrt; did you mean listenPort\?$"
    ):
        kept_without_effect(properties, ["listenPrt"], ["listenPort"], ["useTLS"])
    assert kept_without_effect(parse_properties("useTLS=false", "f"), ["useTLS"], [], ["useTLS"]) == {
        "useTLS": "false"
    }


@pytest.mark.parametrize("key", REFUSED)
def test_option_whose_promise_would_be_broken_is_refused(key: str) -> None:
    assert key in BROKER_KEYS | NAME_SERVER_KEYS
    with pytest.raises(ConfigError, match=f"^f:1: {key}=TRUE is refused: "):
        kept_without_effect(parse_properties(f"{key}=TRUE", "f"), [key], [], [key])
    assert refusal_of(key, "") == ""


def test_value_that_apache_accepts_is_refused_with_its_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"metricsExporterType=LOG is refused: metrics are only served over HTTP"
    ):
        config_from_properties(BrokerConfig, parse_properties("metricsExporterType=LOG", "broker.conf"))


CONFIGS: tuple[type[Any], ...] = (
    BrokerConfig,
    StoreConfig,
    AuthConfig,
    TlsConfig,
    LimitsConfig,
    NameServerConfig,
    FilterServerConfig,
    ProxyConfig,
)


def test_every_option_is_read_or_says_why_it_has_no_effect() -> None:
    """Any other option would be accepted silently."""
    shown = "runtime_info.py"  # prints the sizes of queues that do not exist here
    texts = [path.read_text() for path in ROOT.rglob("*.py") if path.name != shown]
    read = {name for text in texts for name in re.findall(r"\.([a-z_0-9]+)\b", text)}
    for kind in CONFIGS:
        for declared in options_of(kind):
            assert (declared.name in read) != bool(declared.without_effect), declared.key


def test_options_given_without_effect_are_found() -> None:
    config = BrokerConfig(async_send_enabled=False, ack_wait_max_ms=7)
    assert given_without_effect(config) == {"asyncSendEnable": "false", "waitTimeMillsInAckQueue": "7"}


@pytest.mark.parametrize(
    "text", ["ä=\U0001f600", "a b:c#d!e=f", " lead", "tail ", "\\", "", "\u0085\u2028\t\f\x0b"]
)
def test_property_survives_writing_and_reading(text: str) -> None:
    line = f"{escape_property('k' + text, is_key=True)}={escape_property(text)}"
    assert line.isascii()
    assert parse_properties(line, "x").values == {"k" + text: text}


def test_file_in_latin_1_is_read_as_java_reads_it() -> None:
    assert decode_properties("k=ä".encode("iso-8859-1")) == "k=ä"
    assert decode_properties("k=ä".encode()) == "k=ä"
