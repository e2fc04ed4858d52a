"""Tests the parts of the harness that need no server: looking for its tools, parsing the output of programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apache import artifacts
from tests.apache.benchmark import parse_reports


def test_reports_of_benchmark_programs_are_parsed_up_to_the_last_whole_line() -> None:
    output = (
        "Current Time: 2026-01-01 00:00:00,000"
        " | Send TPS: 5 | Send Failed: 2 | Response Failed: 1 | Average RT(ms): 0.5\n"
        "something else\n"
        "[Complete] Send Total: 10 | Send TPS: 7 | Send Failed: 0 | Average RT(ms): 0.2\n"
        "Current Time: 2026-01-01 00:00:01,000 | Send TPS: 9"
    )
    first, last = parse_reports("producer", output)
    assert (first.messages_per_s, first.failed, first.figures["Average RT(ms)"]) == (5, 3, 0.5)
    assert (last.messages_per_s, last.failed) == (7, 0)


@pytest.mark.parametrize("variable", ["CI", "ORBITMQ_REQUIRE_APACHE"])
def test_missing_tools_skip_but_fail_where_they_must_not(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ORBITMQ_APACHE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("ORBITMQ_REQUIRE_APACHE", raising=False)
    assert artifacts.missing_tools(go=True) == ["java", "javac", "mvn", "go"]
    with pytest.raises(pytest.skip.Exception, match="java, javac, mvn"):
        artifacts.require()
    monkeypatch.setenv(variable, "true" if variable == "CI" else "1")
    with pytest.raises(pytest.fail.Exception, match="java, javac, mvn"):
        artifacts.require()
