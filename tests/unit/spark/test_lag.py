"""Lag by topic, computed from Spark's reports."""

from __future__ import annotations

import json
from typing import Any

from orbitmq.spark.lag import lag_by_topic


def progress(end: Any, latest: Any) -> dict[str, Any]:
    return {"sources": [{"endOffset": end, "latestOffset": latest}]}


def test_lag_is_what_lies_between_the_batch_and_the_ends() -> None:
    end = {"a": {"x": {"0": 5, "1": 7}}}
    latest = {
        "a": {"x": {"0": 9, "1": 7}, "y": {"0": 3}},
        "b": {"x": {"0": 2}},
        "lost ranges": {"a/x/0": [[0, 5]]},
    }
    assert lag_by_topic(progress(end, latest)) == {"a": 7, "b": 2}
    assert lag_by_topic(progress(json.dumps(end), json.dumps(latest))) == {"a": 7, "b": 2}


def test_other_sources_and_empty_reports_say_nothing() -> None:
    assert lag_by_topic({"sources": [{"endOffset": 7, "latestOffset": None}, {}]}) == {}
    assert (
        lag_by_topic({"sources": [{"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}}]}) == {}
    )
    assert lag_by_topic({}) == {}
    assert lag_by_topic(progress("no json", "no json")) == {}
    assert lag_by_topic(progress(None, {"a": {"x": {"0": 4}}})) == {"a": 4}
