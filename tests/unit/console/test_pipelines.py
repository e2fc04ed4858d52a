"""Checkpoints of Spark as the page of pipelines reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.console.formats import FILTERS
from orbitmq.console.pages.pipelines import read_checkpoints

GOLDEN = (Path(__file__).parents[2] / "golden" / "spark" / "checkpoint-offsets-0.1").read_text("utf-8")


def checkpoint(folder: Path, *, begun: int, done: int, offsets: str = GOLDEN) -> Path:
    for name, newest in (("offsets", begun), ("commits", done)):
        (folder / name).mkdir(parents=True)
        for number in range(newest + 1):
            (folder / name / str(number)).write_text(offsets if name == "offsets" else "v1\n{}")
    return folder


def test_offsets_of_a_checkpoint_that_spark_wrote_are_read(tmp_path: Path) -> None:
    checkpoint(tmp_path / "orders" / "checkpoint", begun=4, done=3)
    [found] = read_checkpoints((tmp_path,))
    assert found.offsets == {"t1": {f"broker-a:{queue}": 75 for queue in range(4)}}
    assert (found.begun, found.batch, found.name) == (4, 3, "orders/checkpoint")
    assert found.state(found.done_ms or 0) == "in a batch"


def test_what_stands_beside_the_topics_is_no_topic(tmp_path: Path) -> None:
    line = '{"restarted at":{"t":{"broker-a":{"0":3}}},"read at":1763300000000,"t":{"broker-a":{"0":12}}}'
    checkpoint(tmp_path, begun=0, done=0, offsets=f"v1\n{{}}\n{line}")
    [found] = read_checkpoints((tmp_path,))
    assert found.offsets == {"t": {"broker-a:0": 12}}


@pytest.mark.parametrize("line", ['{"kafka": {"0": 3}}', "-", "[1]", '{"version": 1}', ""])
def test_offsets_of_another_source_are_passed_over(tmp_path: Path, line: str) -> None:
    checkpoint(tmp_path, begun=0, done=0, offsets=f"v1\n{{}}\n{line}")
    [found] = read_checkpoints((tmp_path,))
    assert (found.offsets, found.error) == ({}, "")


def test_directory_that_is_not_there_has_no_pipelines(tmp_path: Path) -> None:
    assert read_checkpoints((tmp_path / "none",)) == []


@pytest.mark.parametrize(
    ("number", "what", "expected"),
    [
        (1, "groups", "1 group"),
        (2, "groups", "2 groups"),
        (1, "entries", "1 entry"),
        (0, "topics", "0 topics"),
    ],
)
def test_counted_things_are_named_in_the_right_number(number: int, what: str, expected: str) -> None:
    assert FILTERS["counted"](number, what) == expected
