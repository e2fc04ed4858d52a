"""Runs a live PostgreSQL, Debezium and a pipeline under kills, and compares the tables with the database.

    python -m benchmarks.cdc [--changes 20000] [--keys 2000] [--kills 4] [--seconds 600] [--form delta|iceberg]

A separate database (``initdb``, as user postgres when run as root) receives inserts, updates, deletes, changed keys,
large values that PostgreSQL does not resend, a truncate and a new column. Debezium's embedded engine (from Maven
Central) sends the changes through a relay to a topic; ``orbitmq pipeline run`` maintains the current rows and the
history. Debezium, pipeline and broker are killed with SIGKILL in turn. At the end the table of current rows is read
without Spark (deltalake and polars, or pyiceberg and polars) and compared with the database row by row. The history
is compared with an audit table filled by triggers.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from benchmarks.spark import jars
from tests.support.ports import broker_ports, free_ports

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.errors import OrbitError

TOPIC: Final = "shop.public.customers"
MARKS: Final = "shop.public.mark"
NAME: Final = "shop_customers"
COLUMNS: Final = ("id", "name", "balance", "note")
_POSTGRES: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_TABLES: Final = """
CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL, balance numeric(12,2) NOT NULL, note text);
CREATE TABLE mark (n serial PRIMARY KEY);
CREATE TABLE audit (seq bigserial, op text, id integer, name text, balance numeric(12,2), note text);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'TRUNCATE' THEN INSERT INTO audit (op) VALUES ('t'); RETURN NULL; END IF;
  IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND OLD.id <> NEW.id) THEN
    INSERT INTO audit (op, id) VALUES ('d', OLD.id); END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO audit (op, id, name, balance, note) VALUES ('u', NEW.id, NEW.name, NEW.balance, NEW.note); END IF;
  RETURN NULL; END $$;
CREATE TRIGGER rows AFTER INSERT OR UPDATE OR DELETE ON customers FOR EACH ROW EXECUTE FUNCTION noted();
CREATE TRIGGER emptied AFTER TRUNCATE ON customers FOR EACH STATEMENT EXECUTE FUNCTION noted();
"""
_PIPELINE: Final = """
name: customers
namesrvAddr: {name_server}
checkpoint: {work}/state
trigger: 1 second
sources:
  events: {{kind: topic, topic: {name}, startingOffsets: earliest, maxOffsetsPerTrigger: 20000}}
steps:
  - {{name: changes, kind: decode, format: debezium, schema: "{schema}"}}
sinks:
  - {{kind: {form}, name: present, key: id, scd: 1, {present}}}
  - {{kind: {form}, name: history, key: id, scd: 2, {history}}}
"""
_SCHEMA: Final = "id int, name string, balance decimal(12,2), note string"


class Database:
    """A separate PostgreSQL, on a socket and a loopback port."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        self._directory = directory
        self._user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        directory.mkdir()
        if self._user:
            shutil.chown(directory, "postgres", "postgres")
        data = directory / "data"
        self._tool("initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "-E", "UTF8")
        options = f"-p {port} -k {directory} -h 127.0.0.1 -c wal_level=logical -c fsync=off"
        self._tool("pg_ctl", "-D", str(data), "-w", "-l", str(directory / "log"), "-o", options, "start")
        self.run(_TABLES)

    def _tool(self, name: str, *arguments: str) -> None:
        command = [*self._user, str(_POSTGRES[-1] / name), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd="/")

    def stop(self) -> None:
        self._tool("pg_ctl", "-D", str(self._directory / "data"), "-m", "immediate", "stop")

    def run(self, sql: str) -> str:
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-qAt"]
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1"], input=sql, text=True, check=True, capture_output=True
        )
        return done.stdout

    def rows(self, query: str) -> list[list[str]]:
        text = self.run(f"COPY ({query}) TO STDOUT (FORMAT csv, NULL '\\N')")
        csv.field_size_limit(1 << 24)
        return list(csv.reader(io.StringIO(text)))


def changes(draw: random.Random, count: int, keys: int) -> str:
    """Returns SQL for about that many row changes; each statement is a transaction."""
    lines: list[str] = []
    large = "repeat(md5(random()::text), 200)"  # does not compress below the size that is stored out of line
    while count > 0:
        start, size = draw.randrange(keys), draw.choice((1, 5, 50))
        span = f"id BETWEEN {start} AND {start + size - 1}"
        kind = draw.random()
        if kind < 0.45:
            lines.append(
                f"INSERT INTO customers SELECT i, 'n' || i, i % 1000, CASE WHEN i % 10 = 0 THEN {large} END "
                f"FROM generate_series({start}, {start + size - 1}) i "
                "ON CONFLICT (id) DO UPDATE SET balance = customers.balance + 1;"
            )
        elif kind < 0.85:
            lines.append(f"UPDATE customers SET balance = balance + 0.01, name = name || 'x' WHERE {span};")
        elif kind < 0.95:
            lines.append(f"DELETE FROM customers WHERE {span};")
        else:
            lines.append(f"UPDATE customers SET id = id + {keys * 10} WHERE id = {start};")
            lines.append(f"UPDATE customers SET id = {start} WHERE id = {start + keys * 10};")
        count -= size
    return "\n".join(lines)


class Parts:
    """Broker, Debezium and pipeline, each a process that can be killed and restarted."""

    def __init__(self, work: Path, database: Database, form: str) -> None:
        self._work, self._form = work, form
        self._ports = broker_ports()
        self.name_server = f"127.0.0.1:{self._ports['name_server_port']}"
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.relayed = self.mark = 0
        self.schema = _SCHEMA
        self._classes = work / "classes"
        self._classpath = ":".join([*jars("debezium"), str(self._classes)])
        source = Path(__file__).parent / "java" / "ChangeRelay.java"
        subprocess.run(
            ["javac", "-nowarn", "-d", self._classes, "-cp", self._classpath, str(source)], check=True
        )
        settings = {
            "name": "relay",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": work / "offsets",
            "offset.flush.interval.ms": 1000,
            "database.hostname": "127.0.0.1",
            "database.port": database.port,
            "database.user": "postgres",
            "database.password": "x",
            "database.dbname": "postgres",
            "topic.prefix": "shop",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public.customers,public.mark",
            "converter.schemas.enable": "false",
            "decimal.handling.mode": "string",
            "tombstones.on.delete": "false",
            "skipped.operations": "none",
            "provide.transaction.metadata": "true",
        }
        (work / "relay.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def start(self, name: str) -> None:
        getattr(self, f"_start_{name}")()

    def _popen(self, name: str, command: list[str], **streams: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, text=True, start_new_session=True, cwd=self._work, **streams)
        self._processes[name] = process
        return process

    def _start_broker(self) -> None:
        program = (
            "import sys\nfrom orbitmq.testing import run_broker\n"
            f"with run_broker(**{self._ports}, data='{self._work}/store') as b:\n"
            f"    b.create_topic('{NAME}', queue_count=1)\n    print('up', flush=True)\n    sys.stdin.read()\n"
        )
        (self._work / "store").mkdir(exist_ok=True)
        with (self._work / "broker.log").open("a") as log:
            process = self._popen(
                "broker",
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "up", (self._work / "broker.log").read_text()[-2000:]

    def _start_debezium(self) -> None:
        command = ["java", "-Xmx256m", "-cp", self._classpath, "ChangeRelay"]
        with (self._work / "debezium.log").open("a") as log:
            process = self._popen(
                "debezium",
                [*command, str(self._work / "relay.properties")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        threading.Thread(target=self._relay, args=(process,), daemon=True).start()

    def _relay(self, process: subprocess.Popen[str]) -> None:
        """Forwards each batch of the engine and confirms it once the broker has stored it."""
        assert process.stdin is not None
        assert process.stdout is not None
        with Producer("relay", self.name_server) as producer:
            batch: list[Message] = []
            mark = 0
            for line in process.stdout:
                if line != "END\n":
                    topic, key, value = line.rstrip("\n").split("\t")
                    if topic == TOPIC:
                        batch.append(Message(NAME, value.encode(), keys=key))
                    elif topic == MARKS:
                        mark = json.loads(value)["after"]["n"]
                    continue
                while batch:
                    try:
                        producer.send_batch(batch[:200], timeout_s=60)
                    except OrbitError:
                        threading.Event().wait(0.5)  # the broker is down: resent, which is idempotent
                        continue
                    self.relayed += len(batch[:200])
                    del batch[:200]
                self.mark = max(self.mark, mark)
                try:
                    process.stdin.write("ok\n")
                    process.stdin.flush()
                except OSError:
                    return

    def _start_pipeline(self) -> None:
        self._run_pipeline()

    def _run_pipeline(self, *more: str) -> subprocess.Popen[str]:
        where = {}
        for sink in ("present", "history"):
            if self._form == "delta":
                where[sink] = f"path: {self._work}/{sink}"
            else:
                uri = f"sqlite:///{self._work}/{sink}.db"
                where[sink] = (
                    f"table: shop.{sink}, location: 'file://{self._work}/{sink}', "
                    f"properties: {{type: sql, uri: '{uri}', warehouse: 'file://{self._work}'}}"
                )
        text = _PIPELINE.format(
            name_server=self.name_server,
            work=self._work,
            name=NAME,
            schema=self.schema,
            form=self._form,
            **where,
        )
        (self._work / "pipeline.yaml").write_text(text)
        with (self._work / "pipeline.log").open("a") as log:
            return self._popen(
                "pipeline",
                [sys.executable, "-m", "orbitmq", "pipeline", "run", "pipeline.yaml", "--quiet", *more],
                stdout=log,
                stderr=log,
            )

    def drain(self, timeout_s: float) -> int:
        """Runs the pipeline until it has everything; returns its exit code."""
        self.kill("pipeline")
        return self._run_pipeline("--once").wait(timeout_s)

    def wait_for_offsets(self, database: Database, deadline: float) -> None:
        """Waits until Debezium has saved its position in the log. If it is killed before, it takes another snapshot,
        which has neither the deletes nor the versions in between.
        """
        begun = (self._work / "offsets").stat().st_mtime_ns
        while (self._work / "offsets").stat().st_mtime_ns == begun:
            wait_for_events(database, self, deadline)  # offsets are saved with a batch

    def log(self, name: str) -> str:
        return (self._work / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)


def wait_for_events(database: Database, parts: Parts, deadline: float) -> None:
    """Waits until the broker has everything the database has written: the row of a second table comes last."""
    mark = int(database.run("INSERT INTO mark DEFAULT VALUES RETURNING n").strip())
    while parts.mark < mark:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{parts.relayed} events, mark {parts.mark} of {mark}: {parts.log('debezium')[-2000:]}"
            )
        threading.Event().wait(0.2)


def read(work: Path, form: str, name: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the table as each reader without Spark sees it."""
    import polars as pl

    path = work / name
    if form == "delta":
        from deltalake import DeltaTable, QueryBuilder

        builder = QueryBuilder().register("t", DeltaTable(str(path)))
        import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

        found = pa.table(builder.execute("SELECT * FROM t").read_all()).to_pylist()
        return {"deltalake": found, "polars": pl.read_delta(str(path)).to_dicts()}
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{work}/{name}.db", warehouse=f"file://{work}"
    )
    table = catalog.load_table(f"shop.{name}")
    return {
        "pyiceberg": table.scan().to_arrow().to_pylist(),
        "polars": pl.scan_iceberg(table).collect().to_dicts(),
    }


def _plain(value: Any) -> str:
    if value is None:
        return "\\N"
    return f"{value:.2f}" if isinstance(value, Decimal) else str(value)


def compare(database: Database, work: Path, form: str) -> dict[str, Any]:
    """Returns the differences between tables and database, by reader."""
    result: dict[str, Any] = {}
    wanted = sorted(tuple(row) for row in database.rows(f"SELECT {', '.join(COLUMNS)}, score FROM customers"))
    result["rows"] = len(wanted)
    for reader, found in read(work, form, "present").items():
        rows = sorted(tuple(_plain(row[name]) for name in (*COLUMNS, "score")) for row in found)
        result[f"present by {reader}"] = "equal" if rows == wanted else _difference(wanted, rows)
    versions: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    audit = database.rows("SELECT op, id, name, balance, note FROM audit ORDER BY seq")
    for op, number, *values in audit:
        if op == "u":
            versions[number].append(tuple(values))
    result["versions"] = sum(map(len, versions.values()))
    for reader, found in read(work, form, "history").items():
        seen: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for row in sorted(found, key=lambda one: one["_position"]):
            seen[str(row["id"])].append(tuple(_plain(row[name]) for name in COLUMNS[1:]))
        wrong = [key for key in versions.keys() | seen.keys() if versions[key] != seen[key]]
        live = sum(row["_valid_to"] is None for row in found)
        equal = not wrong and live == len(wanted)
        result[f"history by {reader}"] = "equal" if equal else {"keys": sorted(wrong)[:5], "live": live}
    return result


def _difference(wanted: list[Any], found: list[Any]) -> dict[str, Any]:
    missing, extra = set(wanted) - set(found), set(found) - set(wanted)
    return {
        "missing": len(missing),
        "extra": len(extra),
        "first": [str(one)[:200] for one in [*missing, *extra][:4]],
    }


@contextmanager
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="orbitmq-cdc-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run(options: argparse.Namespace) -> dict[str, Any]:
    deadline = time.monotonic() + options.seconds
    draw = random.Random(options.seed)
    with ExitStack() as stack:
        work = stack.enter_context(workspace())
        [port] = free_ports()
        database = Database(work / "postgres", port)
        stack.callback(database.stop)
        database.run(changes(draw, options.keys, options.keys))  # in the snapshot
        database.run(
            "DELETE FROM audit; INSERT INTO audit (op, id, name, balance, note) "
            "SELECT 'u', id, name, balance, note FROM customers"
        )
        parts = Parts(work, database, options.form)
        stack.callback(parts.stop)
        for name in ("broker", "debezium", "pipeline"):
            parts.start(name)
        for _ in range(2):  # the second mark comes from the log, after the snapshot
            wait_for_events(database, parts, deadline)
        parts.wait_for_offsets(database, deadline)
        begun = time.monotonic()
        order = ["debezium", "pipeline", "broker"]
        rounds = max(options.kills, 2)
        for number in range(rounds):
            database.run(changes(draw, options.changes // rounds, options.keys))
            if number == rounds // 2:
                database.run("TRUNCATE customers")
            if number < options.kills:
                # Halfway: the events of the last round are in flight when the process dies.
                victim = order[number % len(order)]
                parts.kill(victim)
                database.run(changes(draw, 100, options.keys))
                parts.start(victim)
        # An unknown column stops the pipeline with an error that names it; once the column is declared, it resumes.
        database.run("ALTER TABLE customers ADD COLUMN score bigint;")
        database.run(f"UPDATE customers SET score = id WHERE id < {options.keys // 4};")
        wait_for_events(database, parts, deadline)
        stopped = parts.drain(max(1.0, deadline - time.monotonic()))
        named = "'score'" in parts.log("pipeline")
        parts.schema = f"{_SCHEMA}, score bigint"
        code = parts.drain(max(1.0, deadline - time.monotonic()))
        result = {
            "form": options.form,
            "kills": options.kills,
            "events": parts.relayed,
            "seconds": round(time.monotonic() - begun, 1),
            "stopped by the new column": stopped == 1 and named,
            "exit": code,
            "load": os.getloadavg()[0],
        }
        if code:
            result["log"] = parts.log("pipeline")[-1500:]
            return result
        return result | compare(database, work, options.form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--form", choices=["delta", "iceberg"], default="delta")
    options = parser.parse_args()
    if not _POSTGRES or shutil.which("psql") is None:
        raise SystemExit("PostgreSQL is not installed")
    if os.getuid() == 0:
        pwd.getpwnam("postgres")
    result = run(options)
    print(json.dumps(result, indent=1))
    raise SystemExit(
        0
        if all(value == "equal" for name, value in result.items() if " by " in name and "stopped" not in name)
        and not result["exit"]
        else 1
    )


if __name__ == "__main__":
    main()
