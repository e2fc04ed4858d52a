"""Runs the case programs of official gRPC clients; each client is fetched once into the harness's cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.apache.artifacts import build_product, jars, run_tool, source_digest

__all__ = ["CLIENTS", "failures", "run_cases"]

HERE: Final = Path(__file__).parent
PYTHON_CLIENT: Final = "rocketmq-python-client==5.1.2"
JAVA_CLIENT: Final = "grpc-5.2.0"
CASES_TIMEOUT_S: Final = 240


def _python(endpoint: str, prefix: str) -> list[str]:
    def install(target: Path) -> None:
        run_tool([sys.executable, "-m", "venv", str(target / "env")], target)
        run_tool([str(target / "env/bin/pip"), "install", "-q", PYTHON_CLIENT], target)

    # A virtual environment knows its own path: it is made where it stays, in a folder named by its contents.
    home = build_product("grpc-python", PYTHON_CLIENT, install, in_place=True)
    return [str(home / "env/bin/python"), str(HERE / "python_cases.py"), endpoint, prefix]


def _java(endpoint: str, prefix: str) -> list[str]:
    source = HERE / "java" / "GrpcCases.java"
    library = jars(JAVA_CLIENT)

    def compile_into(target: Path) -> None:
        run_tool(["javac", "-nowarn", "-d", str(target), "-cp", f"{library}/*", str(source)], HERE)

    classes = build_product("grpc-java", source_digest([source]), compile_into)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={classes}"]
    return ["java", *options, "-cp", f"{classes}:{library}/*", "GrpcCases", endpoint, prefix, "true"]


CLIENTS: Final[dict[str, Callable[[str, str], list[str]]]] = {
    "python": _python,
    "java": _java,
}


def run_cases(client: str, endpoint: str, prefix: str, workdir: Path) -> list[dict[str, Any]]:
    """What each case of one client came to."""
    command = CLIENTS[client](endpoint, prefix)
    done = subprocess.run(
        command,
        cwd=workdir,
        timeout=CASES_TIMEOUT_S,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
    outcomes = [json.loads(line) for line in lines]
    if not outcomes:
        raise AssertionError(f"{client} printed no case:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return outcomes


def failures(outcomes: list[dict[str, Any]]) -> str:
    """Empty when all went well."""
    return "\n\n".join(f"{one['case']}: {one['seen']}" for one in outcomes if not one["ok"])
