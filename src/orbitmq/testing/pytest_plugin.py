"""Fixtures for users' own test suites: ``rocketmq_broker``, ``rocketmq_topic`` and ``pipeline_session``. pytest loads
this module automatically."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orbitmq.testing.run_broker import RunningBroker

_serial = itertools.count(1)


@pytest.fixture(scope="session")
def rocketmq_broker() -> Iterator[RunningBroker]:
    """A name server and a broker for the whole run; clients connect to ``rocketmq_broker.name_server``."""
    # Imported here: pytest loads this module in every run, also in those that need no broker.
    from orbitmq.testing.run_broker import run_broker

    with run_broker() as broker:
        yield broker


@pytest.fixture
def rocketmq_topic(rocketmq_broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A new topic with four queues, for one test."""
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:60].strip("-")
    return rocketmq_broker.create_topic(f"{test}-{next(_serial)}")


@pytest.fixture(scope="session")
def pipeline_session() -> Iterator[SparkSession]:
    """A local Spark session for tests of pipeline files; see ``orbitmq.testing.pipelines``."""
    from orbitmq.pipeline.session import build_session

    session = build_session("local[2]", "pipeline tests")
    yield session
    session.stop()
