"""Converts Spark's exceptions to one actionable line, because a Java stack does not help the author of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orbitmq.spark.errors import PipelineError, RunFailed, SpecError

__all__ = ["explained", "failure", "reason"]

_LENGTH_MAX: Final = 500
_STACK: Final = re.compile(
    r"^\s*(?:at |File \"|Traceback |\.\.\. \d+ more|During handling|The above exception)"
)
_OURS: Final = re.compile(
    r"(?:^|\s)(?:orbitmq|__main__)[\w.]*\.(\w+(?:Error|Exception|Illegal|Found|Lost|Failed|Fault)): (.+)"
)
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Illegal|Exit|Interrupt)): (.+)")
_JAVA: Final = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)")
_NOISE: Final = ("PySparkRuntimeError", "SparkException", "StreamingQueryException", "PythonException")


def reason(error: BaseException) -> str:
    """Returns the cause of an error in one line, without the stack and Spark's wrapping."""
    text = str(error)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    ours = [found for line in lines if (found := _OURS.search(line))]
    if ours:
        return _short(ours[-1][2])
    if "== SQL" in text or "line " in text.partition("\n")[0]:
        return _short(_sql_reason(lines))
    for line in reversed(lines):
        # The last exception printed by a worker is the innermost one; Spark's own wrappers say less.
        found = _PYTHON.match(line.strip())
        if found and found[1] not in _NOISE and not _STACK.match(line):
            return _short(f"{found[1]}: {found[2]}")
    for line in reversed(lines):
        found = _JAVA.match(line.strip())
        if found and found[1] not in _NOISE:
            return _short(f"{found[1]}: {found[2]}")
    first = next((line for line in lines if not _STACK.match(line)), "") or type(error).__name__
    return _short(first)


def _sql_reason(lines: list[str]) -> str:
    """Returns the problem and its position as reported by the SQL parser or analyser."""
    kept: list[str] = []
    for line in lines:
        if line.startswith(("== SQL", "JVM stacktrace", "'", "+- ", ":")) or _STACK.match(line):
            break
        kept.append(line.strip().rstrip(";"))
    return " ".join(kept)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH_MAX else text[: _LENGTH_MAX - 3] + "..."


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Raises Spark's errors inside the block as a ``SpecError`` of this field."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise SpecError(path, reason(error)) from error


def failure(name: str, error: BaseException) -> PipelineError:
    """Converts any failure of a query to a ``PipelineError``, whether it comes from Spark, the JVM or a sink's
    library."""
    return error if isinstance(error, PipelineError) else RunFailed(f"{name}: {reason(error)}")
