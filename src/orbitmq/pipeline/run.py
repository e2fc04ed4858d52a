"""Runs a plan: creates the relations, starts the queries, reports every micro-batch, and shuts down in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orbitmq.pipeline import spec
from orbitmq.pipeline.batches import Written
from orbitmq.pipeline.failures import explained, failure
from orbitmq.pipeline.plan import Plan, Query, query_name
from orbitmq.pipeline.sinks import TableView, start_query, write_batch
from orbitmq.pipeline.sources import open_source
from orbitmq.pipeline.steps import apply_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchReport", "build_frames", "offsets_behind", "run_batch", "run_stream"]

_POLL_S: Final = 0.25
_LAST_REPORTS_S: Final = 10.0
_ROWS: Final = "_orbitmq_rows"
_BEGIN_S: Final = 30.0
_IDLE: Final = "Waiting for data to arrive"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one micro-batch or one write."""

    query: str
    batch_id: int
    rows: int
    """Rows written by the sink. With a key these can be fewer than it received."""
    rows_per_second: float
    """Rate of the whole query, or of this sink alone if several share a read."""
    duration_ms: int
    behind: int | None
    """Unread messages; None if the sources do not report that."""
    quality: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts by quality step: rows checked (``_checked``) and rejected (``_rejected``), and broken rules by name."""


Reporter = Callable[[BatchReport], None]


def build_frames(
    session: SparkSession, plan: Plan, observed: Mapping[str, Observation | str] | None = None
) -> dict[str, DataFrame]:
    """Returns all relations of a plan by name, and registers each as a view for SQL. ``observed`` has the
    observations that count rows, by quality step."""
    frames: dict[str, DataFrame] = {}
    streaming = {relation.name: relation.streaming for relation in plan.relations}
    for name, source in plan.pipeline.sources.items():
        with explained(f"sources.{name}"):
            frames[name] = open_source(session, plan, name, source, streaming=streaming[name])
            frames[name].createOrReplaceTempView(name)
    for number, step in enumerate(plan.pipeline.steps):
        counter = (observed or {}).get(step.name)
        made = apply_step(session, plan, step, frames, f"steps[{number}]", counter)
        for name, frame in made.items():
            frame.createOrReplaceTempView(name)
            frames[name] = frame
    return frames


def _ancestors(plan: Plan, names: set[str]) -> set[str]:
    inputs = {relation.name: relation.inputs for relation in plan.relations}
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(inputs[name])
    return found


# -- one batch -----------------------------------------------------------------------------------------


def run_batch(
    session: SparkSession, plan: Plan, view: TableView, report: Reporter, stop: threading.Event
) -> None:
    """Writes each sink once, one after the other. Raises ``PipelineError``."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = _counted_in(plan)
    observed = {step: Observation(step) for step in counted}
    frames = build_frames(session, plan, observed)
    # Console tables come last, because they read only a few rows and the other sinks provide the counts.
    for query in sorted(plan.queries, key=lambda one: isinstance(one.sink, spec.ConsoleSink)):
        if stop.is_set():
            return
        counter = Observation(_ROWS)
        frame = frames[query.relation].observe(counter, f.count(f.lit(1)).alias("rows"))
        with _timed() as took_ms:
            try:
                written = write_batch(frame, plan, query, view)
            except Exception as error:
                raise failure(f"sink {query.name}", error) from error
        rows = int(counter.get["rows"]) if written is None else written
        quality = {
            step: {key: int(value) for key, value in observed[step].get.items()}
            for step, name in counted.items()
            if name == query.name
        }
        duration = took_ms()
        report(BatchReport(query.name, 0, rows, rows * 1000 / max(duration, 1), duration, None, quality))


def _counted_in(plan: Plan) -> dict[str, str]:
    """Returns for each quality step the query that counts its rows. One is enough, because every query with the step
    sees all rows."""
    counted: dict[str, str] = {}
    for query in sorted(plan.queries, key=lambda one: isinstance(one.sink, spec.ConsoleSink)):
        names = _ancestors(plan, {query.relation})
        for relation in plan.relations:
            if isinstance(relation.definition, spec.QualityStep) and relation.name in names:
                counted.setdefault(relation.definition.name, query.name)
    return counted


@contextmanager
def _timed() -> Iterator[Callable[[], int]]:
    from orbitmq.runtime.clock import SYSTEM_CLOCK

    start = SYSTEM_CLOCK.monotonic()
    yield lambda: round((SYSTEM_CLOCK.monotonic() - start) * 1000)


# -- streams -------------------------------------------------------------------------------------------


def run_stream(
    session: SparkSession,
    plan: Plan,
    view: TableView,
    report: Reporter,
    stop: threading.Event,
    *,
    once: bool,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Runs until ``stop`` is set, a query fails (``PipelineError``) or, with ``once``, all available rows have been
    read. Calls ``beat`` several times a second."""
    from pyspark.sql import functions as f

    counted = _counted_in(plan)
    written: dict[tuple[str, int], Written] = {}
    listener = _listener(plan, report, counted, written)

    def note(sink: str, number: int, what: Written) -> None:
        written[sink, number] = what

    session.streams.addListener(listener)
    queries: dict[str, StreamingQuery] = {}
    try:
        frames = build_frames(session, plan, {step: step for step in counted})
        for group in plan.groups:
            if stop.is_set():
                break
            name = ", ".join(query.name for query in group)
            with explained(f"sink {name}"):
                counted_frame = frames[group[0].relation].observe(_ROWS, f.count(f.lit(1)).alias("rows"))
                queries[name] = start_query(counted_frame, plan, group, view, note, once=once)
            _let_begin(queries[name], stop, once=once)
            _raise_failed(queries)
        while not stop.wait(_POLL_S):
            beat()
            if _raise_failed(queries) == 0:
                break
    finally:
        _end(queries)
        listener.wait(_LAST_REPORTS_S, len(queries))
        session.streams.removeListener(listener)


def _raise_failed(queries: Mapping[str, StreamingQuery]) -> int:
    """Returns the number of running queries. Raises ``PipelineError`` if a query has failed."""
    active = 0
    for name, query in queries.items():
        if query.isActive:
            active += 1
        elif (error := query.exception()) is not None:
            raise failure(f"sink {name}", error) from error
    return active


def _let_begin(query: StreamingQuery, stop: threading.Event, *, once: bool) -> None:
    """Waits until a query is running before the next one starts or, with ``once``, until the query has finished.

    Spark gives a Python worker ten seconds to connect, which is too short for five queries at once on two cores.
    """
    waited_s = 0.0
    while query.isActive and (once or waited_s < _BEGIN_S):
        begun = query.lastProgress is not None or query.status["message"] == _IDLE
        if (begun and not once) or stop.wait(_POLL_S):
            return
        waited_s += _POLL_S


def _end(queries: Mapping[str, StreamingQuery]) -> None:
    from pyspark.errors import PySparkException

    for query in queries.values():
        try:
            query.stop()
        except (
            PySparkException
        ):  # still running after stopTimeout; exiting ends it, and its checkpoint stays intact
            continue


def _listener(
    plan: Plan, report: Reporter, counted: Mapping[str, str], written: dict[tuple[str, int], Written]
) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    by_name = {query_name(plan, group[0]): group for group in plan.groups}

    class Listener(StreamingQueryListener):
        """Reports micro-batches. Spark calls it on its own threads."""

        def __init__(self) -> None:
            self._known: set[str] = set()
            self._ended: set[str] = set()
            self._changed = threading.Condition()

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # the name is Spark's
            if event.name in by_name:
                self._known.add(str(event.runId))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            for query in by_name.get(event.progress.name or "", ()):
                progress = json.loads(event.progress.json)
                own = written.pop((query.name, int(progress.get("batchId", 0))), None)
                report(_report(query, progress, counted, own))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Does nothing, because only micro-batches are reported."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            with self._changed:
                self._ended.add(str(event.runId))
                self._changed.notify_all()

        def wait(self, timeout_s: float, count: int) -> None:
            """Waits up to ``timeout_s`` until Spark has delivered all events of ``count`` queries, because events
            arrive after a query has ended."""
            with self._changed:
                self._changed.wait_for(lambda: len(self._known & self._ended) >= count, timeout_s)

    return Listener()


def _report(
    query: Query, progress: Mapping[str, Any], counted: Mapping[str, str], own: Written | None
) -> BatchReport:
    duration_ms = int(
        progress.get("batchDuration") or progress.get("durationMs", {}).get("triggerExecution", 0)
    )
    observed = progress.get("observedMetrics") or {}
    # Not the source's row count: dead letters are only a few of those rows, and a join may produce more.
    rows = int(_row(observed[_ROWS]).get("rows") or 0) if _ROWS in observed else 0
    rate = float(progress.get("processedRowsPerSecond") or 0.0)
    if own is not None:
        rows = rows if own.rows is None else own.rows
        if query.group:
            rate = rows / max(own.seconds, 0.001)
    behind = [
        offsets_behind(source.get("endOffset"), source.get("latestOffset"))
        for source in progress.get("sources", ())
        if not str(source.get("description", "")).startswith("FileStreamSource")
    ]
    known = [one for one in behind if one is not None]
    quality = {
        name: {key: int(value or 0) for key, value in _row(values).items()}
        for name, values in observed.items()
        if counted.get(name) == query.name
    }
    return BatchReport(
        query.name,
        int(progress.get("batchId", 0)),
        rows,
        rate,
        duration_ms,
        sum(known) if known else None,
        quality,
    )


def _row(values: Any) -> Mapping[str, Any]:
    if isinstance(values, Mapping):
        return values
    return dict(values.asDict()) if hasattr(values, "asDict") else {}


def offsets_behind(end: Any, latest: Any) -> int | None:
    """Returns the number of messages between two offsets of format ``rocketmq``, given as values or as JSON text, or
    None if that is unknown."""
    try:
        end = json.loads(end) if isinstance(end, str) else end
        latest = json.loads(latest) if isinstance(latest, str) else latest
    except ValueError:
        return None
    if not isinstance(end, Mapping) or not isinstance(latest, Mapping):
        return None
    total = 0
    for key, newest in latest.items():
        reached = end.get(key)
        if isinstance(newest, Mapping):
            total += offsets_behind(reached or {}, newest) or 0
        elif isinstance(newest, int):
            total += max(0, newest - (reached if isinstance(reached, int) else 0))
    return total
