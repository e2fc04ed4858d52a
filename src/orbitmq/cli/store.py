"""``orbitmq store``: inspects the files of a store, ours or Apache's, even while it is in use. Only ``repair``
changes them.

The exit code is 0 on success, 1 if ``verify`` found errors or ``repair`` left some, and 2 if there is no store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, Final, NoReturn

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from orbitmq.errors import CorruptionError
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.store.config import StoreConfig
from orbitmq.store.tools import dump
from orbitmq.store.tools.offline import OfflineStore
from orbitmq.store.tools.verify import Report, verify

__all__ = ["store_commands"]

NOT_A_STORE: Final = 2
LIMIT_DEFAULT: Final = 1000
PIPE_WIDTH: Final = 240
_root = click.argument("root", type=click.Path(file_okay=False))
_log_path = click.option("--log-path", default="", help="Directory of the log, if it is not ROOT/commitlog.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
_limit = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="Maximum number of lines; 0: all.",
)


@click.group("store")
def store_commands() -> None:
    """Inspect the files of a store, or repair its log."""


@store_commands.group("dump")
def dump_commands() -> None:
    """Print the contents of the files."""


def _fail(message: str) -> NoReturn:
    click.echo(f"orbitmq: {message}", err=True)
    sys.exit(NOT_A_STORE)


@contextmanager
def _opened(root: str, log_path: str) -> Iterator[OfflineStore]:
    """Open the store below ``root``. Exits with one line if there is none or it cannot be read."""
    config = StoreConfig(root=root, commit_log_path=log_path)
    fs = LOCAL_FILE_SYSTEM
    if not any(
        fs.stat(path) for path in (*config.log_directories, config.path("consumequeue"), config.path("index"))
    ):
        _fail(f"{root} holds no store (no commitlog, consumequeue or index directory)")
    try:
        store = OfflineStore(config, fs)
        try:
            yield store
        finally:
            store.close()
    except (OSError, CorruptionError) as error:
        _fail(str(error))


def _time(milliseconds: int) -> str:
    if milliseconds <= 0:
        return "-"
    moment = datetime.fromtimestamp(milliseconds // 1000).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d}"


def _print(
    rows: Iterable[msgspec.Struct],
    *,
    as_json: bool,
    limit: int,
    columns: dict[str, Callable[[Any], object]],
) -> None:
    """Print rows as JSON lines or as a table with the given columns."""
    chosen = islice(rows, limit) if limit else iter(rows)
    if as_json:
        for row in chosen:
            click.echo(msgspec.json.encode(row).decode())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in chosen:
        # Text instead of markup, because topics and keys are untrusted.
        table.add_row(*(Text(str(value(row))) for value in columns.values()))
    # Lines may be long in a pipe; a terminal wraps them at its width.
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    console.print(table)
    rest = next(iter(rows), None) if limit and not isinstance(rows, list) else None
    if rest is not None:
        console.print(f"... more; --limit 0 shows all (shown: {limit})", markup=False)


@dump_commands.command("segments")
@_root
@_log_path
@_json
@_limit
def segments_command(root: str, log_path: str, as_json: bool, limit: int) -> None:
    """Log segments and how each one ends."""
    with _opened(root, log_path) as store:
        _print(
            dump.segment_rows(store),
            as_json=as_json,
            limit=limit,
            columns={
                "log offset": lambda row: row.log_offset,
                "bytes": lambda row: row.size_bytes,
                "used": lambda row: row.used_bytes,
                "records": lambda row: row.record_count,
                "first stored": lambda row: _time(row.first_store_ms),
                "last stored": lambda row: _time(row.last_store_ms),
                "end": lambda row: f"{row.end} {row.reason}".strip(),
            },
        )


@dump_commands.command("records")
@_root
@_log_path
@click.option("--start", type=click.IntRange(min=0), default=0, help="Log offset to begin at.")
@click.option("--topic", help="Only records of this topic.")
@click.option("--body", "with_body", is_flag=True, help="With the body (base64 in JSON).")
@_json
@_limit
def records_command(
    root: str, log_path: str, start: int, topic: str | None, with_body: bool, as_json: bool, limit: int
) -> None:
    """Message records of the log."""
    with _opened(root, log_path) as store:
        rows = dump.record_rows(store, start, with_body=with_body)
        columns: dict[str, Callable[[Any], object]] = {
            "log offset": lambda row: row.log_offset,
            "bytes": lambda row: row.size,
            "topic": lambda row: row.topic,
            "queue": lambda row: row.queue_id,
            "offset": lambda row: row.queue_offset,
            "stored": lambda row: _time(row.store_ms),
            "tags": lambda row: row.properties.get("TAGS", ""),
            "keys": lambda row: row.properties.get("KEYS", ""),
            "unique key": lambda row: row.properties.get("UNIQ_KEY", ""),
            "body": lambda row: row.error or (repr(row.body) if with_body else f"{row.body_bytes} bytes"),
        }
        chosen = (row for row in rows if topic in (None, row.topic) or row.error)
        _print(chosen, as_json=as_json, limit=limit, columns=columns)


@dump_commands.command("queues")
@_root
@click.option("--topic", help="Only this topic.")
@_json
@_limit
def queues_command(root: str, topic: str | None, as_json: bool, limit: int) -> None:
    """Consume queues and their offsets."""
    with _opened(root, "") as store:
        _print(
            dump.queue_rows(store, topic),
            as_json=as_json,
            limit=limit,
            columns={
                "topic": lambda row: row.topic,
                "queue": lambda row: row.queue_id,
                "min": lambda row: row.min_offset,
                "max": lambda row: row.max_offset,
                "first log offset": lambda row: row.first_log_offset,
                "last log offset": lambda row: row.last_log_offset,
                "files": lambda row: row.file_count,
            },
        )


@dump_commands.command("units")
@_root
@click.option("--topic", required=True)
@click.option("--queue", "queue_id", type=click.IntRange(min=0), required=True)
@click.option("--start", type=click.IntRange(min=0), default=0, help="Queue offset to begin at.")
@_json
@_limit
def units_command(root: str, topic: str, queue_id: int, start: int, as_json: bool, limit: int) -> None:
    """Units of one consume queue."""
    with _opened(root, "") as store:
        _print(
            dump.unit_rows(store, topic, queue_id, start),
            as_json=as_json,
            limit=limit,
            columns={
                "queue offset": lambda row: row.queue_offset,
                "log offset": lambda row: row.log_offset,
                "bytes": lambda row: row.size,
                "tag code": lambda row: row.tag_code,
            },
        )


@dump_commands.command("index")
@_root
@click.option(
    "--entries", "path", metavar="FILE", help="Show the entries of this file, named as in ROOT/index."
)
@_json
@_limit
def index_command(root: str, path: str | None, as_json: bool, limit: int) -> None:
    """Index files, or the entries of one."""
    with _opened(root, "") as store:
        if path is not None:
            full = next((one for one in store.index_paths() if one.endswith("/" + path)), None)
            if full is None:
                _fail(f"there is no index file {path}")
            _print(
                dump.entry_rows(store, full),
                as_json=as_json,
                limit=limit,
                columns={
                    "number": lambda row: row.number,
                    "key hash": lambda row: row.key_hash,
                    "log offset": lambda row: row.log_offset,
                    "seconds": lambda row: row.seconds,
                    "previous": lambda row: row.previous,
                },
            )
            return
        _print(
            dump.index_rows(store),
            as_json=as_json,
            limit=limit,
            columns={
                "file": lambda row: row.path.rpartition("/")[2],
                "entries": lambda row: row.entry_count,
                "slots used": lambda row: f"{row.used_slots} of {row.slot_count}",
                "begin": lambda row: _time(row.begin_ms),
                "end": lambda row: _time(row.end_ms),
                "log offsets": lambda row: row.error or f"{row.begin_log_offset} - {row.end_log_offset}",
            },
        )


@dump_commands.command("checkpoint")
@_root
@_json
def checkpoint_command(root: str, as_json: bool) -> None:
    """The checkpoint, and whether the last stop was clean."""
    with _opened(root, "") as store:
        _print(
            [dump.checkpoint_row(store)],
            as_json=as_json,
            limit=0,
            columns={
                "log flushed": lambda row: _time(row.physic_msg_timestamp),
                "queues flushed": lambda row: _time(row.logics_msg_timestamp),
                "index flushed": lambda row: _time(row.index_msg_timestamp),
                "log offset": lambda row: row.confirm_phy_offset,
                "queues' log offset": lambda row: row.logics_phy_offset,
                "abort file": lambda row: "present" if row.abort else "absent",
            },
        )


@store_commands.command("verify")
@_root
@_log_path
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def verify_command(root: str, log_path: str, as_json: bool, quiet: bool) -> None:
    """Check every record, queue unit and index entry."""
    with _opened(root, log_path) as store:
        config = store.config
    console = Console(stderr=True)
    try:
        with _progress(console, shown=not quiet and console.is_terminal) as progress:
            report = verify(root, config, progress=progress)
    except OSError as error:
        _fail(str(error))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _print_report(report)
    sys.exit(0 if report.ok else 1)


@store_commands.command("repair")
@_root
@_log_path
@click.option(
    "--from",
    "ha_address",
    metavar="HOST:PORT",
    help="Replication address of another broker of the group (its haListenPort, by default listenPort + 1): damaged "
    "parts of the log are fetched from it. Without it only queues are repaired.",
)
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, exists=True),
    help="broker.conf of the stopped broker: its TLS options and credentials, where haTlsEnable=true.",
)
@click.option("--dry-run", is_flag=True, help="Fetch and test, but write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
def repair_command(
    root: str, log_path: str, ha_address: str | None, config_file: str | None, dry_run: bool, as_json: bool
) -> None:
    """Fetch damaged parts of the log again from another broker, and rewrite damaged queue units from the log.

    The broker of this store must be stopped; the other one runs, master or slave.
    """
    from orbitmq.cli.log_peer import LogPeer, protection_of
    from orbitmq.errors import ConfigError
    from orbitmq.store.errors import StoreLocked
    from orbitmq.store.tools.repair import repair

    with _opened(root, log_path) as store:
        config = store.config
    try:
        fetch = None if ha_address is None else LogPeer(ha_address, protection_of(config_file)).fetch
        report = repair(root, fetch, config, dry_run=dry_run)
    except (OSError, ValueError, StoreLocked, CorruptionError, ConfigError) as error:
        _fail(str(error))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        sys.exit(0 if report.ok else 1)
    for one in report.ranges:
        outcome = ("would be repaired" if dry_run else "repaired") if one.repaired else f"left: {one.problem}"
        click.echo(f"log offset {one.start}: {one.end - one.start} bytes, {one.reason}: {outcome}")
    for queue in report.queues:
        outcome = "would be rewritten" if dry_run else "rewritten"
        units = "1 unit" if queue.unit_count == 1 else f"{queue.unit_count} units"
        click.echo(f"queue {queue.topic}/{queue.queue_id}: {units} {outcome} from the log")
    if report.rebuild:
        click.echo("queues and index lacked lost messages: removed, the next start builds them from the log")
    left = sum(1 for one in report.ranges if not one.repaired)
    click.echo(
        f"result      {len(report.ranges)} damaged ranges, {left} left; {len(report.queues)} damaged queues"
    )
    sys.exit(0 if report.ok else 1)


@contextmanager
def _progress(console: Console, *, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Shows one bar for each kind of work on standard error."""
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not shown) as bars:
        tasks: dict[str, Any] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield step


def _print_report(report: Report) -> None:
    state = "stopped in order" if report.clean else "killed, or a copy of a running one"
    if report.live:
        state = f"a broker is running; compared is what was settled up to log offset {report.log_end}"
    click.echo(f"store       {report.root} ({state})")
    click.echo(
        f"log         {report.record_count} records, {report.segment_count} segments, "
        f"offsets {report.log_start} to {report.log_end}"
    )
    click.echo(f"queues      {report.unit_count} units in {report.queue_count} queues")
    click.echo(f"index       {report.index_entry_count} entries in {report.index_file_count} files")
    for finding in report.findings:
        click.echo(f"{finding.severity:<11} {finding.area}: {finding.where}: {finding.text}")
    hidden = report.error_count + report.note_count - len(report.findings)
    if hidden:
        click.echo(f"            and {hidden} more")
    verdict = "no errors" if report.ok else f"{report.error_count} errors"
    click.echo(f"result      {verdict}, {report.note_count} notes")
