"""``read_topic`` and ``read_store`` over real brokers, read by DuckDB, Polars and pandas."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from tests.integration.spark_servers import Servers

from orbitmq.arrow import read_store, read_topic
from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.errors import ConfigError
from orbitmq.spark.arrow import decode_records
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

COUNT = 4000


def fill(broker: RunningBroker, topic: str, count: int, *, namespace: str = "") -> None:
    with Producer("fill", broker.name_server, namespace=namespace) as producer:
        for first in range(0, count, 100):
            producer.send_batch(
                [
                    Message(
                        topic=topic,
                        body=b'{"id": %d, "price": %d}' % (number, number % 10),
                        keys=f"k{number}",
                        tags="A" if number % 4 else "B",
                        properties={"price": str(number)},
                    )
                    for number in range(first, first + 100)
                ]
            )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(enablePropertyFilter=True) as running:
        running.create_topic("orders", queue_count=4)
        fill(running, "orders", COUNT)
        yield running


def keys(table: Any) -> list[str]:
    return sorted(table.column("keys").to_pylist())


def test_a_topic_is_read_again_and_again_with_the_same_rows(broker: RunningBroker) -> None:
    broker.create_topic("growing", queue_count=2)
    fill(broker, "growing", 200)
    table = read_topic("growing", name_servers=broker.name_server)
    first = table.table()
    assert len(set(first.column("keys").to_pylist())) == 200
    fill(broker, "growing", 100)
    assert table.table() == first
    assert table.select(["keys"]).table().num_rows == 200
    newer = read_topic("growing", start=table.end_offsets, name_servers=broker.name_server)
    assert newer.table().num_rows == 100
    assert table.latest().table().num_rows == 300


def test_bounds_and_filters_narrow_a_read_down(broker: RunningBroker) -> None:
    server: Any = {"name_servers": broker.name_server}
    before = datetime.now(UTC)
    assert read_topic("orders", **server, start=before).table().num_rows == 0
    assert read_topic("orders", **server, stop=before).table().num_rows == COUNT
    assert read_topic("orders", **server, tags="B").table().num_rows == COUNT // 4
    priced = read_topic("orders", columns=["keys"], sql="price >= 10 AND price < 13", **server)
    assert keys(priced.table()) == ["k10", "k11", "k12"]
    some = read_topic("orders", columns=["queue_id"], queues=[1, 3], **server).table()
    assert set(some.column("queue_id").to_pylist()) == {1, 3}
    ends = read_topic("orders", **server).end_offsets["orders"]
    [name] = ends
    part = read_topic("orders", stop={"orders": {name: dict.fromkeys(ends[name], 5)}}, **server)
    assert part.table().num_rows == 20


def test_duckdb_reads_a_table_by_its_name_and_twice_in_one_query(broker: RunningBroker) -> None:
    orders = read_topic("orders", name_servers=broker.name_server)
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        found = connection.execute(
            "SELECT sum(CAST(decode(body)->>'$.id' AS BIGINT)), count(DISTINCT keys) FROM orders"
        ).fetchall()
        assert found == [(sum(range(COUNT)), COUNT)]
        twice = connection.execute("SELECT count(*) FROM orders a JOIN orders b USING (keys)").fetchall()
        assert twice == [(COUNT,)]


def test_polars_decodes_only_what_it_uses_and_ends_early(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def decode(*given: Any, columns: list[str], **more: Any) -> Any:
        asked.append(columns)
        return decode_records(*given, columns=columns, **more)

    monkeypatch.setattr("orbitmq.spark.source.reading.decode_records", decode)
    frame = read_topic("orders", name_servers=broker.name_server).polars()
    found = frame.filter(pl.col("queue_id") == 2).select("keys").collect()
    assert 0 < found.height < COUNT
    assert frame.select(pl.col("keys").n_unique()).collect().item() == COUNT
    assert {column for columns in asked for column in columns} <= {"keys", "queue_id"}
    asked.clear()
    assert frame.head(5).collect().height == 5
    assert len(asked) == 1
    assert frame.select(pl.len()).collect().item() == COUNT
    assert set(frame.collect_schema().names()) == set(frame.collect().columns)


def test_pandas_reads_a_topic(broker: RunningBroker) -> None:
    frame = read_topic("orders", columns=["keys", "tags", "body"], name_servers=broker.name_server).pandas()
    assert len(frame) == COUNT
    assert (frame["tags"] == "B").sum() == COUNT // 4


def test_a_namespace_is_hidden_from_the_reader(broker: RunningBroker) -> None:
    broker.create_topic("shop%inside", queue_count=1)
    fill(broker, "inside", 100, namespace="shop")
    table = read_topic("inside", namespace="shop", columns=["topic"], name_servers=broker.name_server)
    assert set(table.table().column("topic").to_pylist()) == {"inside"}
    assert list(table.end_offsets) == ["inside"]


def test_an_unknown_topic_is_an_error_of_the_first_read(broker: RunningBroker) -> None:
    with pytest.raises(ConfigError, match="no such topic: nothing"):
        read_topic("nothing", name_servers=broker.name_server).table()


def test_threads_read_one_table_at_the_same_time(broker: RunningBroker) -> None:
    table = read_topic("orders", columns=["keys"], name_servers=broker.name_server)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(keys(table.table()))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(one == sorted(f"k{number}" for number in range(COUNT)) for one in found)


def test_queues_of_several_brokers_are_read_and_a_store_has_the_same_rows(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        brokers = [servers.broker(name) for name in ("broker-a", "broker-b")]
        servers.create_topic("T", *brokers, queue_count=2)
        servers.send("T", range(40))
        table = read_topic("T", name_servers=servers.name_server).table()
        assert sorted(int(body) for body in table.column("body").to_pylist()) == list(range(40))
        assert set(table.column("broker").to_pylist()) == {"broker-a", "broker-b"}
    stored = read_store([str(tmp_path / f"broker-{one}-0") for one in "ab"], topic="T")
    again = stored.table()
    assert sorted(again.column("body").to_pylist()) == sorted(table.column("body").to_pylist())
    assert stored.select(["queue_id"]).table().num_rows == 40
    moment = table.column("store_timestamp").to_pylist()[0]
    assert read_store(str(tmp_path / "broker-a-0"), topic="T", stop=moment).table().num_rows < 40


def test_the_programs_of_the_guide_run(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORBITMQ_NAMESRV", broker.name_server)
    page = (Path(__file__).resolve().parents[2] / "docs" / "arrow.md").read_text("utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(programs) == 5
    names: dict[str, Any] = {"store_path": str(broker.data / "store")}
    for program in programs:
        exec(compile(program, "arrow.md", "exec"), names)
    outputs = re.findall(r"^It prints:\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert all(output in capsys.readouterr().out for output in outputs)
    assert names["dear"].height == 10


def test_reading_imports_no_pyspark() -> None:
    code = "import sys, orbitmq.arrow; print(sorted({'pyspark', 'duckdb', 'polars'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_loop_runs_while_the_interpreter_ends(broker: RunningBroker) -> None:
    code = (
        "import atexit, threading\n"
        "atexit.register(lambda: print([one.name for one in threading.enumerate()]))\n"
        "from orbitmq.arrow import read_topic\n"
        f"assert read_topic('orders', name_servers={broker.name_server!r}).table().num_rows == {COUNT}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['MainThread']"
    assert done.stderr == ""


def test_memory_is_bounded_by_the_stream_and_not_by_the_topic(broker: RunningBroker) -> None:
    reader = read_topic("orders", name_servers=broker.name_server).reader()
    before = pa.total_allocated_bytes()
    peak = 0
    for batch in reader:
        peak = max(peak, pa.total_allocated_bytes() - before)
        assert batch.num_rows
    assert peak < 8 * 1024 * 1024
