"""OpenLineage events of a pipeline run: its inputs, outputs and outcome.

OpenLineage's own configuration decides where events go (``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG``,
``OPENLINEAGE__TRANSPORT__...`` or ``openlineage.yml``). Without it nothing is emitted. A separate thread emits events
from a bounded queue, so a slow or unavailable server neither delays nor fails a pipeline.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from orbitmq import __version__
from orbitmq.pipeline import spec
from orbitmq.pipeline.plan import Plan
from orbitmq.pipeline.run import BatchReport
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.errors import EnvironmentFault

__all__ = ["Dataset", "Lineage", "inputs_of", "is_configured", "lineage_of", "outputs_of"]

logger = logging.getLogger(__name__)

_PRODUCER: Final = f"urn:orbitmq:{__version__}"
_SETTINGS: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
_WAITING_MAX: Final = 100
_RUNNING_EVERY_S: Final = 60.0
_LAST_EVENTS_S: Final = 15.0


class Dataset(NamedTuple):
    """The name of a data set in OpenLineage's form."""

    namespace: str
    name: str


def is_configured(environment: Mapping[str, str], directory: Path) -> bool:
    """Returns whether OpenLineage is configured and not disabled."""
    if environment.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return False
    return (
        any(name.startswith(_SETTINGS) for name in environment) or (directory / "openlineage.yml").is_file()
    )


# -- names ---------------------------------------------------------------------------------------------


def inputs_of(plan: Plan) -> list[Dataset]:
    """Returns the data sets that a plan reads, in file order."""
    found: list[Dataset] = []
    for source in plan.pipeline.sources.values():
        if isinstance(source, spec.TopicSource):
            topics = source.topic.split(",") if isinstance(source.topic, str) else source.topic
            for topic in [one.strip() for one in topics if one.strip()] or [source.topic_pattern]:
                found.append(_topic(source.namesrv_addr or plan.pipeline.namesrv_addr, topic))
        else:
            found.append(_location(plan.located(source.path)))
    return list(dict.fromkeys(found))


def outputs_of(plan: Plan) -> dict[str, Dataset]:
    """Returns the data set that each sink writes, by sink. Consoles have none, and neither have sinks whose rows name
    their topics."""
    found: dict[str, Dataset] = {}
    for query in plan.queries:
        sink = query.sink
        match sink:
            case spec.TopicSink() if sink.topic:
                found[query.name] = _topic(sink.namesrv_addr or plan.pipeline.namesrv_addr, sink.topic)
            case spec.ParquetSink() | spec.DeltaSink():
                found[query.name] = _location(plan.located(sink.path))
            case spec.IcebergSink():
                uri = sink.properties.get("uri", "")
                where = uri.partition("?")[0] if uri.startswith("http") else f"iceberg://{sink.catalog}"
                found[query.name] = Dataset(where, sink.table)
            case spec.JdbcSink():
                found[query.name] = _database(sink)
            case _:
                pass
    return found


def _topic(servers: str, topic: str) -> Dataset:
    return Dataset(f"rocketmq://{servers.partition(';')[0].strip()}", topic)


def _location(path: str) -> Dataset:
    scheme, found, rest = path.partition("://")
    if not found or scheme == "file":
        return Dataset("file", rest if found else str(Path(path).absolute()))
    bucket, _, key = rest.partition("/")
    return Dataset(f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{bucket}", key or "/")


def _database(sink: spec.JdbcSink) -> Dataset:
    """Returns the server and ``database.table``. The parameters of the URL are left out, because they may contain a
    password."""
    address = sink.url.removeprefix("jdbc:").partition("?")[0].partition(";")[0]
    scheme, found, rest = address.partition("://")
    if not found:
        return Dataset(scheme.partition(":")[0], sink.table)
    host, _, database = rest.rpartition("@")[2].partition("/")
    return Dataset(f"{scheme}://{host}", f"{database}.{sink.table}" if database else sink.table)


# -- events --------------------------------------------------------------------------------------------


class Lineage:
    """Emits the events of one run. ``client`` is an ``OpenLineageClient``."""

    def __init__(
        self, plan: Plan, client: Any, environment: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        from openlineage.client.uuid import generate_new_uuid

        self._plan = plan
        self._client = client
        self._clock = clock
        self._namespace = environment.get("OPENLINEAGE_NAMESPACE", "default")
        self._parent = environment.get("OPENLINEAGE_PARENT_ID", "")
        self._run_id = str(generate_new_uuid())
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()
        self._said_at = clock.monotonic()
        self._waiting: queue.Queue[Any] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._emit_all, name="orbitmq-lineage", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Emits the start of the run."""
        self._put("START")

    def report(self, batch: BatchReport) -> None:
        """Counts the rows of a batch, and emits an event with the totals about once a minute."""
        now = self._clock.monotonic()
        with self._lock:
            self._rows[batch.query] = self._rows.get(batch.query, 0) + batch.rows
            due = now - self._said_at >= _RUNNING_EVERY_S
            if due:
                self._said_at = now
        if due:
            self._put("RUNNING")

    def end(self, state: str, error: str = "") -> None:
        """Emits the end of the run: ``COMPLETE``, ``ABORT`` or ``FAIL``. Waits up to ``_LAST_EVENTS_S`` seconds to
        queue the end marker, and again for pending events."""
        self._put(state, error)
        try:
            self._waiting.put(None, timeout=_LAST_EVENTS_S)
        except queue.Full:
            return
        self._thread.join(_LAST_EVENTS_S)
        if self._thread.is_alive():
            logger.warning("lineage events not emitted, the server does not respond run=%s", self._run_id)

    def _put(self, state: str, error: str = "") -> None:
        try:
            self._waiting.put_nowait(self._event(state, error))
        except queue.Full:
            logger.warning("lineage event dropped, the server does not answer state=%s", state)

    def _emit_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001  # a transport may raise anything, and no pipeline fails for it
                logger.warning("lineage event not emitted state=%s error=%s", event.eventType, error)

    def _event(self, state: str, error: str) -> Any:
        from openlineage.client import event_v2 as events
        from openlineage.client.facet_v2 import (
            error_message_run,
            job_type_job,
            output_statistics_output_dataset,
            parent_run,
        )

        facets: dict[str, Any] = {}
        if error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "python")
        namespace, _, rest = self._parent.partition("/")
        name, found, run_id = rest.rpartition("/")
        if found:
            facets["parent"] = parent_run.ParentRunFacet(
                parent_run.Run(run_id), parent_run.Job(namespace, name)
            )
        kind = job_type_job.JobTypeJobFacet(
            "STREAMING" if self._plan.streaming else "BATCH", "ORBITMQ", "PIPELINE"
        )
        outputs: dict[Dataset, int | None] = {}
        with self._lock:
            for query, dataset in outputs_of(self._plan).items():
                rows = self._rows.get(query)
                outputs[dataset] = (
                    rows if outputs.get(dataset) is None else (outputs[dataset] or 0) + (rows or 0)
                )
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        return events.RunEvent(
            eventType=events.RunState[state],
            eventTime=datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(),
            run=events.Run(self._run_id, facets),
            job=events.Job(self._namespace, self._plan.pipeline.name, {"jobType": kind}),
            producer=_PRODUCER,
            inputs=[events.InputDataset(*one) for one in inputs_of(self._plan)],
            outputs=[
                events.OutputDataset(
                    *one, {} if rows is None else {"outputStatistics": statistics(rowCount=rows)}
                )
                for one, rows in outputs.items()
            ],
        )


@contextmanager
def lineage_of(
    plan: Plan, environment: Mapping[str, str], stop: threading.Event | None = None
) -> Iterator[Lineage | None]:
    """Emits events from the start to the end of a run. Yields None if OpenLineage is not configured.

    Raises ``EnvironmentFault`` if it is configured but its package is missing or its configuration is wrong.
    """
    if not is_configured(environment, Path.cwd()):
        yield None
        return
    lineage = Lineage(plan, _client(), environment)
    lineage.start()
    try:
        yield lineage
    except BaseException as error:
        state = "ABORT" if isinstance(error, KeyboardInterrupt) else "FAIL"
        lineage.end(state, "" if state == "ABORT" else str(error))
        raise
    lineage.end("ABORT" if stop is not None and stop.is_set() else "COMPLETE")


def _client() -> Any:
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        raise EnvironmentFault(
            "OpenLineage is configured and its package is missing: pip install 'orbitmq[lineage]', or set "
            "OPENLINEAGE_DISABLED=true"
        ) from None
    try:
        return OpenLineageClient()
    except Exception as error:  # its transports may raise anything
        raise EnvironmentFault(f"OpenLineage cannot be used as it is configured: {error}") from error
