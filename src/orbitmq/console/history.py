"""Metrics over time in a small SQLite file: ten-second points for an hour, one-minute points for a day.

The file is bounded: only the first ``SERIES_MAX`` series are kept, and expired points are deleted. It can be deleted
at any time; charts are then empty at first.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["History"]

SERIES_MAX: Final = 1_000
_FINE_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_POINTS_MAX: Final = 720
"""Limit of the points per chart. A chart cannot show more points than it has pixels."""


class History:
    """Stores and reads series of values. Thread-safe; times are in milliseconds."""

    def __init__(self, path: Path | None, *, hours: int = 24) -> None:
        self._keep_ms = hours * 3_600_000
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False)
        self._database.executescript(
            """
            PRAGMA journal_mode=WAL;
            PRAGMA synchronous=OFF;
            CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
            CREATE TABLE IF NOT EXISTS points (
                series INTEGER NOT NULL, at INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (series, at)
            ) WITHOUT ROWID;
            CREATE INDEX IF NOT EXISTS points_at ON points (at);
            """
        )
        self._series: dict[str, int] = {
            name: number for number, name in self._database.execute("SELECT id, name FROM series")
        }

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def add(self, at_ms: int, values: Mapping[str, float]) -> None:
        """Store one value of each given series, measured at ``at_ms``."""
        with self._lock, self._database:
            rows = [
                (number, at_ms, float(value))
                for name, value in values.items()
                if (number := self._number(name)) is not None
            ]
            self._database.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?)", rows)
            self._forget(at_ms)

    def _number(self, name: str) -> int | None:
        number = self._series.get(name)
        if number is None and len(self._series) < SERIES_MAX:
            number = self._database.execute("INSERT INTO series (name) VALUES (?)", (name,)).lastrowid
            assert number is not None, "an insert has a row id"
            self._series[name] = number
        return number

    def _forget(self, now_ms: int) -> None:
        """Delete expired points, and thin those older than an hour to one per minute."""
        delete = self._database.execute
        delete("DELETE FROM points WHERE at < ?", (now_ms - self._keep_ms,))
        end = now_ms - _FINE_MS
        delete(
            """
            DELETE FROM points WHERE at >= ? AND at < ? AND (series, at) NOT IN (
                SELECT series, max(at) FROM points WHERE at >= ? AND at < ? GROUP BY series, at / ?
            )
            """,
            (end - 2 * _MINUTE_MS, end, end - 2 * _MINUTE_MS, end, _MINUTE_MS),
        )
        gone = self._database.execute(
            "SELECT id, name FROM series WHERE NOT EXISTS (SELECT 1 FROM points WHERE series = series.id)"
        ).fetchall()
        for number, name in gone:
            delete("DELETE FROM series WHERE id = ?", (number,))
            self._series.pop(name, None)

    def read(self, name: str, begin_ms: int, end_ms: int) -> list[tuple[int, float]]:
        """Returns the times and values of a series, oldest first, thinned to what a chart can show."""
        with self._lock:
            number = self._series.get(name)
            if number is None:
                return []
            rows = self._database.execute(
                "SELECT at, value FROM points WHERE series = ? AND at >= ? AND at < ? ORDER BY at",
                (number, begin_ms, end_ms),
            ).fetchall()
        step = -(-len(rows) // _POINTS_MAX) or 1
        return [(int(at), float(value)) for at, value in rows[::step]]

    def names(self, prefix: str = "") -> list[str]:
        with self._lock:
            return sorted(name for name in self._series if name.startswith(prefix))
