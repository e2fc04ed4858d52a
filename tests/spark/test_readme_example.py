"""The Spark example of the README runs as it stands, on what its producer sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apache.artifacts import require
from tests.integration.test_readme import README_NAME_SERVER, examples, output_of, server


@pytest.mark.slow
@pytest.mark.usefixtures("fast_jvm")
def test_spark_example_of_the_readme_counts_what_the_producer_sent(tmp_path: Path) -> None:
    require()
    found = examples()
    store = tmp_path / "store"
    with server("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path / 'kv.json'}") as bound:
        name_server = f"127.0.0.1:{bound.rpartition(':')[2]}"
        with server(
            "broker",
            *("-n", name_server),
            *("--set", "listenPort=0", "--set", "brokerIP1=127.0.0.1"),
            *("--set", f"storePathRootDir={store}"),
        ):
            output_of(found["Produce"].replace(README_NAME_SERVER, name_server))
            example = (
                found["Spark"].replace(README_NAME_SERVER, name_server).replace("data/store", str(store))
            )
            assert output_of(example)[-2:] == ["Orders paid 8", "8 in the files"]
