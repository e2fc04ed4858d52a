"""Configures this folder: every test in it runs against the real Apache RocketMQ and carries the marker `apache`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apache.artifacts import ApacheUnavailable, missing_tools, prepare
from tests.apache.fixtures import *  # noqa: F403 - pytest finds fixtures by name
from tests.apache.ours_fixtures import *  # noqa: F403 - pytest finds fixtures by name

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.apache)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetches and builds before the first test, so that a slow download does not count against its time limit."""
    wanted = any(item.get_closest_marker("apache") for item in session.items)
    if not wanted or session.config.option.collectonly or missing_tools(go=True):
        return
    try:
        prepare(go=True)
    except ApacheUnavailable:
        pass  # The fixtures retry, and a test that needs it fails with the reason.
