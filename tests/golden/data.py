"""Access to the recorded data for tests of any area."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

APACHE = Path(__file__).parent / "apache-5.5.0"
STORES = ("store-clean", "store-crashed")


@cache
def messages(store: str) -> dict[str, Any]:
    """Everything that is known about a recorded store."""
    content: dict[str, Any] = json.loads((APACHE / f"{store}.messages.json").read_bytes())
    return content


@cache
def files(store: str) -> dict[str, bytes]:
    """Every file of a recorded store, by its path below ``store/``."""
    with tarfile.open(APACHE / f"{store}.tar.xz") as archive:
        return {
            member.name.removeprefix("store/"): reader.read()
            for member in archive.getmembers()
            if (reader := archive.extractfile(member)) is not None
        }


def extract(store: str, target: Path) -> Path:
    """Unpack a recorded store below ``target`` and return its root directory."""
    with tarfile.open(APACHE / f"{store}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / "store"


def log_segments(store: str) -> list[tuple[int, bytes]]:
    """(log offset of its first byte, content) of each commit log file, in order."""
    return [
        (int(path.removeprefix("commitlog/")), content)
        for path, content in sorted(files(store).items())
        if path.startswith("commitlog/")
    ]


@cache
def frames() -> list[dict[str, Any]]:
    """The recorded frames."""
    content: list[dict[str, Any]] = json.loads((APACHE / "frames.json").read_bytes())
    return content
