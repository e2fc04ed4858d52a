"""Findings of ``orbitmq pipeline check``, without Spark."""

from __future__ import annotations

from orbitmq.pipeline.check import _finding
from orbitmq.spark.errors import EnvironmentFault, RunFailed


def test_a_field_is_named_once() -> None:
    for error in (
        EnvironmentFault("sources.orders: there is no topic 'orders'"),
        RunFailed("sources.orders: there is no topic 'orders'"),
        EnvironmentFault("there is no topic 'orders'"),
    ):
        found = _finding(error, "sources.orders")
        assert (found.path, found.problem) == ("sources.orders", "there is no topic 'orders'")
