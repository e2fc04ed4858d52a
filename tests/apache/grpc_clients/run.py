"""Runs the case programs of official gRPC clients; each client is fetched once into the harness's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.apache.artifacts import build_product, jars, run_tool, source_digest, unavailable

__all__ = [
    "CLIENTS",
    "failures",
    "java_class_path",
    "prepare_clients",
    "repeated",
    "require_client",
    "run_cases",
]

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
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={_java_classes()}"]
    return ["java", *options, "-cp", java_class_path(), "GrpcCases", endpoint, prefix, "true"]


def _java_classes() -> Path:
    sources = sorted((HERE / "java").glob("*.java"))

    def compile_into(target: Path) -> None:
        command = ["javac", "-nowarn", "-d", str(target), "-cp", f"{jars(JAVA_CLIENT)}/*"]
        run_tool([*command, *map(str, sources)], HERE)

    return build_product("grpc-java", source_digest(sources), compile_into)


def java_class_path() -> str:
    """Our programs for Apache's gRPC client for Java, and the client."""
    return f"{_java_classes()}:{jars(JAVA_CLIENT)}/*"


def _go(endpoint: str, prefix: str) -> list[str]:
    folder = HERE / "go"
    sources = [folder / name for name in ("main.go", "go.mod", "go.sum")]

    def build_into(target: Path) -> None:
        run_tool(
            ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(target / "cases"), "."], folder
        )

    return [str(build_product("grpc-go", source_digest(sources), build_into) / "cases"), endpoint, prefix]


def _node(endpoint: str, prefix: str) -> list[str]:
    folder = HERE / "node"

    def install(target: Path) -> None:
        shutil.copy(folder / "package.json", target)
        shutil.copy(folder / "package-lock.json", target)
        run_tool(["npm", "ci", "--silent", "--ignore-scripts"], target)

    home = build_product("grpc-node", source_digest([folder / "package-lock.json"]), install)
    return ["env", f"NODE_PATH={home}/node_modules", "node", str(folder / "cases.js"), endpoint, prefix]


def _rust(endpoint: str, prefix: str) -> list[str]:
    folder = HERE / "rust"
    sources = [folder / name for name in ("Cargo.toml", "src/main.rs")]

    def build_into(target: Path) -> None:
        command = ["cargo", "build", "--quiet", "--target-dir", str(target / "target")]
        run_tool(command, folder)
        shutil.copy(target / "target/debug/cases", target)
        shutil.rmtree(target / "target")

    return [str(build_product("grpc-rust", source_digest(sources), build_into) / "cases"), endpoint, prefix]


CLIENTS: Final[dict[str, Callable[[str, str], list[str]]]] = {
    "python": _python,
    "java": _java,
    "go": _go,
    "node": _node,
}
"""The clients that have every case, or nearly."""
_COMMANDS: Final = {**CLIENTS, "rust": _rust}
_PROGRAMS: Final = {"go": ("go",), "node": ("node", "npm"), "rust": ("cargo",)}
"""What a client needs beside Python and Java."""


def prepare_clients() -> None:
    """Fetch and build every client whose tools are on this machine, but for those of `make soak`."""
    for client, command in CLIENTS.items():
        if all(shutil.which(program) for program in _PROGRAMS.get(client, ())):
            command("", "")


def run_cases(
    client: str,
    endpoint: str,
    prefix: str,
    workdir: Path,
    *,
    cases: tuple[str, ...] = (),
    credentials: tuple[str, str] | None = None,
    seconds: float = 0.0,
    authority: Path | None = None,
    zone: str = "",
) -> list[dict[str, Any]]:
    """What each case of one client came to; all cases when none is named. Calls are signed with ``credentials``.
    ``seconds`` is how long the case ``steady`` sends at most; a file ``stop`` in ``workdir`` ends it. With
    ``authority``, a certificate file, clients whose default is plain text use TLS and trust it. ``zone`` is the time
    zone of the client."""
    access_key, secret_key = credentials or ("", "")
    done = subprocess.run(
        [*_COMMANDS[client](endpoint, prefix), *cases],
        cwd=workdir,
        timeout=CASES_TIMEOUT_S,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "CASES_ACCESS_KEY": access_key,
            "CASES_SECRET_KEY": secret_key,
            "CASES_SECONDS": str(seconds),
            "rocketmq.client.logRoot": str(workdir),
            **({"TZ": zone} if zone else {}),
            **(
                {"CASES_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)}
                if authority is not None
                else {}
            ),
        },
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
    outcomes = [json.loads(line) for line in lines]
    if not outcomes:
        raise AssertionError(f"{client} printed no case:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return outcomes


def failures(outcomes: list[dict[str, Any]]) -> str:
    """Empty when all went well."""
    return "\n\n".join(f"{one['case']}: {one['seen']}" for one in outcomes if not one["ok"])


def repeated(outcomes: list[dict[str, Any]]) -> dict[str, int]:
    """Messages a case received more than once though it had acknowledged them; only cases that had some."""
    return {one["case"]: one["repeated"] for one in outcomes if one["repeated"]}


def require_client(client: str) -> None:
    """Skip the calling test when a program the client needs is missing, or fail it where that must not happen."""
    missing = [program for program in _PROGRAMS.get(client, ()) if shutil.which(program) is None]
    if missing:
        unavailable(f"no {', '.join(missing)} on this machine: the {client} client cannot run")
