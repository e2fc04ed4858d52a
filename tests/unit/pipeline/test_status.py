"""The input of ``orbitmq pipeline status``: the status file of a running stream, and Spark's checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from orbitmq.cli.pipeline import pipeline_commands
from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import make_plan
from orbitmq.pipeline.run import BatchReport
from orbitmq.pipeline.status import StatusFile, read_status
from orbitmq.spark.errors import EnvironmentFault
from orbitmq.testing.manual_clock import ManualClock

DOCUMENT = {
    "name": "orders",
    "namesrvAddr": "127.0.0.1:1",
    "checkpoint": "state",
    "sources": {"orders": {"kind": "topic", "topic": "orders"}},
    "sinks": [{"name": "lake", "kind": "delta", "path": "lake"}],
}


def status_file(directory: Path, clock: ManualClock) -> StatusFile:
    return StatusFile(make_plan(parse_pipeline(DOCUMENT, {}, {}), directory), clock=clock)


def checkpoint(directory: Path, planned: int, committed: int) -> None:
    """Writes a checkpoint like Spark's."""
    place = directory / "state" / "lake"
    for log in ("offsets", "commits"):
        (place / log).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"4c2a"}')
    for number in range(planned + 1):
        offsets = {"orders": {"broker-a": {"0": 10 * number, "1": 5}}, "read at": 1_700_000_000_000}
        (place / "offsets" / str(number)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(offsets)}')
    for number in range(committed + 1):
        (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_rows_add_up_over_runs_and_a_killed_one_is_told_from_a_running_one(tmp_path: Path) -> None:
    clock = ManualClock()
    for rows in (30, 12):
        running = status_file(tmp_path, clock)
        running.beat()
        clock.advance(2_000)
        running.report(BatchReport("lake", 4, rows, 100.0, 20, 7))
    found = read_status(str(tmp_path / "state"), clock=clock)
    assert (found.state, found.pid) == ("running", os.getpid())
    assert (found.sinks["lake"].rows, found.sinks["lake"].behind, found.sinks["lake"].batch_id) == (42, 7, 4)
    assert found.sinks["lake"].committed_ms == clock.now_ms()
    clock.advance(31_000)
    assert read_status(str(tmp_path / "state"), clock=clock).state == "silent"
    running.beat()
    assert read_status(str(tmp_path / "state"), clock=clock).state == "running"
    running.end("the disk is full")
    found = read_status(str(tmp_path / "state"), clock=clock)
    assert (found.state, found.reason) == ("failed", "the disk is full")


def test_a_checkpoint_alone_says_what_is_planned_committed_and_passed(tmp_path: Path) -> None:
    checkpoint(tmp_path, planned=3, committed=2)
    [query] = read_status(str(tmp_path / "state")).queries
    assert (query.name, query.query_id, query.planned, query.committed) == ("lake", "4c2a", 3, 2)
    assert query.messages == 25
    assert query.behind is None
    [same] = read_status(str(tmp_path / "state" / "lake")).queries
    assert same == query


def test_the_command_takes_a_file_a_table_or_a_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path, planned=0, committed=0)
    status_file(tmp_path, ManualClock()).end()
    (tmp_path / "orders.json").write_text(json.dumps(DOCUMENT | {"namesrvAddr": "127.0.0.1:1"}))
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "_checkpoint").symlink_to(tmp_path / "state")
    for path in ("orders.json", "state", "table"):
        result = CliRunner().invoke(
            pipeline_commands, ["status", str(tmp_path / path), "-o", "retryTimeoutMs=0"]
        )
        assert result.exit_code == 0, result.output
        assert result.output.startswith("ended on ")
        assert "lake: batch 0 committed" in result.output
    text = CliRunner().invoke(pipeline_commands, ["status", str(tmp_path / "state"), "--json"]).stdout
    assert json.loads(text.splitlines()[-1])["queries"][0]["committed"] == 0


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="holds no checkpoint"):
        read_status(str(tmp_path))
