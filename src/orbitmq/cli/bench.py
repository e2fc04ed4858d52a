"""``orbitmq bench``: runs the benchmarks in benchmarks/, prints tables, and writes the results with commit and
machine.

The benchmarks are part of the source tree and not of the installed package, because they use the test harness, which
also starts real Apache RocketMQ servers if Java is present.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from orbitmq import __version__
from orbitmq.cli.servers import fail
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.machine import physical_memory_bytes

__all__ = ["bench_command"]

PARTS: Final[Mapping[str, Sequence[str]]] = {
    "micro": ("micro_record", "micro_wire", "micro_broker"),
    "store": ("micro_store",),
    "namesrv": ("namesrv",),
    "broker": ("broker",),
    "filter": ("filter",),
    "delay": ("delay",),
    "client": ("client",),
    "pop": ("pop",),
    "grpc": ("grpc",),
    "ha": ("ha",),
    "spark": ("spark",),
}
"""Modules of benchmarks/, by their names on the command line. Missing modules are skipped."""


@click.command("bench")
@click.argument("part", type=click.Choice(["all", *PARTS]), default="all")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Where to write.")
@click.option("--ours-only", is_flag=True, help="Leave Apache RocketMQ out.")
@click.option("--seconds", type=float, help="Measured time of each load, where a benchmark has one.")
def bench_command(part: str, json_file: Path | None, ours_only: bool, seconds: float | None) -> None:
    """Run the benchmarks, compared with Apache RocketMQ where Java is present.

    Run it from the source tree, on an idle machine. Results are written to build/bench/PART.json unless --json
    names another file.
    """
    root = _source_tree()
    sys.path.insert(0, str(root))
    wanted = [
        module
        for name in (PARTS if part == "all" else (part,))
        for module in PARTS[name]
        if importlib.util.find_spec(f"benchmarks.{module}") is not None
    ]
    if not wanted:
        fail(f"there is no benchmark of {part} yet")
    results: dict[str, Any] = {}
    for module in wanted:
        click.echo(f"measuring {module} ...", err=True)
        try:
            results[module] = _run(module, ours_only=ours_only, seconds=seconds)
        except RuntimeError as error:
            # A benchmark that cannot run here must not lose the results of the others.
            click.echo(f"orbitmq: {module}: {error}", err=True)
            continue
        _show(module, results[module])
    if not results:
        fail(f"nothing of {part} could be measured")
    report = {
        "machine": _machine(),
        "commit": _commit(root),
        "version": __version__,
        "kernel": KERNEL,
        "results": results,
    }
    target = json_file or root / "build" / "bench" / f"{part}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    click.echo(f"written to {target}", err=True)


def _source_tree() -> Path:
    """Returns the directory that contains benchmarks/: the current directory, or the source tree of this file."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / "benchmarks" / "micro_broker.py").is_file():
            return root
    raise click.ClickException("no benchmarks/ here: run this in the source tree of orbitmq")


def _run(module: str, *, ours_only: bool, seconds: float | None) -> Any:
    """Runs a benchmark's ``run()``, or ``measure()`` if it needs no server. Returns the results."""
    benchmark = importlib.import_module(f"benchmarks.{module}")
    for name in ("run", "measure"):
        function = getattr(benchmark, name, None)
        if function is None:
            continue
        taken = inspect.signature(function).parameters
        if any(parameter.default is parameter.empty for parameter in taken.values()):
            continue
        offered = {"ours_only": ours_only, "seconds": seconds}
        options = {name: value for name, value in offered.items() if name in taken and value is not None}
        result = function(**options)
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    raise RuntimeError(f"it can only be run by itself, as python -m benchmarks.{module}")


def _show(module: str, results: Any) -> None:
    """Print one row per metric. If results are by server, each server has a column."""
    from rich.console import Console
    from rich.table import Table

    flat = _flatten(results)
    servers = list(results) if _by_server(results) else []
    table = Table(title=module, title_justify="left")
    table.add_column("figure")
    if not servers:
        table.add_column("value", justify="right")
        for name, value in flat.items():
            table.add_row(name, _number(value))
    else:
        for server in servers:
            table.add_column(server, justify="right")
        rows = dict.fromkeys(name.partition(" / ")[2] for name in flat)
        for row in rows:
            table.add_row(row, *(_number(flat.get(f"{server} / {row}")) for server in servers))
    Console().print(table)


def _by_server(results: Any) -> bool:
    return (
        isinstance(results, dict)
        and "orbitmq" in results
        and all(isinstance(figures, dict) for figures in results.values())
    )


def _flatten(results: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(results, dict):
        return {prefix: results}
    flat: dict[str, Any] = {}
    for name, value in results.items():
        flat |= _flatten(value, f"{prefix} / {name}" if prefix else str(name))
    return flat


def _number(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:,.3f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _machine() -> dict[str, Any]:
    """Returns the properties of this machine that affect results."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_mib": physical_memory_bytes() >> 20,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _commit(root: Path) -> str:
    """Returns the current commit, marked as dirty if files differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip()
