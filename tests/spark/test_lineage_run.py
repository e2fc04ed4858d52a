"""``orbitmq pipeline run`` with OpenLineage's file transport: the events of a real run, and of one that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the same
import pytest

pytestmark = pytest.mark.slow

PIPELINE = """
name: copied
mode: batch
sources: {rows: {kind: parquet, path: rows}}
steps: [{kind: sql, name: some, query: "SELECT * FROM rows WHERE id < 3"}]
sinks: [{kind: parquet, path: out, saveMode: error}]
"""


def test_a_run_tells_its_data_sets_rows_and_end(fast_jvm: None, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"id": list(range(10))}), tmp_path / "rows" / "part.parquet")
    (tmp_path / "copied.yaml").write_text(PIPELINE)
    events = tmp_path / "events.jsonl"
    transport = json.dumps({"type": "file", "log_file_path": str(events), "append": True})
    environment = {**os.environ, "OPENLINEAGE__TRANSPORT": transport}
    command = [
        sys.executable,
        "-m",
        "orbitmq",
        "pipeline",
        "run",
        "copied.yaml",
        "--quiet",
        "--master",
        "local[1]",
    ]
    codes = [
        subprocess.run(command, cwd=tmp_path, env=environment, timeout=300, check=False).returncode
        for _ in "ab"
    ]
    assert codes == [0, 1]  # the second finds the directory of the first
    found = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["eventType"] for one in found] == ["START", "COMPLETE", "START", "FAIL"]
    assert [one["name"] for one in found[1]["inputs"]] == [str(tmp_path / "rows")]
    [output] = found[1]["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(tmp_path / "out"))
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert "out" in found[3]["run"]["facets"]["errorMessage"]["message"]
