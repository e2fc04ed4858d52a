"""The client pages are correct: their examples run, and the names they use exist."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import re
from concurrent.futures import Future
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import orbitmq.client
from orbitmq.client import options, sync
from orbitmq.testing import run_broker

DOCS = Path(__file__).parents[2] / "docs"
NAME_SERVER = "127.0.0.1:9876"
PAGE_SECONDS = 60.0


def examples(page: str) -> list[tuple[int, str]]:
    """Returns line and text of each Python block."""
    text = (DOCS / page).read_text("utf-8")
    return [
        (text.count("\n", 0, found.start(1)), found.group(1))
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


async def run_page(page: str, name_server: str) -> None:
    names: dict[str, Any] = {}
    for line, example in examples(page):
        # Blank lines before it, so that an error shows the line of the page.
        source = "\n" * line + example.replace(NAME_SERVER, name_server)
        code = compile(source, str(DOCS / page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert isinstance(code, CodeType)
        async with asyncio.timeout(PAGE_SECONDS):
            waiting = eval(code, names)
            if inspect.isawaitable(waiting):
                await waiting


@pytest.mark.slow
def test_examples_of_the_client_page_run_in_order() -> None:
    assert len(examples("client.md")) >= 8
    with run_broker(recallMessageEnable=True) as broker:
        asyncio.run(run_page("client.md", broker.name_server))


def public_things() -> list[Any]:
    return [getattr(module, name) for module in (orbitmq.client, sync) for name in module.__all__]


def known_names() -> set[str]:
    found = set(orbitmq.client.__all__) | set(sync.__all__) | {"client_context", "NAMESRV_ADDR", "sync"}
    found |= {"Future", *dir(Future)}
    for kind in vars(options).values():
        if dataclasses.is_dataclass(kind):
            found |= {field.name for field in dataclasses.fields(kind)}
    for thing in public_things():
        found |= {member for member in dir(thing) if not member.startswith("_")}
        if callable(thing) and not isinstance(thing, type):
            continue
        for _, function in inspect.getmembers(thing, callable):
            try:
                found |= set(inspect.signature(function).parameters)
            except (TypeError, ValueError):
                continue
    for fault in vars(__import__("orbitmq.errors", fromlist=["errors"])):
        found.add(fault)
    return found


def test_names_of_the_java_page_exist() -> None:
    known = known_names()
    rows = [
        line.split(" | ")
        for line in (DOCS / "java-names.md").read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) > 40
    for row in rows:
        for quoted in re.findall(r"`([^`]+)`", row[-1]):
            text = re.sub(r'"[^"]*"|\\\|', "", quoted)
            words = re.findall(r"[A-Za-z_]\w+", text)
            missing = [word for word in words if word not in known | {"await", "message", "raise", "True"}]
            assert not missing, f"{missing} of {row}"
