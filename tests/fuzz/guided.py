"""Coverage-guided fuzzing: ``python -m tests.fuzz.guided [TARGET ...] [--seconds 60] [--keep]``.

Runs each byte target (``tests/fuzz/byte_targets.py``) under atheris, which sees every branch of our code that an
input reaches, and mutates the inputs that reach something new. It starts from the recorded inputs and those in
``tests/fuzz/corpus``; half of its mutations are ours, which know JSON, numbers and lengths. With ``--keep`` the
inputs that reached new code are added there, the shortest first. The plain kernel is used, since the compiled one
cannot be seen into; both are compared elsewhere.

A failure is written to ``build/fuzz``, its command is printed, and the run ends with 1. atheris is not among the
packages of ``make setup``: ``pip install atheris`` (there are wheels for CPython 3.11 to 3.13 on Linux).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["is_available", "main"]

ROOT: Final = Path(__file__).parents[2]
FAILURES: Final = Path("build") / "fuzz"
_LENGTH_MAX: Final = 16_384


def is_available() -> bool:
    """Whether atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


def _fuzz(name: str, arguments: Sequence[str]) -> None:
    """One target in this process, which libFuzzer ends."""
    import logging

    atheris = importlib.import_module("atheris")
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["orbitmq"]):
        from tests.fuzz.byte_targets import BYTE_TARGETS, mutated
    target = BYTE_TARGETS[name]
    seeds = target.seeds()

    def mutate(raw: bytes, size_max: int, seed: int) -> bytes:
        if seed & 1:
            return bytes(atheris.Mutate(raw, size_max))
        return mutated(raw, seed, seeds)[:size_max]

    atheris.Setup([sys.argv[0], *arguments], target.run, custom_mutator=mutate)
    atheris.Fuzz()


def _process(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", "--one", name, "--", *arguments],
        cwd=ROOT,
        env={**os.environ, "ORBITMQ_KERNEL": "plain"},
        capture_output=True,
        text=True,
        check=False,
    )


def _seeds(name: str) -> list[bytes]:
    from tests.fuzz.byte_targets import BYTE_TARGETS
    from tests.fuzz.corpus_files import kept_inputs

    return [raw[:_LENGTH_MAX] for raw in (*BYTE_TARGETS[name].seeds(), *kept_inputs(name))]


def run_target(name: str, seconds: float, *, keep: bool = False) -> str:
    """Fuzz one target; returns what failed, empty when nothing did."""
    from tests.fuzz.corpus_files import keep_inputs, kept_inputs

    with tempfile.TemporaryDirectory(prefix="orbitmq-fuzz-") as directory:
        work = Path(directory)
        for number, raw in enumerate(_seeds(name)):
            (work / f"seed-{number}").write_bytes(raw)
        failures = ROOT / FAILURES
        failures.mkdir(parents=True, exist_ok=True)
        run = _process(
            name,
            str(work),
            f"-max_total_time={max(1, round(seconds))}",
            f"-max_len={_LENGTH_MAX}",
            f"-artifact_prefix={failures}/{name}-",
            "-timeout=30",
            "-print_final_stats=1",
        )
        tail = "\n".join(run.stderr.splitlines()[-40:])
        if run.returncode:
            again = f"python -m tests.fuzz.guided --one {name} -- FILE"
            return f"{name} failed; the input is below {failures}; again: {again}\n{tail}"
        counted = [line for line in run.stderr.splitlines() if "number_of_executed_units" in line]
        print(f"{name:24} {' '.join(counted).rpartition(':')[2].strip()} inputs", end="")
        if keep:
            found = [path.read_bytes() for path in work.iterdir() if not path.name.startswith("seed-")]
            print(f", {keep_inputs(name, (*kept_inputs(name), *found))} kept", end="")
        print(flush=True)
    return ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    if not is_available():
        print("atheris is not installed: pip install atheris")
        return 2
    from tests.fuzz.byte_targets import BYTE_TARGETS

    for name in options.targets or sorted(BYTE_TARGETS):
        failed = run_target(name, options.seconds, keep=options.keep)
        if failed:
            print(failed)
            return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _fuzz(sys.argv[2], sys.argv[4:])
    else:
        sys.exit(main(sys.argv[1:]))
