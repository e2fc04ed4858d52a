"""Tables, their checkpoints and archives on an S3 server, by the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.dataset as ds  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from pyarrow import fs as pafs
from tests.apache.artifacts import require
from tests.apache.s3 import S3, s3, s3a_jars
from tests.spark.pipeline_kit import read_all

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import RunningBroker, run_broker

__all__ = ["s3"]
pytestmark = [pytest.mark.slow, pytest.mark.apache, pytest.mark.soak]

JOB_TIMEOUT_S = 600.0
BUCKET = "lake"


def run_command(server: S3, *arguments: str) -> str:
    """``orbitmq pipeline ...`` with the server as the only S3 there is; returns what it printed."""
    conf = server.spark | {"spark.jars": ",".join(s3a_jars())}
    command = [sys.executable, "-m", "orbitmq", "pipeline", *arguments, "--master", "local[2]"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        command,
        env={**os.environ, **server.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def send(broker: RunningBroker, topic: str, numbers: range) -> None:
    with Producer("s3", broker.name_server) as producer:
        producer.send_batch(
            [Message(topic, b'{"id": %d, "n": %d}' % (number % 50, number)) for number in numbers]
        )


def files_of(server: S3) -> pafs.FileSystem:
    return pafs.S3FileSystem(
        endpoint_override=server.url, access_key="testing", secret_key="testing", region="us-east-1"
    )


def rows_of(server: S3, form: str, place: str, catalog: Path) -> list[tuple[int, int]]:
    """The rows of a table as DuckDB sees them, which is given them by a reader that is not Spark."""
    storage = {name: value for name, value in server.environment.items() if name.startswith("AWS_")}
    if form == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(f"s3://{BUCKET}/{place}", storage_options=storage).to_pyarrow_table()
    elif form == "iceberg":
        from pyiceberg.catalog import load_catalog

        # SQL catalogs keep tables by the name of the catalog: the one the command gives it.
        found = load_catalog("default", **catalog_properties(server, catalog))
        table = found.load_table("rocketmq.T").scan().to_arrow()
    else:
        files = files_of(server)
        listed = files.get_file_info(pafs.FileSelector(f"{BUCKET}/{place}", recursive=True))
        names = [one.path for one in listed if one.base_name.endswith(".parquet")]
        table = ds.dataset(names, filesystem=files, format="parquet").to_table()
    with duckdb.connect() as engine:
        engine.register("rows", table)
        return engine.execute("SELECT id, n FROM rows ORDER BY id, n").fetchall()


def catalog_properties(server: S3, catalog: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{catalog}",
        "s3.endpoint": server.url,
        "s3.access-key-id": "testing",
        "s3.secret-access-key": "testing",
        "s3.region": "us-east-1",
    }


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("form", "key"), [("delta", ""), ("delta", "id"), ("iceberg", ""), ("parquet", "")])
def test_table_and_its_checkpoint_on_s3_hold_every_message_once(
    s3: S3, tmp_path: Path, form: str, key: str
) -> None:
    require()
    s3.create_bucket(BUCKET)
    schema = tmp_path / "rows.ddl"
    schema.write_text("id int, n int")
    with run_broker() as broker:
        topic = broker.create_topic("T", queue_count=1)
        arguments = ["table", topic, f"s3a://{BUCKET}/T", "--to", form, "-n", broker.name_server, "--once"]
        arguments += ["--schema", str(schema), *(["--key", key] if key else [])]
        if form == "iceberg":
            for name, value in catalog_properties(s3, tmp_path / "catalog.db").items():
                arguments += ["--catalog", f"{name}={value}"]
        # Twice: the second run goes on from the checkpoint on S3.
        for numbers in (range(100), range(100, 300)):
            send(broker, topic, numbers)
            run_command(s3, *arguments)
    expected = {n % 50: n for n in range(300)}.items() if key else [(n % 50, n) for n in range(300)]
    assert rows_of(s3, form, "T", tmp_path / "catalog.db") == sorted(expected)
    listed = files_of(s3).get_file_info(pafs.FileSelector(f"{BUCKET}/T/_checkpoint/table/offsets"))
    assert len([one for one in listed if one.base_name.isdigit()]) == 2


@pytest.mark.timeout(2400)
def test_archive_on_s3_is_replayed_whole(s3: S3) -> None:
    require()
    s3.create_bucket(BUCKET)
    with run_broker() as broker:
        topic = broker.create_topic("T", queue_count=2)
        send(broker, topic, range(200))
        run_command(s3, "archive", f"s3a://{BUCKET}/archive", "-t", topic, "-n", broker.name_server)
    with run_broker() as other:
        other.create_topic("T", queue_count=2)
        run_command(s3, "replay", f"s3a://{BUCKET}/archive", "-n", other.name_server)
        bodies = sorted(
            int(message.body.split(b": ")[2].rstrip(b"}")) for message in read_all(other.name_server, "T")
        )
    assert bodies == list(range(200))
