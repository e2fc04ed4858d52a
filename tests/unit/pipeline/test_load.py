"""Pipeline files: what is read, and the errors for an incorrect file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orbitmq.pipeline import spec
from orbitmq.pipeline.check import Finding, findings_text
from orbitmq.pipeline.load import load_pipeline, parse_pipeline, read_document
from orbitmq.pipeline.times import milliseconds, moment_text
from orbitmq.spark.errors import SpecError, did_you_mean


def document(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "name": "orders",
        "namesrvAddr": "127.0.0.1:9876",
        "checkpoint": "state",
        "sources": {"orders": {"kind": "topic", "topic": "orders"}},
        "steps": [],
        "sinks": [{"kind": "console"}],
    }
    return whole | changes


def refusal(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        parse_pipeline(document(**changes), {}, {})
    return str(caught.value)


YAML = """
name: orders
namesrvAddr: ${address}
parameters: {address: "127.0.0.1:9876", rows: 7}
checkpoint: state
sources:
  orders: {kind: topic, topic: orders, startingTimestamp: 2026-05-01T00:00:00Z}
sinks:
  - {kind: console, rows: "${rows}", title: "costs $${rows}"}
"""
TOML = """
name = "orders"
namesrvAddr = "127.0.0.1:9876"
checkpoint = "state"
[sources.orders]
kind = "topic"
topic = "orders"
startingTimestamp = 2026-05-01T00:00:00Z
[[sinks]]
kind = "console"
rows = 7
title = "costs ${rows:-nothing}"
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_file_of_either_form_gives_the_same_pipeline(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    loaded = load_pipeline(path)
    source = loaded.sources["orders"]
    assert isinstance(source, spec.TopicSource)
    assert milliseconds(source.starting_timestamp, "") == 1_777_593_600_000
    sink = loaded.sinks[0]
    assert isinstance(sink, spec.ConsoleSink)
    assert sink.rows == 7
    assert sink.title == ("costs ${rows}" if name == "a.yaml" else "costs nothing")
    assert loaded.namesrv_addr == "127.0.0.1:9876"


def test_parameter_given_beats_the_environment_which_beats_the_file() -> None:
    text = document(parameters={"where": "file"}, namesrvAddr="${where}")
    assert parse_pipeline(text, {}, {}).namesrv_addr == "file"
    assert parse_pipeline(text, {}, {"where": "environment"}).namesrv_addr == "environment"
    assert parse_pipeline(text, {"where": "given"}, {"where": "environment"}).namesrv_addr == "given"


def test_parameter_without_value_is_told_with_its_place() -> None:
    text = refusal(sources={"orders": {"kind": "topic", "topic": "${topc}"}})
    assert text.startswith("sources.orders.topic: parameter 'topc' has no value")


def test_parameter_nobody_asked_for_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no parameter 'rowz' \(did you mean 'rows'\?\)"):
        parse_pipeline(document(parameters={"rows": 3}), {"rowz": "1"}, {})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sourcs": {}}, "sourcs: there is no such field (did you mean 'sources'?)"),
        ({"mode": "Batch"}, "mode: 'Batch' is not accepted (did you mean 'batch'?)"),
        ({"sources": {}}, "sources: expected object of length >= 1"),
        (
            {"sources": {"a": {"topic": "x"}}},
            "sources.a.kind: this field is required; one of topic, store, parquet",
        ),
        (
            {"sources": {"a": {"kind": "topik"}}},
            "sources.a.kind: 'topik' is not accepted (did you mean 'topic'?)",
        ),
        (
            {"sources": {"a": {"kind": "topic", "startingoffsets": "x"}}},
            "sources.a.startingoffsets: there is no such field (did you mean 'startingOffsets'?)",
        ),
        ({"sources": {"a-b": {"kind": "topic"}}}, "sources: a name here has letters, digits and _"),
        (
            {"steps": [{"name": "d", "kind": "decode", "format": "avrò"}]},
            "steps[0].format: 'avrò' is not accepted (did you mean 'avro'?)",
        ),
        (
            {"steps": [{"name": "q", "kind": "quality", "rules": {"a": "b"}, "deadLetter": {"topics": "x"}}]},
            "steps[0].deadLetter.topics: there is no such field (did you mean 'topic'?)",
        ),
        (
            {"steps": [{"name": "q", "kind": "quality", "rules": {}}]},
            "steps[0].rules: expected object of length >= 1",
        ),
        ({"sinks": [{"kind": "parquet"}]}, "sinks[0].path: this field is required"),
        ({"sinks": [{"kind": "console", "rows": 0}]}, "sinks[0].rows: expected int >= 1"),
        ({"sinks": ["console"]}, "sinks[0]: expected object, got str"),
        (
            {"sinks": [{"kind": "jdbc", "url": "x", "table": "t"}]},
            "sinks[0].url: expected str of the form '^jdbc:'",
        ),
        ({"parameters": 3}, "parameters: expected a mapping"),
    ],
)
def test_wrong_field_is_told_with_its_path(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.yaml", "name: x\nname: y\n", "a.yaml:2:1: not YAML: 'name' stands here twice"),
        ("a.yaml", "a: [1\n", "a.yaml:2:1: not YAML"),
        ("a.toml", "a = \n", "a.toml: not TOML"),
        ("a.json", "{", "a.json: not JSON"),
        ("a.txt", "", "a.txt: the name of a pipeline file ends with"),
    ],
)
def test_file_that_cannot_be_read_is_told_with_the_place(
    tmp_path: Path, name: str, content: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(SpecError) as caught:
        read_document(path)
    assert str(caught.value).startswith(f"{tmp_path}/{text}")


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        read_document(tmp_path / "a.yaml")


def test_file_that_is_not_utf_8_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="cannot be read") as caught:
        read_document(path)
    [line] = findings_text(path, [Finding("", caught.value.problem)])
    assert line.startswith(f"{path}:1: cannot be read")


def test_document_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(SpecError, match="a pipeline is a mapping"):
        parse_pipeline([1], {}, {})


def test_time_is_read_in_utc_unless_it_says_otherwise() -> None:
    assert milliseconds("2026-05-01", "") == milliseconds("2026-05-01T02:00:00+02:00", "")
    assert milliseconds("1777593600000", "") == milliseconds(1_777_593_600_000, "")
    assert moment_text(1_777_593_600_123) == "2026-05-01T00:00:00.123+00:00"
    with pytest.raises(SpecError, match="--since: 'soon' is not a time"):
        milliseconds("soon", "--since")


def test_suggestion_names_all_when_none_is_close() -> None:
    assert did_you_mean("TOPIC", ["topic", "top"]) == " (did you mean 'topic'?)"
    assert did_you_mean("zzz", ["b", "a"]) == " (known: a, b)"
    assert did_you_mean("zzz", []) == ""
