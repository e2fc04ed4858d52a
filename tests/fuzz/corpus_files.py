"""The inputs that are kept for each byte target: one archive a target, with what reached code that no other did."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "keep_inputs", "kept_inputs"]

FOLDER: Final = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX: Final = 16_384
ARCHIVE_BYTES_MAX: Final = 48 * 1024
"""An archive stays small enough for the repository; the shortest inputs are kept first."""
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def kept_inputs(target: str) -> list[bytes]:
    """Those of a target, in a fixed order; none when it has no archive."""
    path = FOLDER / f"{target}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in sorted(archive.namelist())]


def keep_inputs(target: str, inputs: Iterable[bytes]) -> int:
    """Replace the archive of a target; returns how many inputs it has. The same inputs make the same file."""
    chosen: dict[str, bytes] = {}
    room = ARCHIVE_BYTES_MAX
    for raw in sorted(set(inputs), key=lambda raw: (len(raw), raw)):
        if len(raw) > INPUT_BYTES_MAX:
            break
        packed = len(raw) // 4 + 150  # about what it takes in the archive
        if packed > room:
            break
        room -= packed
        chosen[hashlib.sha256(raw).hexdigest()[:20]] = raw
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(FOLDER / f"{target}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in sorted(chosen.items()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), raw, zipfile.ZIP_DEFLATED)
    return len(chosen)
