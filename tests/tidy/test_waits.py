"""The rules of ``waits.py`` find what they are for."""

from __future__ import annotations

import textwrap

import pytest
from tests.tidy.rules import Source
from tests.tidy.waits import check_waits

TEST = "tests/unit/test_a.py"
HELPER = """
def {name}(condition):
    while not condition():
        pass
"""


def findings(text: str, path: str = TEST, sleeps: int = 0, helpers: int = 0) -> list[str]:
    listed = ({path: sleeps} if sleeps else {}, {path: helpers} if helpers else {})
    return [
        found.partition(":")[0] for found in check_waits([Source.parse(path, textwrap.dedent(text))], *listed)
    ]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import time\ntime.sleep(1)", "test-sleep"),
        ("async def test():\n    await asyncio.sleep(0.1)", "test-sleep"),
        ("from time import sleep\nsleep(PAUSE_S)", "test-sleep"),
        (HELPER.format(name="until"), "polling-helper"),
        (HELPER.format(name="_wait_for_broker"), "polling-helper"),
        ("class A:\n" + textwrap.indent(HELPER.format(name="until"), "    "), "polling-helper"),
    ],
)
def test_new_sleep_and_new_helper_are_found(text: str, rule: str) -> None:
    assert findings(text) == [rule]
    assert findings(text, sleeps=1, helpers=1) != [rule], "a listed one may stay"
    assert findings(text, path="tests/support/waiting.py") == []
    assert findings(text, path="benchmarks/a.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "async def test():\n    await asyncio.sleep(0)",
        "def until():\n    return 7",
        "from tests.support.waiting import until\nuntil(lambda: done)",
    ],
)
def test_other_waits_are_left_alone(text: str) -> None:
    assert findings(text) == []


def test_entry_without_a_sleep_is_found() -> None:
    assert findings("pass", sleeps=2, helpers=1) == ["stale-exception", "stale-exception"]
