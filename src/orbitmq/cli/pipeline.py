"""``orbitmq pipeline``: runs data pipelines from a file on Spark, and copies topics to Parquet and back.

The exit code is 0 on success (also when a signal stopped a stream), 1 if a pipeline failed while running, and 2 if it
could not start because of the file, Java, a package, a server or a topic.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from rich.console import Console

from orbitmq.cli.name_server import NameServerOption, name_server_option
from orbitmq.errors import OrbitError
from orbitmq.pipeline.load import load_pipeline
from orbitmq.pipeline.plan import Plan, lines, make_plan
from orbitmq.pipeline.times import milliseconds, moment_text
from orbitmq.spark.errors import EnvironmentFault, PipelineError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orbitmq.pipeline.cases import Case
    from orbitmq.pipeline.check import Finding
    from orbitmq.pipeline.status import PipelineStatus, StatusFile
    from orbitmq.pipeline.testing import Outcome

__all__ = ["pipeline_commands"]

PIPE_WIDTH: Final = 240
FAILED: Final = 1
MISUSED: Final = 2


@click.group("pipeline")
def pipeline_commands() -> None:
    """Data pipelines on Spark."""


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        name, found, text = value.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{value!r} is not name=value")
        pairs[name] = text
    return pairs


def _where(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Returns the Spark master.

    Without the option, it is empty under ``spark-submit``, which sets its own, and ``local[*]`` otherwise.
    """
    if value is not None:
        return value
    from orbitmq.pipeline.session import under_submit

    return "" if under_submit() else "local[*]"


_master = click.option(
    "--master",
    callback=_where,
    help="Where Spark runs: local[N], spark://host:port, yarn, k8s://...  "
    "[default: local[*], or that of spark-submit]",
)
_remote = click.option(
    "--remote", default="", metavar="sc://HOST:PORT", help="A Spark Connect server to run on instead."
)
_conf = click.option(
    "--conf", "conf", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="A setting of Spark."
)
_spark_log = click.option(
    "--spark-log",
    type=click.Choice(["OFF", "ERROR", "WARN", "INFO"]),
    default="OFF",
    show_default=True,
    help="Show Spark's own log on standard error.",
)
_namesrv = name_server_option()
_option = click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="Option of the topic format, such as accessKey, secretKey, tls.enable.",
)


@contextmanager
def _told() -> Iterator[None]:
    """Report every expected failure in one line and exit with its code."""
    try:
        yield
    except PipelineError as error:
        _fail(str(error), error.exit_code)
    except OrbitError as error:
        _fail(str(error), FAILED)
    except KeyboardInterrupt:
        _fail("stopped before it was done", FAILED)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"orbitmq: {message}", err=True)
    # Threads of Spark's gateway must not keep a finished process alive.
    sys.stderr.flush()
    sys.exit(code)


@contextmanager
def _session(
    master: str,
    name: str,
    conf: Mapping[str, str],
    log_level: str,
    python_path: Path | None = None,
    remote: str = "",
) -> Iterator[SparkSession]:
    from orbitmq.pipeline.session import build_session

    session = build_session(master, name, conf, log_level=log_level, python_path=python_path, remote=remote)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _stopped_by_signals(*, streaming: bool) -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and Ctrl-C set to stop a stream.

    A second signal, or any signal unless streaming, raises ``KeyboardInterrupt``.
    """
    stop = threading.Event()

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set() or not streaming:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- run -----------------------------------------------------------------------------------------------


@pipeline_commands.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A parameter of the file."
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, start nothing.")
@click.option("--offline", is_flag=True, help="With --dry-run: query no server.")
@click.option("--once", is_flag=True, help="Stop a stream after it has read what is stored now.")
@_master
@_remote
@_conf
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics on this port.")
@click.option("--metrics-address", default="127.0.0.1", show_default=True, help="Address of that port.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@_spark_log
def run_command(file: Path, **options: Any) -> None:
    """Run the pipeline of FILE (YAML, TOML or JSON)."""
    with _told():
        if options["dry_run"]:
            plan = _checked(file, options)
            for line in lines(plan, master=_place(options), once=options["once"]):
                click.echo(line)
            return
        _run(_plan(file, options["given"]), options)


@pipeline_commands.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A parameter of the file."
)
@click.option("--offline", is_flag=True, help="Query no server.")
@_conf
@_spark_log
def check_command(file: Path, **options: Any) -> None:
    """Report every problem in FILE by line: fields, SQL, columns, types, topics. Runs nothing."""
    with _told():
        plan = _checked(file, {**options, "master": "local[1]"})
        click.echo(f"{file}: {len(plan.relations)} relations and {len(plan.queries)} sinks, nothing wrong")


# -- export --------------------------------------------------------------------------------------------


@pipeline_commands.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--spark-pipelines",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a project for spark-pipelines to this directory, which must be new or empty.",
)
@click.option(
    "--set", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A parameter of the file."
)
def export_command(file: Path, directory: Path, **options: Any) -> None:
    """Write FILE as a project of Spark Declarative Pipelines, or say which parts do not fit and why."""
    from orbitmq.pipeline.check import findings_text
    from orbitmq.pipeline.export import misfits, project_files

    with _told():
        plan = _plan(file, options["given"])
        if found := misfits(plan):
            _report_findings(findings_text(file, found))
        if directory.exists() and any(directory.iterdir()):
            raise SpecError("--spark-pipelines", f"{directory} is not empty")
        for name, text in project_files(plan, file.name, directory).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, "utf-8")
        (directory / "pipeline-storage").mkdir()
        click.echo(f"{directory}: run it there with spark-pipelines run")


# -- test ----------------------------------------------------------------------------------------------


@pipeline_commands.command("test")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--source",
    "sources",
    multiple=True,
    callback=_pairs,
    metavar="NAME=FILE",
    help="Sample rows of a source.",
)
@click.option(
    "--expect",
    multiple=True,
    callback=_pairs,
    metavar="NAME=FILE",
    help="Rows that a relation or sink must have.",
)
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="Test cases.  [default: FILE with .test before its suffix, if --expect is not used]",
)
@click.option(
    "--set", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A parameter of the file."
)
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit report to this file.")
@_conf
@_spark_log
def test_command(file: Path, **options: Any) -> None:
    """Run the steps of FILE over sample rows and compare relations with expected rows. Asks no server.

    Exit code: 0 when every case passed, 1 when one failed, 2 when a case or the pipeline is invalid.
    """
    with _told():
        outcomes = _tested(file, _cases(file, options), options)
        failed = sum(not one.passed for one in outcomes)
        click.echo(f"{len(outcomes) - failed} passed, {failed} failed")
        if options["junit"] is not None:
            from orbitmq.pipeline.testing import junit

            try:
                options["junit"].write_bytes(junit(file.stem, outcomes))
            except OSError as error:
                raise EnvironmentFault(f"--junit {options['junit']}: {error}") from error
    if failed:
        sys.exit(MISUSED if any(one.error for one in outcomes) else FAILED)


def _cases(file: Path, options: Mapping[str, Any]) -> list[Case]:
    from orbitmq.pipeline.cases import case_of, cases_file, load_cases

    if not file.is_file():
        raise SpecError(str(file), "there is no such file")
    if options["expect"] or options["sources"]:
        if options["cases"] is not None:
            raise SpecError("--cases", "is not used together with --source and --expect")
        cases = [case_of(file.stem, options["sources"], options["expect"], {}, Path.cwd())]
    else:
        found = options["cases"] or cases_file(file)
        if not found.is_file():
            raise SpecError(
                str(found), "there are no test cases: write them there, or give --source and --expect"
            )
        cases = load_cases(found)
    return [dataclasses.replace(one, given={**one.given, **options["given"]}) for one in cases]


def _tested(file: Path, cases: list[Case], options: Mapping[str, Any]) -> list[Outcome]:
    """Runs test cases, prints the outcome of each as it completes, and returns all outcomes.

    Raises for an invalid file before Spark starts.
    """
    from orbitmq.pipeline.testing import plan_of_case, run_case

    directory = plan_of_case(file, cases[0], os.environ).directory
    outcomes: list[Outcome] = []
    with _session(
        "local[2]", f"orbitmq test {file.stem}", options["conf"], options["spark_log"], directory
    ) as session:
        for case in cases:
            outcome = run_case(session, file, case, os.environ)
            outcomes.append(outcome)
            word = "PASS" if outcome.passed else "ERROR" if outcome.error else "FAIL"
            click.echo(f"{word} {case.name} ({outcome.seconds:.1f} s)")
            for line in outcome.lines():
                click.echo(f"  {line}")
    return outcomes


# -- check ---------------------------------------------------------------------------------------------


def _checked(file: Path, options: Mapping[str, Any]) -> Plan:
    """Returns the plan of a valid file. Prints the problems of an invalid one and exits."""
    from orbitmq.pipeline.check import Finding, findings_text

    try:
        plan = _plan(file, options["given"])
    except SpecError as error:
        path = error.path.removeprefix(str(file)).removeprefix(": ")
        if not file.is_file() or re.match(r":\d", path) or error.problem.startswith("not "):
            raise
        _report_findings(findings_text(file, [Finding(path, error.problem)]))
    if found := _faults(plan, options):
        _report_findings(findings_text(file, found))
    return plan


def _faults(plan: Plan, options: Mapping[str, Any]) -> list[Finding]:
    from orbitmq.pipeline.check import analyse, ask_servers
    from orbitmq.pipeline.session import check_environment

    try:
        check_environment()
    except EnvironmentFault as error:
        if not options["offline"]:
            raise
        click.echo(f"orbitmq: note: SQL, columns and types are not checked: {error}", err=True)
        return []
    found = [] if options["offline"] else ask_servers(plan)
    name = f"orbitmq check {plan.pipeline.name}"
    with _session("local[1]", name, options["conf"], options["spark_log"], plan.directory) as session:
        return found + analyse(session, plan)


def _report_findings(texts: Iterator[str]) -> NoReturn:
    *first, last = texts
    for text in first:
        click.echo(f"orbitmq: {text}", err=True)
    _fail(last, MISUSED)


def _plan(file: Path, given: Mapping[str, str]) -> Plan:
    try:
        pipeline = load_pipeline(file, given, os.environ)
        plan = make_plan(pipeline, file.resolve().parent)
        if any(step.__struct_config__.tag == "python" for step in pipeline.steps):
            from orbitmq.pipeline.preflight import check_modules

            check_modules(plan)
    except SpecError as error:
        if error.path.startswith(str(file)):
            raise
        raise SpecError(f"{file}: {error.path}" if error.path else str(file), error.problem) from error
    return plan


@contextmanager
def _kept(status: StatusFile) -> Iterator[None]:
    """Record in ``status`` how a stream ends."""
    status.beat()
    try:
        yield
    except PipelineError as error:
        status.end(str(error))
        raise
    status.end()


def _place(options: Mapping[str, Any]) -> str:
    return str(options["remote"] or options["master"] or "the master of spark-submit")


def _run(plan: Plan, options: Mapping[str, Any]) -> None:
    from orbitmq.pipeline.session import check_environment

    check_environment(options["remote"])
    from orbitmq.pipeline.display import PipelineMetrics, ProgressDisplay, print_table
    from orbitmq.pipeline.lineage import Lineage, lineage_of
    from orbitmq.pipeline.preflight import check_servers
    from orbitmq.pipeline.run import BatchReport, run_batch, run_stream
    from orbitmq.pipeline.status import StatusFile

    for warning in plan.warnings:
        click.echo(f"orbitmq: note: {warning}", err=True)
    check_servers(plan)
    metrics = PipelineMetrics(plan.pipeline.name)
    if options["metrics_port"] is not None:
        metrics.serve(options["metrics_port"], options["metrics_address"])
    errors = Console(stderr=True) if sys.stderr.isatty() else Console(stderr=True, width=PIPE_WIDTH)
    output = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    display = ProgressDisplay(plan, errors, quiet=options["quiet"])

    status = StatusFile(plan)
    events: Lineage | None = None

    def report(batch: BatchReport) -> None:
        metrics.report(batch)
        display.report(batch)
        if events is not None:
            events.report(batch)
        if plan.streaming:
            status.report(batch)

    conf = {key: str(value) for key, value in plan.pipeline.spark.items()} | options["conf"]
    name = f"orbitmq pipeline {plan.pipeline.name}"
    where = (options["master"], name, conf, options["spark_log"], plan.directory, options["remote"])
    with _session(*where) as session:
        with (
            _stopped_by_signals(streaming=plan.streaming) as stop,
            display,
            lineage_of(plan, os.environ, stop) as events,
        ):
            view = print_table(output)
            if plan.streaming:
                with _kept(status):
                    run_stream(session, plan, view, report, stop, once=options["once"], beat=status.beat)
            else:
                run_batch(session, plan, view, report, stop)
        if not options["quiet"]:
            for line in display.summary():
                click.echo(line, err=True)


# -- table ---------------------------------------------------------------------------------------------


@pipeline_commands.command("table")
@click.argument("topic")
@click.argument("path")
@click.option(
    "--to", "form", required=True, type=click.Choice(["delta", "iceberg", "parquet"]), help="Kind of table."
)
@click.option(
    "--schema",
    default="",
    help="Decode bodies by this file: .avsc (Avro), .desc or .pb (Protobuf), .ddl (columns, for JSON); or by a "
    "schema registry: http://host:port.",
)
@click.option("--subject", default="", help="In the registry.  [default: TOPIC-value]")
@click.option("--message", default="", help="Protobuf: full name of the message.")
@click.option(
    "--framing",
    type=click.Choice(["none", "confluent", "single-object"]),
    default="none",
    show_default=True,
    help="Header before an Avro datum.",
)
@click.option("--key", default="", help="Keep one row for each value of this column: the newest.")
@click.option(
    "--partition-by",
    "partition",
    type=click.Choice(["none", "day", "hour"]),
    default="day",
    show_default=True,
    help="Partition the table by store time (UTC); not with --key.",
)
@click.option("--dead-letter", default="", help="Topic for messages that cannot be decoded or have no key.")
@click.option("--checkpoint", default="", help="Directory of the progress.  [default: PATH/_checkpoint]")
@click.option("--trigger", default="", help="Pause between micro-batches, as in '10 seconds'.")
@click.option("--max-rows", type=click.IntRange(min=1), help="Messages of a micro-batch.")
@click.option("--compact-every", default="", help="Join small files this often, such as '1 hour'.")
@click.option("--keep-versions", default="", help="Delete older versions after this time, such as '7 days'.")
@click.option(
    "--catalog",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="Property of an Iceberg catalog (type, uri, ...); without one, a catalog next to the table.",
)
@click.option("--once", is_flag=True, help="Stop after reading what is stored now.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, start nothing.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics on this port.")
@click.option("--metrics-address", default="127.0.0.1", show_default=True, help="Address of that port.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@_namesrv
@_option
@_master
@_remote
@_conf
@_spark_log
def table_command(topic: str, path: str, **options: Any) -> None:
    """Keep the table at PATH up to date with TOPIC. The next run resumes where this one stopped."""
    with _told():
        from orbitmq.pipeline.load import parse_pipeline
        from orbitmq.pipeline.table import TableRequest, table_document

        named = (
            "form", "schema", "subject", "message", "framing", "key", "partition", "dead_letter", "checkpoint",
            "trigger", "compact_every", "keep_versions", "options", "catalog",
        )  # fmt: skip
        request = TableRequest(
            topic=topic,
            path=_absolute(path),
            name_servers=options["namesrv"],
            rows_max=options["max_rows"],
            **{name: options[name] for name in named},
        )
        plan = make_plan(parse_pipeline(table_document(request), {}, {}), Path.cwd())
        if options["dry_run"]:
            found = _faults(plan, {**options, "offline": False})
            if found:
                _report_findings(f"{one.path}: {one.problem}" for one in found)
            for line in lines(plan, master=_place(options), once=options["once"]):
                click.echo(line)
            return
        _run(plan, options)


# -- status --------------------------------------------------------------------------------------------


@pipeline_commands.command("status")
@click.argument("path")
@click.option(
    "--set", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A parameter of the file."
)
@click.option(
    "namesrv",
    cls=NameServerOption,
    default="",
    help="Name servers to query for the lag instead of the known ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_option
def status_command(path: str, **options: Any) -> None:
    """Show the state of the stream of PATH: a pipeline file, a table's directory, or a checkpoint."""
    with _told():
        from orbitmq.pipeline.status import read_status

        place = _absolute(path)
        file = Path(path)
        name_servers = options["namesrv"]
        if file.is_file():
            plan = _plan(file, options["given"])
            place = plan.located(plan.pipeline.checkpoint)
            name_servers = name_servers or plan.pipeline.namesrv_addr
        elif (Path(place) / "_checkpoint").is_dir() or ("://" in place and not place.endswith("_checkpoint")):
            place = f"{place}/_checkpoint"
        found = read_status(place, name_servers, options["options"])
        if options["as_json"]:
            click.echo(json.dumps(dataclasses.asdict(found)))
            return
        for line in _status_lines(found):
            click.echo(line)


def _status_lines(found: PipelineStatus) -> Iterator[str]:
    where = f" on {found.host}, process {found.pid}" if found.host else ""
    yield f"{found.state}{where}" + (
        f", heard of {moment_text(found.written_ms)}" if found.written_ms else ""
    )
    if found.reason:
        yield f"  {found.reason}"
    for query in found.queries:
        since = moment_text(query.committed_ms) if query.committed_ms else "never"
        behind = "?" if query.behind is None else f"{query.behind:,}"
        open_batch = f", batch {query.planned} under way" if query.planned > query.committed else ""
        yield (
            f"{query.name}: batch {query.committed} committed {since}{open_batch}, {query.messages:,} messages "
            f"passed, {behind} behind"
        )
    for name, sink in found.sinks.items():
        yield f"  sink {name}: {sink.rows:,} rows, {sink.rows_per_second:,.0f} rows/s in the last batch"


@pipeline_commands.command("maintain")
@click.argument("path")
@click.option(
    "--set", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A parameter of the file."
)
@click.option("--sink", default="", metavar="NAME", help="Only this sink of a pipeline file.")
@click.option(
    "--keep-versions",
    default="",
    metavar="DURATION",
    help="Delete older versions and their files ('7 days'). [default: the sink's setting, else keep all]",
)
def maintain_command(path: str, **options: Any) -> None:
    """Join small files of the tables of PATH: a pipeline file, or a table's directory.

    A stream may write the tables meanwhile.
    """
    with _told():
        from orbitmq.pipeline.maintain import maintain, sinks_of_plan, sinks_of_table

        file = Path(path)
        if file.is_file():
            sinks = sinks_of_plan(_plan(file, options["given"]), options["sink"])
        else:
            sinks = sinks_of_table(_absolute(path))
        for name, sink in sinks.items():
            done = maintain(sink, options["keep_versions"])
            click.echo(
                f"{name}: {done.removed} files joined into {done.added}, {done.deleted} files of old versions deleted"
            )


# -- archive and replay --------------------------------------------------------------------------------


@pipeline_commands.command("archive")
@click.argument("directory")
@click.option("--topic", "-t", "topics", multiple=True, help="A topic; may be given several times.")
@click.option("--topic-pattern", help="A regular expression instead.")
@click.option("--since", help="Stored at this time or later: 2026-05-01T12:00:00Z or milliseconds.")
@click.option("--until", help="Stored before this time.")
@_namesrv
@_option
@_master
@_conf
@_spark_log
def archive_command(directory: str, topics: tuple[str, ...], **options: Any) -> None:
    """Write messages of topics to DIRECTORY as Parquet. Again: only what came since."""
    with _told():
        from orbitmq.pipeline.session import check_environment

        check_environment()
        from orbitmq.pipeline.archive import Archive, archive_topics, plan_archive, read_manifest

        since, until = _moment(options["since"], "--since"), _moment(options["until"], "--until")
        if bool(topics) == bool(options["topic_pattern"]):
            raise EnvironmentFault("give --topic (once or more) or --topic-pattern")
        directory = _absolute(directory)
        source = {"namesrvAddr": options["namesrv"], **options["options"]}
        source |= {"topic": ",".join(topics)} if topics else {"topicPattern": options["topic_pattern"]}
        known = read_manifest(directory) or Archive()
        ranges = plan_archive(source, since, until, known)
        span = ("" if since is None else moment_text(since), "" if until is None else moment_text(until))
        with _session(options["master"], "orbitmq archive", options["conf"], options["spark_log"]) as session:
            run = archive_topics(session, source, directory, ranges, known, span)
        by_topic: dict[str, int] = {}
        for one in run.queues:
            by_topic[one.topic] = by_topic.get(one.topic, 0) + one.end - one.start
        for topic, rows in by_topic.items():
            click.echo(f"{topic}: {rows} messages")
        if run.rows:
            click.echo(f"{run.rows} messages in {directory}, run {run.number}; every offset is there once")
        else:
            click.echo("nothing new")


@pipeline_commands.command("replay")
@click.argument("directory")
@click.option("--topic", "-t", "topics", multiple=True, help="Only this topic; may be given several times.")
@click.option(
    "--rename", multiple=True, callback=_pairs, metavar="OLD=NEW", help="Send messages of OLD to NEW."
)
@click.option("--since", help="Only messages stored at this time or later.")
@click.option("--until", help="Only messages stored before this time.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages per second, in all.")
@click.option("--new-ids", is_flag=True, help="Give messages new unique keys instead of those they had.")
@click.option("--keep-queue", is_flag=True, help="Send to the broker and queue a message came from.")
@_namesrv
@_option
@_master
@_conf
@_spark_log
def replay_command(directory: str, topics: tuple[str, ...], rename: dict[str, str], **options: Any) -> None:
    """Send the messages of an archive again: body, keys, tags and properties as they were."""
    with _told():
        from orbitmq.pipeline.session import check_environment

        check_environment()
        from orbitmq.pipeline.archive import Replay, replay
        from orbitmq.pipeline.preflight import check_target

        request = Replay(
            source=_absolute(directory),
            options={"namesrvAddr": options["namesrv"], **options["options"]},
            topics=topics,
            renamed=rename,
            since_ms=_moment(options["since"], "--since"),
            until_ms=_moment(options["until"], "--until"),
            rate=options["rate"],
            keep_ids=not options["new_ids"],
            keep_queue=options["keep_queue"],
        )
        check_target(request.options)
        with _session(options["master"], "orbitmq replay", options["conf"], options["spark_log"]) as session:
            sent, by_topic = replay(session, request)
        for topic, rows in by_topic.items():
            click.echo(f"{topic}: {rows} messages")
        click.echo(f"{sent} messages sent" if sent else "no message matches")


def _moment(text: str | None, option: str) -> int | None:
    return None if text is None else milliseconds(text, option)


def _absolute(path: str) -> str:
    return path.rstrip("/") if re.match(r"^\w[\w+.-]*://", path) else str(Path(path).resolve())
