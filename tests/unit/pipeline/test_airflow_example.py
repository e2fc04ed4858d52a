"""The Airflow example with stand-ins for Airflow: its commands exist, and exit codes and status are correct."""

from __future__ import annotations

import dataclasses
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from orbitmq.cli.pipeline import pipeline_commands
from orbitmq.pipeline.status import PipelineStatus, QueryStatus

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pipelines" / "airflow_dag.py"


class Failed(Exception):
    pass


class Anything:
    """A DAG, an operator or a sensor."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.settings = settings

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __rshift__(self, other: Anything) -> Anything:
        return other


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    standard = "airflow.providers.standard"
    for name, attributes in {
        "airflow": ("DAG",),
        "airflow.exceptions": ("AirflowFailException",),
        f"{standard}.operators.bash": ("BashOperator",),
        f"{standard}.operators.python": ("PythonOperator",),
        f"{standard}.sensors.python": ("PythonSensor",),
    }.items():
        module: Any = ModuleType(name)
        for attribute in attributes:
            setattr(module, attribute, Failed if attribute == "AirflowFailException" else Anything)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(EXAMPLE))


def answer(monkeypatch: pytest.MonkeyPatch, code: int, output: str = "") -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code, output)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def check_options(command: list[str]) -> None:
    """Checks that each subcommand and option exists."""
    at = command.index("orbitmq")
    assert command[at + 1] == "pipeline"
    found = pipeline_commands.commands[command[at + 2]]
    options = {name for one in found.params if isinstance(one, click.Option) for name in one.opts}
    assert {word for word in command[at + 3 :] if word.startswith("--")} <= options


def test_exit_codes_decide_about_a_retry(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer(monkeypatch, 0)
    example["run_pipeline"]("a/b/c")
    [command] = commands
    check_options(command)
    assert "OPENLINEAGE_PARENT_ID=a/b/c" in command
    answer(monkeypatch, 1)
    with pytest.raises(RuntimeError, match="failed"):
        example["run_pipeline"]("a/b/c")
    answer(monkeypatch, 2)
    with pytest.raises(Failed, match="cannot start"):
        example["run_pipeline"]("a/b/c")


def test_the_sensor_reads_the_status(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def status(state: str, *behind: int | None) -> str:
        queries = tuple(QueryStatus("q", "id", 1, 1, 1, 1, one) for one in behind)
        return json.dumps(dataclasses.asdict(PipelineStatus(state, "disk full", queries=queries)))

    commands = answer(monkeypatch, 0, status("running", 5, None))
    assert example["caught_up"]()
    check_options(commands[0])
    answer(monkeypatch, 0, status("running", 5, 2000))
    assert not example["caught_up"]()
    answer(monkeypatch, 0, status("failed", 5))
    with pytest.raises(Failed, match="disk full"):
        example["caught_up"]()
    check_options(example["test"].settings["bash_command"].split())
