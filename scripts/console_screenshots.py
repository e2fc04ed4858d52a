"""Takes screenshots of every page of the console, light and dark, for docs/console.md.

    .venv/bin/python scripts/console_screenshots.py [--minutes 60]

Needs Chromium. Starts a master, a slave and clients on loopback, and runs them for an hour to fill the charts.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from playwright.sync_api import Browser
from scripts.console_traffic import running_slave, traffic
from tests.console.kit import DELAY_LEVELS, Site, chromium, site_of, watched_page
from tests.console.test_browser import PATHS

from orbitmq.cli.console import option_meanings
from orbitmq.console.settings import ConsoleSettings
from orbitmq.console.view import link
from orbitmq.testing import run_broker

TARGET = Path(__file__).parent.parent / "docs" / "images" / "console"
SIZE = (1000, 620)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    seconds = parser.parse_args().minutes * 60
    TARGET.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "enablePropertyFilter": True,
        "recallMessageEnable": True,
        "messageDelayLevel": DELAY_LEVELS,
    }
    settings["initAuthenticationUser"] = '{"username":"admin","password":"change-me-now"}'
    with (
        tempfile.TemporaryDirectory() as directory,
        run_broker(brokerName="broker-a", **settings) as broker,
        running_slave(broker, Path(directory) / "slave"),
        site_of("ours", broker.name_server, _settings(Path(directory) / "checkpoints")) as site,
        chromium() as browser,
        contextlib.ExitStack() as stack,
    ):
        clients = traffic(broker.name_server, seconds)
        site.loop.run(clients.__aenter__())
        stack.callback(lambda: site.loop.run(clients.__aexit__(None, None, None)))
        _change(browser, site)
        paths = {name: path(site) for name, path in PATHS.items()} | {"dead message": _dead(site)}
        for scheme in ("light", "dark"):
            with watched_page(browser, site.url, width=SIZE[0], scheme=scheme) as page:
                page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
                for name, path in paths.items():
                    page.goto(path)
                    page.wait_for_timeout(300)
                    file = TARGET / f"{name.replace(' ', '-')}-{scheme}.png"
                    file.write_bytes(page.screenshot())
                    print(f"{file.name}: {file.stat().st_size // 1024} KiB")


def _settings(checkpoints: Path) -> ConsoleSettings:
    """Returns the settings, with the checkpoint of a query that has read all but the last messages."""
    offsets = '{"orders": {"broker-a": {"0": 14, "1": 12, "2": 14, "3": 13}}}'
    for name, count in (("offsets", 8), ("commits", 8)):
        folder = checkpoints / "orders-to-lake" / name
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / str(number)).write_text(f"v1\n{{}}\n{offsets}" if name == "offsets" else "v1\n{}")
    return ConsoleSettings(sample_s=10.0, meanings=option_meanings(), pipelines=(checkpoints,))


def _change(browser: Browser, site: Site) -> None:
    """Creates a user and a rule manually, so that they appear in the pictures, including that of the audit log."""
    with watched_page(browser, site.url) as page:
        for summary, fields in (
            ("Create or change a user", {"username": "orders", "password": "orders-secret"}),
            ("Add a rule", {"subject": "orders", "resource": "Topic:orders"}),
        ):
            page.goto("/access")
            page.get_by_text(summary).click()
            form = page.locator("details[open]")
            for name, value in fields.items():
                form.locator(f"input[name={name}]").fill(value)
            if "resource" in fields:
                form.get_by_label("Pub").check()
            form.get_by_role("button", name="Preview").click()
            page.locator(".confirm button[type=submit]").click()
            page.locator(".note.good").wait_for()


def _dead(site: Site) -> str:
    return link("messages", site.seeds.dead, topic="payments")


if __name__ == "__main__":
    main()
