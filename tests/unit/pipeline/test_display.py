"""The output and counters of a running pipeline, and its messages when it fails."""

from __future__ import annotations

import io
import socket
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.ports import free_ports

from orbitmq.pipeline.display import PipelineMetrics, ProgressDisplay, print_table
from orbitmq.pipeline.failures import failure, reason
from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import Plan, make_plan
from orbitmq.pipeline.run import BatchReport, offsets_behind
from orbitmq.pipeline.session import session_options
from orbitmq.spark.errors import EnvironmentFault, SpecError

BATCH = BatchReport(
    "a", 3, 1000, 250.4, 4000, 17, {"good": {"_checked": 1000, "_rejected": 2, "positive": 2}}
)


def plan() -> Plan:
    document = {
        "name": "orders",
        "namesrvAddr": "127.0.0.1:1",
        "checkpoint": "state",
        "sources": {"orders": {"kind": "topic", "topic": "orders"}},
        "sinks": [{"kind": "parquet", "path": "lake", "name": "a"}],
    }
    return make_plan(parse_pipeline(document, {}, {}), Path("base"))


def test_batch_is_a_line_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    with ProgressDisplay(plan(), Console(file=text, width=200)) as display:
        display.report(BATCH)
        display.report(BatchReport("a", 4, 0, 0.0, 5, 0))
    assert text.getvalue() == "a batch=3 rows=1000 rows/s=250 ms=4000 behind=17 good_refused=2\n"
    display.report(BATCH)
    assert display.summary() == ["a: 2,000 rows", "good: 2,000 rows checked, 4 refused (positive 4)"]


def test_batch_is_a_row_of_a_table_on_a_terminal() -> None:
    text = io.StringIO()
    with ProgressDisplay(plan(), Console(file=text, width=120, force_terminal=True)) as display:
        display.report(BATCH)
    for part in ("pipeline orders", "rows/s", "behind", "1,000", "4,000", "17"):
        assert part in text.getvalue()


def test_table_shows_bodies_as_text_and_no_markup() -> None:
    text = io.StringIO()
    print_table(Console(file=text, width=300))("t", ["c"], [(b"[red]\xff",), (None,), ("x" * 300,)], True)
    assert "[red]\\xff" in text.getvalue()
    assert "x" * 197 + "..." in text.getvalue()
    assert "... and more rows" in text.getvalue()


def test_metrics_are_served_and_a_port_in_use_is_told() -> None:
    metrics = PipelineMetrics("orders")
    metrics.report(BATCH)
    [port] = free_ports()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(EnvironmentFault, match=f"metrics cannot be served on 127.0.0.1:{port}"),
    ):
        metrics.serve(port, "127.0.0.1")
    server, thread = metrics.serve(port, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    assert 'orbitmq_pipeline_rows_total{pipeline="orders",sink="a"} 1000.0' in text
    assert 'orbitmq_pipeline_behind{pipeline="orders",sink="a"} 17.0' in text
    assert (
        'orbitmq_pipeline_broken_rules_total{pipeline="orders",rule="positive",sink="a",step="good"} 2.0'
        in text
    )


def test_lag_is_the_sum_over_all_queues_new_ones_included() -> None:
    end = '{"t": {"a": {"0": 5, "1": 7}}}'
    latest = {"t": {"a": {"0": 9, "1": 7}, "b": {"0": 3}}}
    assert offsets_behind(end, latest) == 7
    assert offsets_behind(None, latest) is None
    assert offsets_behind("not json", latest) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[STREAM_FAILED] Query x terminated\n  File "a.py", line 3\n'
            "orbitmq.spark.source.DataLossError: messages were lost: t/a/0: 3 to 9\n\tat org.Foo(Foo.scala:1)",
            "messages were lost: t/a/0: 3 to 9",
        ),
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, pos 0)\n\n== SQL ==\nSELEC 1\n^^^\n",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, pos 0)",
        ),
        (
            "An error occurred while calling o1.x.\n: java.sql.SQLException: No suitable driver\n\tat java.base/X",
            "SQLException: No suitable driver",
        ),
        ("Traceback (most recent call last):\n  File \"a\", line 1\nKeyError: 'oops'\n", "KeyError: 'oops'"),
        ("", "RuntimeError"),
    ],
)
def test_reason_is_the_one_line_that_helps(text: str, expected: str) -> None:
    assert reason(RuntimeError(text)) == expected


def test_failure_keeps_an_error_of_ours() -> None:
    ours = SpecError("a.b", "no")
    assert failure("sink x", ours) is ours
    assert str(failure("sink x", RuntimeError("boom"))) == "sink x: boom"


def test_session_takes_the_users_settings_over_ours() -> None:
    local = session_options(
        "local[2]", {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=1"}
    )
    assert local["spark.ui.enabled"] == "true"
    assert local["spark.driver.extraJavaOptions"].endswith(" -Dx=1")
    assert local["spark.sql.shuffle.partitions"] == "4"
    assert "spark.sql.shuffle.partitions" not in session_options("spark://h:7077", {})
