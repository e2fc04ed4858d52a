"""A cluster with something of everything in it, a console over it, and a browser that notes what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from tests.support.waiting import until_async

from orbitmq.admin import Admin, AdminOptions
from orbitmq.cli.console import option_meanings
from orbitmq.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionState,
)
from orbitmq.client.sync import LoopThread
from orbitmq.console.serve import RunningConsole, serve_console
from orbitmq.console.settings import ConsoleSettings

AXE: Final = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
_RUN_AXE: Final = """
() => axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).then(
  (result) => result.violations.map((one) => one.id + ": " + one.nodes.map((n) => n.html + n.failureSummary).join())
)
"""
WAIT_S: Final = 60.0
# The third level is the delay of a first retry: short, so that a dead letter does not take its usual ten seconds.
DELAY_LEVELS: Final = "1s 5s 1s 1s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(slots=True)
class Seeds:
    """Ids of messages with a history."""

    plain: str = ""
    delayed: str = ""
    dead: str = ""
    rolled_back: str = ""
    recalled: str = ""


@dataclass(slots=True)
class Site:
    """A console and the cluster behind it."""

    kind: str
    name_server: str
    url: str
    console: RunningConsole
    loop: LoopThread
    seeds: Seeds
    members: list[PushConsumer] = field(default_factory=list)


async def fill(name_server: str) -> tuple[Seeds, list[PushConsumer]]:
    """Messages of every kind; two members whose subscriptions differ stay online."""
    seeds = Seeds()
    async with Producer(
        "shop", name_server, check=lambda _: TransactionState.ROLLBACK, send_timeout_s=30.0
    ) as producer:
        for number in range(60):
            body = f'{{"order": {number}, "customer": "c-{number % 7}", "password": "s3cret"}}'
            tag = "paid" if number % 2 else "new"
            sent = await producer.send(
                Message("orders", body, tags=tag, keys=f"order-{number}", properties={"price": str(number)})
            )
        seeds.plain = sent.message_id
        seeds.delayed = (await producer.send(Message("orders", "later", delay_level=18))).message_id
        timed = await producer.send(Message("orders", "never", delay_ms=600_000))
        seeds.recalled = timed.message_id
        if timed.recall_handle:
            await producer.recall("orders", timed.recall_handle)
        result = await producer.send_in_transaction(
            Message("orders", "no"), lambda *_: TransactionState.ROLLBACK
        )
        seeds.rolled_back = result.message_id
        seeds.dead = (await producer.send(Message("payments", "broken", keys="p-1", tags="card"))).message_id
        await producer.send(Message("payments", '{"broken": 2}', keys="p-2"))
    await _give_up(name_server)
    members = []
    for number, expression in enumerate(("new", "paid")):
        member = PushConsumer(
            "readers", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, instance_name=f"member-{number}"
        )
        member.subscribe("orders", expression, lambda message: None)
        await member.start()
        members.append(member)
    return seeds, members


async def _give_up(name_server: str) -> None:
    """A group that fails twice on every message, so that each becomes a dead letter."""
    tries: list[int] = []

    def fail(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        raise RetryLater

    consumer = PushConsumer("billing", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, reconsume_max=1)
    consumer.subscribe("payments", "*", fail)
    async with consumer:
        await until_async(lambda: tries.count(1) >= 2, "second try of both messages")
        async with Admin(name_server) as admin:
            from orbitmq.admin.deadletters import dead_groups

            deadline = asyncio.get_running_loop().time() + WAIT_S
            while sum(group.count for group in (await dead_groups(admin)).groups) < 2:
                assert asyncio.get_running_loop().time() < deadline, "no dead letters"
                await asyncio.sleep(0.1)
        # A stop tries once: on a busy machine an Apache broker may not answer in time, and a commit is lost.
        await consumer.persist_offsets(wait=True)


@contextlib.contextmanager
def running_console(
    loop: LoopThread,
    name_server: str,
    settings: ConsoleSettings | None = None,
    options: AdminOptions | None = None,
) -> Iterator[RunningConsole]:
    """A console on a free port."""
    settings = ConsoleSettings(sample_s=1.0, meanings=option_meanings()) if settings is None else settings
    admin = Admin(name_server) if options is None else Admin(name_server, options)
    serving = serve_console(admin, settings, port=0)
    running = loop.run(serving.__aenter__())
    try:
        yield running
    finally:
        loop.run(serving.__aexit__(None, None, None))


@contextlib.contextmanager
def site_of(kind: str, name_server: str, settings: ConsoleSettings | None = None) -> Iterator[Site]:
    """A filled cluster with its console."""
    loop = LoopThread()
    try:
        seeds, members = loop.run(fill(name_server))
        with running_console(loop, name_server, settings) as running:
            yield Site(kind, name_server, running.url.rstrip("/"), running, loop, seeds, members)
        for member in members:
            loop.run(member.stop())
    finally:
        loop.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser; without it the test is skipped, or fails in CI."""
    path = shutil.which("chromium")
    if path is None:
        reason = "no chromium on this machine (apt-get install chromium): the console cannot be tested in a browser"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    expect.set_options(timeout=WAIT_S * 1000)  # 5 s by default, which a busy machine misses
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@contextlib.contextmanager
def watched_page(browser: Browser, url: str, *, width: int = 1280, scheme: Any = "light") -> Iterator[Page]:
    """A page; at the end it fails if there was an error in it or a request to another host."""
    context = browser.new_context(
        base_url=url, viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(30_000)
    wrong: list[str] = []

    def check(route: Route) -> None:
        if route.request.url.startswith((url + "/", "blob:", "data:")):
            route.continue_()
        else:
            wrong.append(f"request to {route.request.url}")
            route.abort()

    context.route("**/*", check)
    page = context.new_page()
    page.on(
        "console", lambda said: wrong.append(f"{page.url}: {said.text}") if said.type == "error" else None
    )
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.expected_errors = wrong  # type: ignore[attr-defined]  # a test that provokes an error takes it out
    yield page
    context.close()
    assert not wrong, wrong


def check_access(page: Page) -> None:
    """No violation of WCAG A or AA that axe-core finds."""
    page.evaluate(AXE)
    found = page.evaluate(_RUN_AXE)
    assert not found, f"{page.url}: {found}"
