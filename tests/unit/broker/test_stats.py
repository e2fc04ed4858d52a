"""Windows and rates over counters."""

from __future__ import annotations

from orbitmq.broker.stats import BrokerStats

T0 = 1_000_000


def test_windows_say_what_happened_between_the_first_and_the_last_sample() -> None:
    stats = BrokerStats("C", T0)
    for step in range(8):
        stats.sample(T0 + step * 10_000)
        stats.put("T", 0, 10, 1000)
        stats.put("T", 1, 10, 1000)
    stats.sample(T0 + 80_000)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert windows.minute.sum == 120, "seven samples span sixty seconds"
    assert windows.minute.tps == 2.0
    assert windows.minute.average == 10.0
    assert stats.windows("BROKER_PUT_NUMS", "C") == windows


def test_item_never_counted_has_no_windows_and_a_new_one_has_empty_ones() -> None:
    stats = BrokerStats("C", T0)
    assert stats.windows("GROUP_GET_NUMS", "T@G") is None
    stats.get("G", "T", 0, 5, 500)
    windows = stats.windows("GROUP_GET_NUMS", "T@G")
    assert windows is not None
    assert windows.minute.sum == 0


def test_rates_look_back_ten_seconds_a_minute_and_ten_minutes() -> None:
    stats = BrokerStats("C", T0)
    for step in range(61):
        stats.sample(T0 + step * 10_000)
        stats.put("T", 0, 100 if step == 60 else 10, 1)
    rates = stats.put_rates(T0 + 610_000)
    assert rates.ten_s == 10.0
    assert rates.one_minute == (100 + 5 * 10) / 60
    assert round(rates.ten_minutes, 3) == round((100 + 59 * 10) / 600, 3)


def test_a_new_day_moves_the_totals_back() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 0, 3, 1)
    stats.start_day()
    stats.put("T", 0, 4, 1)
    stats.start_day()
    assert (stats.puts_before_yesterday, stats.puts_before_today, stats.put_count) == (3, 7, 7)


def test_deleted_topic_and_group_leave_no_counters() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 0, 1, 1)
    stats.get("G", "T", 0, 1, 1)
    stats.get("G", "U", 0, 1, 1)
    stats.forget_topic("T")
    assert stats.puts == {}
    stats.forget_group("G")
    assert stats.gets == {}
