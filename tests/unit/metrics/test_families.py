"""The text Prometheus reads, checked by its own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orbitmq.metrics.endpoint import parse_labels
from orbitmq.metrics.families import Declared, Families, Histogram, Kind

COUNT = Declared("things_total", Kind.COUNTER, "What came.", ("topic",))
SIZES = Declared("things_size", Kind.HISTOGRAM, "How large.", ("topic",), (10, 100))


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_text_with_awkward_label_values_is_read_back_as_it_was() -> None:
    families = Families({"cluster": 'a"b'}, 100)
    awkward = 'back\\slash "quoted"\nnext line Straße'
    families.start(COUNT).add(3, awkward)
    assert samples(families.text()) == {
        ("things_total", (("cluster", 'a"b'), ("topic", awkward))): 3.0,
    }


def test_label_value_that_is_no_utf8_does_not_break_the_answer() -> None:
    families = Families({}, 100)
    families.start(COUNT).add(1, "\udc80")
    assert families.text().encode()


def test_histogram_counts_are_cumulative_and_bounds_belong_to_their_bucket() -> None:
    histogram = Histogram(SIZES.bounds)
    for value, count in ((10, 2), (11, 1), (100, 1), (101, 5)):
        histogram.add(value, count)
    families = Families({}, 100)
    families.start(SIZES).add_histogram(histogram, "t")
    found = samples(families.text())
    by_edge = {
        dict(labels)["le"]: value for (name, labels), value in found.items() if name == "things_size_bucket"
    }
    assert by_edge == {"10.0": 2, "100.0": 4, "+Inf": 9}
    assert found["things_size_count", (("topic", "t"),)] == 9
    assert found["things_size_sum", (("topic", "t"),)] == 2 * 10 + 11 + 100 + 5 * 101


def test_samples_beyond_the_limit_are_left_out_and_said_so() -> None:
    families = Families({}, 2)
    family = families.start(COUNT)
    for number in range(5):
        family.add(number, f"topic-{number}")
    found = samples(families.text())
    assert [name for name, _ in found].count("things_total") == 2
    assert found["orbitmq_metrics_left_out", (("metric", "things_total"),)] == 3


def test_family_without_samples_is_not_mentioned() -> None:
    families = Families({}, 10)
    families.start(COUNT)
    assert families.text() == ""


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("zone:a,rack:7", {"zone": "a", "rack": "7"}),
        (" zone : a ", {}),
        ("zone:a,nonsense,1x:b,url:http://x", {"zone": "a", "url": "http://x"}),
    ],
)
def test_labels_of_the_operator_are_read_and_what_is_none_is_left_out(
    text: str, labels: dict[str, str]
) -> None:
    assert parse_labels(text) == labels
