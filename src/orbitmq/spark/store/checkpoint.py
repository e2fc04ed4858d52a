"""Reads from the checkpoint of a store up to which log offset its queues are known to be complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyarrow import fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.record.scan import scan
from orbitmq.spark.store.files import Segment, open_location, open_segment
from orbitmq.store.maintenance.checkpoint import CHECKPOINT_BYTES, believable

__all__ = ["indexed_until", "store_root"]

_QUEUES_OFFSET: Final = 5
"""Index of the checkpoint number that says how far the queues have been flushed."""


def store_root(location: str) -> Path | None:
    """Returns the directory of a local store, or None if it is remote or has no consume queues or no checkpoint."""
    filesystem, path = open_location(location)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return None
    root = Path(path)
    root = root.parent if root.name == "commitlog" else root
    return root if (root / "consumequeue").is_dir() and (root / "checkpoint").is_file() else None


def indexed_until(location: str, segments: Sequence[Segment]) -> int | None:
    """Returns the log offset up to which all consume queues are on disk, or None if that is unknown or not the end of
    a record."""
    root = store_root(location)
    if root is None:
        return None
    try:
        page = (root / "checkpoint").read_bytes()[:CHECKPOINT_BYTES]
    except OSError:
        return None
    frontier = believable(page)[_QUEUES_OFFSET]
    for segment in segments:
        at = frontier - segment.log_offset
        if 0 <= at < segment.size_bytes:
            if at == 0:
                return frontier
            with open_segment(segment) as data:
                size = int.from_bytes(data.read(at, at + 4), "big", signed=True)
                view = data.read(at, at + max(size, 64))
                walk = scan(view, 0, len(view), check_crc=False, log_base=frontier)
                return frontier if size == 0 or next(iter(walk), None) is not None else None
    return None
