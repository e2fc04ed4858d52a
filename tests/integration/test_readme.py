"""The examples of the README run unchanged, against servers started by the commands it names."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README_NAME_SERVER = "127.0.0.1:9876"
READY_S = 120.0


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Starts a server of the ``orbitmq`` command; yields the address of its ready line."""
    command = [sys.executable, "-m", "orbitmq.cli.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_S), "no ready line in time"
        line = os.read(process.stdout.fileno(), 4096).decode()
        found = re.search(r"ready.*address (\S+)", line)
        assert found, f"{line!r}, errors:\n{(process.stderr.read() if process.stderr else b'').decode()}"
        yield found.group(1)
        process.terminate()
        _, errors = process.communicate(timeout=READY_S)
        assert process.returncode == 0, errors.decode()
    finally:
        process.kill()
        process.communicate()


RUN_ELSEWHERE: frozenset[str] = frozenset({"Spark"})
"""Headings whose examples another test runs."""


def examples() -> dict[str, str]:
    """Returns the Python example below each heading."""
    found: dict[str, str] = {}
    for section in re.split(r"\n##+ ", (ROOT / "README.md").read_text("utf-8"))[1:]:
        for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
            heading = section.partition("\n")[0]
            assert heading not in found, f"two examples under {heading}"
            found[heading] = block
    return found


def output_of(example: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_examples_of_the_readme_produce_and_consume_the_same_messages(tmp_path: Path) -> None:
    found = examples()
    first, produce, consume = (found.pop(name) for name in ("Send and receive", "Produce", "Consume"))
    assert found.keys() <= RUN_ELSEWHERE, "an example that no test runs"
    with server("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path / 'kv.json'}") as bound:
        name_server = f"127.0.0.1:{bound.rpartition(':')[2]}"
        with server(
            "broker",
            *("-n", name_server),
            *("--set", "listenPort=0", "--set", "brokerIP1=127.0.0.1"),
            *("--set", f"storePathRootDir={tmp_path / 'store'}"),
        ):
            assert output_of(first.replace(README_NAME_SERVER, name_server)) == ["hello"]
            sent = output_of(produce.replace(README_NAME_SERVER, name_server))
            assert sent == [f"sent OK order-{number}" for number in range(8)]
            got = output_of(consume.replace(README_NAME_SERVER, name_server))
            assert sorted(got) == [f"got order-{number} 10 EUR" for number in range(8)]
