"""OpenLineage events: names of data sets, states of a run, and a server that does not answer."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from orbitmq.pipeline import lineage
from orbitmq.pipeline.lineage import Dataset, Lineage, inputs_of, is_configured, lineage_of, outputs_of
from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import Plan, make_plan
from orbitmq.pipeline.run import BatchReport
from orbitmq.spark.errors import EnvironmentFault, RunFailed

DOCUMENT: dict[str, Any] = {
    "name": "orders",
    "mode": "batch",
    "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876",
    "sources": {
        "orders": {"kind": "topic", "topic": "orders, payments"},
        "stored": {"kind": "store", "path": "/data/store"},
        "prices": {"kind": "parquet", "path": "s3a://bucket/prices"},
    },
    "steps": [
        {
            "kind": "quality", "name": "good", "from": "orders", "rules": {"a": "true"},
            "deadLetter": {"topic": "rejected", "namesrvAddr": "10.0.0.9:9876"},
        }
    ],
    "sinks": [
        {"kind": "delta", "path": "/lake/orders", "name": "lake"},
        {"kind": "iceberg", "table": "shop.orders", "name": "ice", "catalog": "main"},
        {"kind": "jdbc", "url": "jdbc:postgresql://u:p@db:5432/shop?password=x", "table": "orders", "name": "db"},
        {"kind": "console"},
    ],
}  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(parse_pipeline(DOCUMENT, {}, {}), tmp_path)


def batch(query: str, rows: int) -> BatchReport:
    return BatchReport(query, 0, rows, 1.0, 1, None)


def test_data_sets_have_the_names_of_their_servers_and_no_secrets(plan: Plan) -> None:
    assert inputs_of(plan) == [
        Dataset("rocketmq://10.0.0.1:9876", "orders"),
        Dataset("rocketmq://10.0.0.1:9876", "payments"),
        Dataset("file", "/data/store"),
        Dataset("s3://bucket", "prices"),
    ]
    assert outputs_of(plan) == {
        "lake": Dataset("file", "/lake/orders"),
        "ice": Dataset("iceberg://main", "shop.orders"),
        "db": Dataset("postgresql://db:5432", "shop.orders"),
        "good_dead_letters": Dataset("rocketmq://10.0.0.9:9876", "rejected"),
    }


def test_events_are_emitted_only_where_openlineage_is_configured(tmp_path: Path, plan: Plan) -> None:
    assert not is_configured({"OPENLINEAGE_NAMESPACE": "x"}, tmp_path)
    assert is_configured({"OPENLINEAGE__TRANSPORT__TYPE": "file"}, tmp_path)
    assert not is_configured({"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "True"}, tmp_path)
    (tmp_path / "openlineage.yml").write_text("")
    assert is_configured({}, tmp_path)
    with lineage_of(plan, {}) as events:
        assert events is None


def test_a_run_is_written_by_the_file_transport_of_its_configuration(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    transport = json.dumps({"type": "file", "log_file_path": str(file), "append": True})
    environment = {
        "OPENLINEAGE__TRANSPORT": transport,
        "OPENLINEAGE_NAMESPACE": "shop",
        "OPENLINEAGE_PARENT_ID": "air/flow/dag.task/01941234-0000-7000-8000-000000000000",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with lineage_of(plan, environment) as events:
        assert events is not None
        events.report(batch("lake", 3))
        events.report(batch("lake", 4))
    with pytest.raises(RunFailed), lineage_of(plan, environment):
        raise RunFailed("sink lake: disk full")
    stop = threading.Event()
    with lineage_of(plan, environment, stop):
        stop.set()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["eventType"] for one in found] == ["START", "COMPLETE", "START", "FAIL", "START", "ABORT"]
    assert len({one["run"]["runId"] for one in found}) == 3
    complete, failed = found[1], found[3]
    assert complete["job"]["name"] == "orders"
    assert complete["job"]["namespace"] == "shop"
    assert complete["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    rows = {
        one["name"]: one.get("outputFacets", {}).get("outputStatistics", {}) for one in complete["outputs"]
    }
    assert rows["/lake/orders"]["rowCount"] == 7
    assert {one["name"] for one in complete["inputs"]} == {"orders", "payments", "/data/store", "prices"}
    assert failed["run"]["facets"]["errorMessage"]["message"] == "sink lake: disk full"
    parent = complete["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("air", "flow/dag.task")


class Hanging:
    """A server that accepts the first event and never answers."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.answer = threading.Event()
        self.emitted: list[Any] = []

    def emit(self, event: Any) -> None:
        self.entered.set()
        self.answer.wait(60)
        self.emitted.append(event)
        raise ConnectionError("gone")


def test_a_server_that_hangs_or_fails_neither_holds_up_nor_fails_a_run(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "_LAST_EVENTS_S", 0.05)
    monkeypatch.setattr(lineage, "_RUNNING_EVERY_S", 0.0)
    server = Hanging()
    events = Lineage(plan, server, {})
    events.start()
    assert server.entered.wait(10)
    for _ in range(200):
        events.report(batch("lake", 1))
    events.end("COMPLETE")
    assert "lineage event dropped" in caplog.text
    server.answer.set()


def test_a_configuration_that_cannot_be_used_is_refused(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"OPENLINEAGE__TRANSPORT": '{"type": "carrier pigeon"}'}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", environment["OPENLINEAGE__TRANSPORT"])
    with pytest.raises(EnvironmentFault, match="OpenLineage cannot be used"), lineage_of(plan, environment):
        pass
