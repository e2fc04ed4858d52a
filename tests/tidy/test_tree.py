"""The whole repository obeys the rules of ``rules.py``; a failure lists every breach with its rule."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.tidy import rules
from tests.tidy.cycles import check_cycles
from tests.tidy.rules import Source
from tests.tidy.waits import check_waits

ROOT = Path(__file__).parents[2]
# Bytes recorded from a real broker: kept as they came, so no rule of ours applies to them.
RECORDED = "tests/golden/"


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of ours."""
    paths = [
        path for folder in ("src", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    gc.disable()  # millions of new objects and no garbage: collecting took 9 of 10 seconds
    try:
        return tuple(
            Source.parse(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths
        )
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _trees_are_dropped() -> Iterator[None]:
    """With the trees in memory every full collection of the tests that follow would take over a second."""
    yield
    sources.cache_clear()
    gc.collect()


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Every text file under version control, with its content."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30)
    for path in listed.stdout.decode().split("\0"):
        if not path or path.startswith(RECORDED) or not (ROOT / path).is_file():
            continue
        raw = (ROOT / path).read_bytes()
        if b"\0" not in raw:
            yield path, raw.decode("utf-8")


def report(findings: Iterable[str]) -> None:
    lines = list(findings)
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize(
    "check",
    [rules.check_imports, rules.check_calls, rules.check_package_file, rules.check_wiring],
    ids=lambda check: check.__name__,
)
def test_every_source_obeys(check: Callable[[Source], Iterator[str]]) -> None:
    report(finding for source in sources() for finding in check(source))


def test_every_product_source_keeps_the_sizes() -> None:
    report(
        finding
        for source in sources()
        if source.path.startswith(("src/", "benchmarks/"))
        for finding in rules.check_sizes(source)
    )


def test_every_test_file_keeps_the_file_size() -> None:
    report(
        finding
        for source in sources()
        if source.path.startswith("tests/")
        for finding in rules.check_sizes(source)
        if finding.startswith("file-size: ")
    )


def test_no_exception_is_without_need() -> None:
    report(rules.check_exceptions(sources()))
    report(rules.check_state(sources()))


def test_records_units_and_frames_are_laid_out_in_one_place() -> None:
    report(rules.check_layouts(sources()))


def test_no_module_needs_itself() -> None:
    report(check_cycles(sources()))


def test_tests_wait_for_states() -> None:
    report(check_waits(sources()))


def test_every_tracked_text_speaks_of_the_project_alone() -> None:
    report(finding for path, text in tracked_texts() for finding in rules.check_text(path, text))


def test_every_tracked_text_uses_the_words_of_the_glossary() -> None:
    report(finding for path, text in tracked_texts() for finding in rules.check_wording(path, text))
