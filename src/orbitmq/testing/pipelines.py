"""Tests pipeline files in pytest: ``pipeline_cases`` for cases in a file next to the pipeline, ``assert_pipeline``
for rows given in code.

Both need ``orbitmq[spark]`` and a Spark session. The fixture ``pipeline_session`` provides one for the whole run.
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
    """Returns the test cases next to a pipeline file, for ``pytest.mark.parametrize("case", ..., ids=str)``."""
    return load_cases(cases_file(Path(file)))


def assert_case(session: SparkSession, file: str | Path, case: Case) -> None:
    """Raises ``AssertionError`` with the differences unless the pipeline of ``file`` returns the rows that ``case``
    expects."""
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
    """Like ``assert_case``, for rows given here as lists or as names of files next to the pipeline. ``parameters``
    are those of the pipeline."""
    case = case_of(Path(file).stem, sources, expect, parameters, Path(file).parent)
    assert_case(session, file, case)
