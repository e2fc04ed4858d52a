"""Windows and rates over counters."""

from __future__ import annotations

from orbitmq.broker.statistics.stats import BrokerStats

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
    broker = stats.windows("BROKER_PUT_NUMS", "C")
    assert broker is not None
    assert broker.minute == (120, 2.0, 0.0)


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


def test_item_that_appeared_late_is_measured_from_the_sample_before_it() -> None:
    stats = BrokerStats("C", T0)
    for step in range(1, 5):
        stats.sample(T0 + step * 10_000)
    stats.put("T", 0, 50, 100)
    stats.sample(T0 + 50_000)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert windows.minute == (50, 5.0, 50.0)


def test_hour_and_day_take_a_mark_every_ten_minutes_and_every_hour() -> None:
    stats = BrokerStats("C", T0)
    for step in range(1, 2 * 360 + 1):
        stats.put("T", 0, 1, 10)
        stats.sample(T0 + step * 10_000)
    windows = stats.windows("TOPIC_PUT_SIZE", "T")
    assert windows is not None
    assert windows.hour == (3600, 1.0, 10.0), "seven marks span an hour"
    assert windows.day == (7200, 1.0, 10.0)


def test_items_are_found_by_the_names_and_keys_of_apache() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 3, 2, 20)
    stats.get("G", "T", 3, 2, 20)
    stats.put("rmq_sys_wheel_timer", 0, 5, 50)
    stats.add("SNDBCK_PUT_NUMS", "T@G")
    stats.sample(T0 + 10_000)
    sums = {
        ("TOPIC_PUT_NUMS", "T"): 2,
        ("TOPIC_PUT_SIZE", "T"): 20,
        ("QUEUE_PUT_NUMS", "T@3"): 2,
        ("QUEUE_PUT_SIZE", "T@3"): 20,
        ("GROUP_GET_NUMS", "T@G"): 2,
        ("GROUP_GET_SIZE", "T@G"): 20,
        ("QUEUE_GET_NUMS", "T@3@G"): 2,
        ("QUEUE_GET_SIZE", "T@3@G"): 20,
        ("BROKER_PUT_NUMS", "C"): 7,
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "C"): 2,
        ("BROKER_GET_NUMS", "C"): 2,
        ("SNDBCK_PUT_NUMS", "T@G"): 1,
    }
    for (name, key), expected in sums.items():
        windows = stats.windows(name, key)
        assert windows is not None, (name, key)
        assert windows.minute.sum == expected, (name, key)
    for name, key in (
        ("TOPIC_PUT_NUMS", "U"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("BROKER_PUT_NUMS", "D"),
        ("X", ""),
    ):
        assert stats.windows(name, key) is None


def test_totals_of_the_broker_outlive_a_deleted_topic() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 0, 5, 50)
    stats.get("G", "T", 0, 3, 30)
    stats.forget_topic("T")
    assert (stats.put_count, stats.put_bytes, stats.get_count) == (5, 50, 3)
    assert (stats.user_put_count, stats.user_get_count) == (5, 3)
    stats.sample(T0 + 10_000)
    assert stats.put_rates(T0 + 20_000).ten_s == 0.0, (
        "what was counted before the deletion is not counted again"
    )
    assert stats.windows("TOPIC_PUT_NUMS", "T") is None
    stats.put("T", 0, 1, 10)
    stats.sample(T0 + 20_000)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert windows.minute.sum == 1, "a topic of the same name starts from zero"


def test_day_ends_at_local_midnight_and_system_topics_do_not_count() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 0, 3, 1)
    stats.put("rmq_sys_wheel_timer", 0, 9, 1)
    stats.sample(T0 + 10_000)
    assert stats.puts_before_today == 0
    stats.sample(T0 + 2 * 24 * 3_600_000)
    assert (stats.puts_before_yesterday, stats.puts_before_today) == (0, 3)


def test_put_times_tell_of_the_last_whole_minute() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 0, 1000, 1)
    stats.put_times.slow(4.7, 9)
    stats.put_times.slow(120.0, 1)
    assert stats.put_times.distribution() == [0] * 13, "the minute is not over"
    for step in range(1, 7):
        stats.sample(T0 + step * 10_000)
    times = stats.put_times
    assert times.distribution()[:5] == [990, 9, 0, 0, 1]
    assert times.percentile_ms(0.99) == 1.0
    assert 3.0 < times.percentile_ms(0.995) <= 4.0
    assert 110.0 < times.percentile_ms(1.0) <= 120.0
    assert times.max_ms == 120


def test_put_times_without_messages_are_zero() -> None:
    stats = BrokerStats("C", T0)
    for step in range(1, 7):
        stats.sample(T0 + step * 10_000)
    assert stats.put_times.percentile_ms(0.99) == 0.0
    stats.put("T", 0, 100, 1)
    for step in range(7, 13):
        stats.sample(T0 + step * 10_000)
    assert stats.put_times.percentile_ms(0.99) == 0.99, (
        "as Apache, which cannot see below a millisecond either"
    )


def test_rates_before_the_first_sample_come_from_the_start() -> None:
    stats = BrokerStats("C", T0)
    stats.put("T", 0, 10, 1)
    assert stats.put_rates(T0) == (0.0, 0.0, 0.0)
    assert stats.put_rates(T0 + 2000).ten_s == 5.0
    stats.misses += 4
    assert stats.miss_rates(T0 + 2000).ten_s == 2.0
