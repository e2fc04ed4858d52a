"""The history keeps a day, thins out old samples, survives a restart, and is bounded."""

from __future__ import annotations

from pathlib import Path

from orbitmq.console.history import SERIES_MAX, History

HOUR_MS = 3_600_000


def test_points_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    first = History(path)
    first.add(1_000, {"all/in": 5.0})
    first.close()
    second = History(path)
    assert second.read("all/in", 0, 2_000) == [(1_000, 5.0)]
    second.close()


def test_points_older_than_an_hour_are_one_a_minute_and_older_than_a_day_gone() -> None:
    history = History(None, hours=2)
    for at_ms in range(0, 3 * HOUR_MS, 10_000):
        history.add(at_ms, {"x": float(at_ms)})
    now_ms = 3 * HOUR_MS - 10_000
    everything = [at for at, _ in history._database.execute("SELECT at, value FROM points ORDER BY at")]
    assert min(everything) >= now_ms - 2 * HOUR_MS
    old = [at for at in everything if at < now_ms - HOUR_MS - 120_000]
    assert 0 < len(old) <= 62
    assert len([at for at in everything if at >= now_ms - HOUR_MS]) == 361
    history.close()


def test_series_beyond_the_bound_are_not_kept_until_others_are_gone() -> None:
    history = History(None, hours=1)
    history.add(1, {f"s{number}": 1.0 for number in range(SERIES_MAX + 5)})
    assert len(history.names()) == SERIES_MAX
    history.add(1 + 2 * HOUR_MS, {"late": 1.0})
    history.add(2 + 2 * HOUR_MS, {"late": 1.0})
    assert history.names() == ["late"]
    history.close()
