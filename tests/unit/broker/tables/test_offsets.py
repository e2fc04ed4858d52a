"""Consumer offsets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest
from tests.golden import data
from tests.unit.broker.kit import CONFIG, safe_file

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.errors import CorruptionError
from orbitmq.model.data_version import DataVersion
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire import bodies

GOLDEN = data.APACHE / "config" / "consumerOffset.json"


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsets:
    return ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, "consumerOffset.json"))


def test_apaches_file_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(GOLDEN.read_bytes())
    offsets = ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, path.name))
    offsets.load()
    assert offsets.query("GoldenG", "GoldenT", 3) == 4
    assert offsets.content() == GOLDEN.read_bytes()
    offsets.persist()
    assert not path.with_name("consumerOffset.json.bak").exists(), "nothing changed, nothing to save"


def test_commit_and_query(offsets: ConsumerOffsets) -> None:
    assert offsets.query("g", "T", 0) == -1
    offsets.commit("host", "g", "T", 0, 5)
    offsets.commit("host", "g", "T", 1, 6)
    offsets.commit("host", "g", "T", 0, 7)
    assert (offsets.query("g", "T", 0), offsets.query("g", "T", 1), offsets.query("g", "T", 2)) == (7, 6, -1)
    assert offsets.queues_of("g", "T") == {0: 7, 1: 6}
    assert offsets.queues_of("g", "U") == {}


def test_a_smaller_offset_is_taken_with_a_warning(
    offsets: ConsumerOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    offsets.commit("host", "g", "T", 0, 5)
    with caplog.at_level(logging.WARNING):
        offsets.commit("host", "g", "T", 0, 4)
    assert offsets.query("g", "T", 0) == 4
    assert "moves back" in caplog.text


def test_the_version_moves_every_500_commits(offsets: ConsumerOffsets) -> None:
    before = offsets.data_version
    for number in range(499):
        offsets.commit("host", "g", "T", 0, number)
    assert offsets.data_version == before
    offsets.commit("host", "g", "T", 0, 499)
    assert offsets.data_version.counter == before.counter + 1


def test_a_reset_is_seen_at_once_and_handed_out_once(offsets: ConsumerOffsets) -> None:
    offsets.commit("host", "g", "T", 0, 50)
    offsets.assign_reset("g", "T", 0, 10)
    assert offsets.query("g", "T", 0) == 10
    assert offsets.reset_pending("g", "T", 0)
    assert not offsets.reset_pending("g", "T", 1)
    assert offsets.take_reset("g", "T", 1) is None
    assert offsets.take_reset("g", "U", 0) is None
    assert offsets.take_reset("g", "T", 0) == 10
    assert offsets.take_reset("g", "T", 0) is None
    assert not offsets.reset_pending("g", "T", 0)
    assert offsets.query("g", "T", 0) == 10


def test_a_pending_reset_is_ignored_when_resets_go_through_the_clients(tmp_path: Path) -> None:
    config = BrokerConfig(server_side_reset=False)
    offsets = ConsumerOffsets(config, ManualClock(), safe_file(tmp_path, "o.json"))
    offsets.assign_reset("g", "T", 0, 10)
    offsets.commit("host", "g", "T", 0, 11)
    assert offsets.query("g", "T", 0) == 11


def test_views_by_group_and_topic(offsets: ConsumerOffsets) -> None:
    for topic, group in (("U", "g"), ("T", "g"), ("T", "h")):
        offsets.commit("host", group, topic, 0, 1)
    assert offsets.topics_of("g") == ["T", "U"]
    assert offsets.groups_of("T") == ["g", "h"]
    assert offsets.topics_of("nobody") == offsets.groups_of("nothing") == []


def test_pull_positions_fall_back_to_committed_offsets(offsets: ConsumerOffsets) -> None:
    offsets.commit("host", "g", "T", 0, 3)
    assert offsets.pull_offset("g", "T", 0) == 3
    offsets.note_pull("g", "T", 0, 0, 9)
    offsets.note_pull("g", "T", 1, 0, 4)
    assert offsets.pull_offset("g", "T", 0) == 9
    offsets.clear_pulled("g", "T")
    assert offsets.pull_offset("g", "T", 0) == 3
    assert offsets.pull_offset("g", "T", 1) == -1


def test_the_smallest_offset_of_all_groups(offsets: ConsumerOffsets) -> None:
    offsets.commit("host", "g", "T", 0, 7)
    offsets.commit("host", "h", "T", 0, 5)
    offsets.commit("host", "h", "T", 1, 2)
    offsets.commit("host", "h", "U", 0, 0)
    assert offsets.min_offsets("T") == {0: 5, 1: 2}
    assert offsets.min_offsets("T", ["h"]) == {0: 7}
    assert offsets.query("h", "T", 0) == 5, "asking changes nothing"


def test_clone_and_remove(offsets: ConsumerOffsets) -> None:
    offsets.commit("host", "g", "T", 0, 7)
    assert offsets.clone("g", "copy", "T")
    assert not offsets.clone("g", "copy", "U")
    offsets.commit("host", "g", "T", 0, 8)
    assert offsets.query("copy", "T", 0) == 7
    offsets.note_pull("g", "T", 0, 0, 9)
    offsets.assign_reset("g", "T", 0, 1)
    assert offsets.remove_group("g") == 1
    assert offsets.query("g", "T", 0) == offsets.pull_offset("g", "T", 0) == -1
    assert offsets.take_reset("g", "T", 0) is None
    assert offsets.remove_topic("T") == 1
    assert offsets.committed == {}


def test_removing_a_group_spares_groups_with_a_similar_name(offsets: ConsumerOffsets) -> None:
    for group in ("g", "gg", "g-g"):
        offsets.commit("host", group, "g", 0, 1)
    offsets.remove_group("g")
    assert offsets.groups_of("g") == ["g-g", "gg"]
    offsets.remove("gg", "g")
    assert offsets.groups_of("g") == ["g-g"]


def test_a_master_s_offsets_are_merged_over_ours(offsets: ConsumerOffsets) -> None:
    offsets.commit("host", "mine", "T", 0, 1)
    offsets.commit("host", "g", "T", 1, 1)
    version = DataVersion(counter=9, timestamp_ms=1)
    offsets.merge({"T@g": {0: 5, 1: 6}}, version)
    assert offsets.queues_of("g", "T") == {0: 5, 1: 6}
    assert offsets.query("mine", "T", 0) == 1
    assert offsets.data_version == version


@pytest.mark.parametrize("loaded", [False, True])
def test_offsets_go_back_to_those_saved_last(tmp_path: Path, offsets: ConsumerOffsets, loaded: bool) -> None:
    offsets.commit("host", "g", "T", 0, 5)
    offsets.commit("host", "gone", "T", 0, 5)
    offsets.commit("broker", "CID_RMQ_SYS_TRANS", "half", 0, 5)
    offsets.persist()
    if loaded:
        offsets = ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, "consumerOffset.json"))
        offsets.load()
    offsets.commit("host", "g", "T", 0, 7)
    offsets.commit("host", "g", "T", 1, 2)
    offsets.commit("broker", "CID_RMQ_SYS_TRANS", "half", 0, 9)
    offsets.commit("host", "new", "T", 0, 3)
    offsets.commit("broker", "CID_RMQ_SYS_REVIVE_GROUP", "revive", 0, 4)
    offsets.remove_group("gone")
    offsets.go_back()
    assert offsets.committed == {
        "T@g": {0: 5, 1: 2},
        "half@CID_RMQ_SYS_TRANS": {0: 5},
        "T@new": {0: 3},
    }


def test_what_was_saved_is_loaded(tmp_path: Path, offsets: ConsumerOffsets) -> None:
    offsets.commit("host", "g", "T", 10, 1 << 40)
    offsets.commit("host", "g", "T", 2, 0)
    offsets.note_pull("g", "T", 2, 0, 5)
    offsets.persist()
    again = ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, "consumerOffset.json"))
    again.load()
    assert again.committed == {"T@g": {2: 0, 10: 1 << 40}}
    assert again.content() == offsets.content()
    assert again.data_version == offsets.data_version


def test_both_forms_say_the_same(offsets: ConsumerOffsets) -> None:
    empty = bodies.ConsumerOffsets.decode(offsets.encode())
    assert (empty.offset_table, empty.pull_offset_table, empty.group_topic_map) == ({}, {}, {})
    assert bodies.ConsumerOffsets.decode(offsets.content()) == empty
    offsets.commit("host", "g", 'odd"name\\', 0, 1)
    offsets.commit("host", "g", "T", 3, 4)
    offsets.remove("g", "nothing")
    compact, pretty = (bodies.ConsumerOffsets.decode(form) for form in (offsets.encode(), offsets.content()))
    assert compact == pretty
    assert compact.offset_table == offsets.committed
    assert compact.group_topic_map == {"g": ["T", 'odd"name\\']}


def test_the_compact_form_is_the_recorded_one(offsets: ConsumerOffsets) -> None:
    """Except for the quotes around integer keys, without which an Apache slave cannot read the body of 43."""
    (recorded,) = {
        frame["response"]["bodyText"]
        for frame in data.frames()
        if frame["code"] == 43 and "response" in frame
    }
    body = bodies.ConsumerOffsets.decode(recorded.encode())
    assert body.data_version is not None
    offsets.committed.update(body.offset_table)
    offsets.pulled.update(body.pull_offset_table or {})
    offsets.data_version = body.data_version
    # Apache writes bare numbers as keys, which its own slaves then fail to read.
    ours = re.sub(r'"(\d+)":', r"\1:", offsets.encode().decode())
    assert sorted(ours) == sorted(recorded)
    assert ours.index('"groupTopicMap"') < ours.index('"offsetTable"') < ours.index('"pullOffsetTable"')


def test_a_disk_that_refuses_is_tried_again(
    tmp_path: Path, offsets: ConsumerOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets.commit("host", "g", "T", 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(offsets._file, "save", _refuse)
        with pytest.raises(OSError, match="full"):
            offsets.persist()
        with pytest.raises(OSError, match="full"):
            asyncio.run(offsets.persist_aside())
    asyncio.run(offsets.persist_aside())
    assert json.loads((tmp_path / "consumerOffset.json").read_text().replace("0:1", '"0":1'))["offsetTable"]


def _refuse(_content: bytes) -> None:
    raise OSError("the disk is full")


def test_a_commit_during_a_save_is_saved_next_time(tmp_path: Path, offsets: ConsumerOffsets) -> None:
    async def both() -> None:
        saving = asyncio.ensure_future(offsets.persist_aside())
        await asyncio.sleep(0)
        offsets.commit("host", "g", "T", 0, 2)
        await saving

    offsets.commit("host", "g", "T", 0, 1)
    asyncio.run(both())
    offsets.persist()
    again = ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, "consumerOffset.json"))
    again.load()
    assert again.query("g", "T", 0) == 2


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"offsetTable":5}', b"\xff\xfe"])
def test_a_broken_file_stops_the_start_unless_its_backup_is_good(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(content)
    offsets = ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, path.name))
    with pytest.raises(CorruptionError, match=r"consumerOffset\.json"):
        offsets.load()
    (tmp_path / "consumerOffset.json.bak").write_bytes(GOLDEN.read_bytes())
    offsets.load()
    assert offsets.query("GoldenG", "GoldenT", 3) == 4


def test_a_file_of_4x_without_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_bytes(b'{"offsetTable":{"T@g":{0:1,"1":2}}}')
    offsets = ConsumerOffsets(CONFIG, ManualClock(), safe_file(tmp_path, "o.json"))
    offsets.load()
    assert offsets.committed == {"T@g": {0: 1, 1: 2}}
    offsets.commit("host", "g", "T", 0, 2)
    offsets.persist()
    assert b'"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:2,\n\t\t\t1:2' in (tmp_path / "o.json").read_bytes()
