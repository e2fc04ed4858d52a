"""Pictures of every page of the console, light and dark, for docs/console.md.

    .venv/bin/python scripts/console_screenshots.py

Needs Chromium. The cluster is started here, on loopback, with a little of everything in it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.console.kit import DELAY_LEVELS, Site, chromium, site_of, watched_page
from tests.console.test_browser import PATHS

from orbitmq.console.view import link
from orbitmq.testing import run_broker

TARGET = Path(__file__).parent.parent / "docs" / "images" / "console"
SIZE = (1000, 620)


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "enablePropertyFilter": True,
        "recallMessageEnable": True,
        "messageDelayLevel": DELAY_LEVELS,
    }
    with run_broker(**settings) as broker, site_of("ours", broker.name_server) as site, chromium() as browser:
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


def _dead(site: Site) -> str:
    return link("messages", site.seeds.dead, topic="payments")


if __name__ == "__main__":
    main()
