"""Tests of pipeline files in pytest: ``pipeline_cases`` next to a file, ``assert_pipeline`` for rows in code.

Both need a Spark session; the fixture ``pipeline_session`` has one for the whole run. Needs ``orbitmq[spark]``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbitmq.pipeline.cases import Case, case_of, cases_file, load_cases
from orbitmq.pipeline.testing import run_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["assert_case", "assert_pipeline", "pipeline_cases"]

Rows = str | Path | Sequence[Any]


def pipeline_cases(file: str | Path) -> list[Case]:
    """The test cases next to a pipeline file, for ``pytest.mark.parametrize("case", ..., ids=str)``."""
    return load_cases(cases_file(Path(file)))


def assert_case(session: SparkSession, file: str | Path, case: Case) -> None:
    """Fail with the difference unless the pipeline of ``file`` makes the rows that ``case`` expects."""
    outcome = run_case(session, Path(file), case, os.environ)
    if not outcome.passed:
        raise AssertionError("\n".join([case.name, *outcome.lines()]))


def assert_pipeline(
    session: SparkSession,
    file: str | Path,
    sources: Mapping[str, Rows],
    expect: Mapping[str, Rows],
    **parameters: object,
) -> None:
    """The same for rows given here: lists, or names of files next to the pipeline. ``parameters`` are those of the
    file."""
    case = case_of(Path(file).stem, sources, expect, parameters, Path(file).parent)
    assert_case(session, file, case)
