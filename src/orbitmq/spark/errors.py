"""Failures that the author of a pipeline or query can fix. The text of each is one line, and each has its own exit
code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final

from orbitmq.errors import OrbitError

__all__ = ["EnvironmentFault", "PipelineError", "RunFailed", "SpecError", "did_you_mean"]

EXIT_FAILED: Final = 1
EXIT_MISUSED: Final = 2


class PipelineError(OrbitError):
    """The base class of failures of pipelines and queries."""

    exit_code: ClassVar[int] = EXIT_FAILED


class SpecError(PipelineError):
    """The file asks for something impossible. The text begins with the path of the field."""

    exit_code = EXIT_MISUSED

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)


class EnvironmentFault(PipelineError):
    """Something that the pipeline needs is missing, such as Java, a package, a server, a topic or a directory."""

    exit_code = EXIT_MISUSED


class RunFailed(PipelineError):
    """The pipeline started but could not continue."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `` (did you mean ...?)`` if a name is similar, otherwise the known names, or an empty text if there are
    none."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    lowered = [one for one in names if one.lower() == name.lower()]
    if lowered or close:
        return f" (did you mean {(lowered or close)[0]!r}?)"
    return f" (known: {', '.join(names)})" if names else ""
