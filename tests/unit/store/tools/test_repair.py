"""Corruption in the log of one broker, replaced with the bytes of another."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.fault.workload import LOG, ROOT, Writer, config, message

from orbitmq.kernel.layout import UNIT
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import StoreLocked
from orbitmq.store.layout import BLANK_UNIT_SIZE
from orbitmq.store.message_store import MessageStore
from orbitmq.store.tools.offline import OfflineStore
from orbitmq.store.tools.repair import FetchFailed, repair
from orbitmq.store.tools.verify import verify
from orbitmq.testing.faulty_fs import FaultyFileSystem

COUNT = 150


def store() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(COUNT))
    writer.store.close()
    return fs


class Peer:
    """An intact copy of the log that answers for ranges."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.paths = sorted(path for path in fs.paths() if path.startswith(LOG))
        self.contents = {path: fs.content(path) for path in self.paths}
        self.size = len(self.contents[self.paths[0]])
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        path = f"{LOG}{start - start % self.size:020d}"
        if path not in self.contents:
            raise FetchFailed(f"no log offset {start}")
        return self.contents[path][start % self.size : start % self.size + end - start]


def overwrite(fs: FaultyFileSystem, path: str, position: int, data: bytes) -> None:
    handle = fs.open(path, write=True)
    fs.pwrite(handle, data, position)
    fs.close(handle)


def log_of(fs: FaultyFileSystem) -> dict[str, bytes]:
    return {path: fs.content(path) for path in fs.paths() if path.startswith(LOG)}


@pytest.mark.parametrize("seed", range(6))
def test_flipped_and_zeroed_bytes_in_several_places_are_put_back_to_the_byte(seed: int) -> None:
    fs = store()
    peer = Peer(fs)
    report = verify(ROOT, fs=fs)
    assert report.ok
    chance = random.Random(seed)
    for path in peer.paths[: report.log_end // peer.size]:
        for _ in range(2):
            position = chance.randrange(peer.size - 300)
            damage = bytes(40) if chance.random() < 0.5 else chance.randbytes(40)
            overwrite(fs, path, position, damage)
    damaged = verify(ROOT, fs=fs)
    planned = repair(ROOT, peer.fetch, fs=fs, dry_run=True)
    assert [one.problem for one in planned.ranges] == [""] * len(planned.ranges)
    assert verify(ROOT, fs=fs).error_count == damaged.error_count, "a dry run changes nothing"
    done = repair(ROOT, peer.fetch, fs=fs)
    assert done.ok
    assert done.ranges
    # The checksum covers only the body: bytes overwritten in the head or the properties of a record are not detected.
    seen = sum(one.end - one.start for one in done.ranges)
    assert sum(end - start for start, end in peer.asked) < 2 * (seen + 4 * 2000 * len(done.ranges))
    assert find_ranges(fs) == []


def find_ranges(fs: FaultyFileSystem) -> list[tuple[int, int]]:
    again = repair(ROOT, lambda start, end: pytest.fail("nothing is damaged"), fs=fs, dry_run=True)
    return [(one.start, one.end) for one in again.ranges]


def test_every_record_with_a_rotten_body_is_put_back() -> None:
    fs = store()
    peer = Peer(fs)
    walk = OfflineStore(StoreConfig(root=ROOT), fs)
    for segment in walk.segments():
        for record in list(walk.scan(segment)):
            if record.queue_offset % 3 and record.body_size:
                fs.flip(segment.path, record.body_position)
    walk.close()
    assert not verify(ROOT, fs=fs).ok
    assert repair(ROOT, peer.fetch, fs=fs).ok
    assert log_of(fs) == peer.contents
    assert verify(ROOT, fs=fs).ok


def test_whole_segment_of_zeros_is_put_back_and_the_end_of_the_log_as_far_as_it_is_known() -> None:
    fs = store()
    peer = Peer(fs)
    end = verify(ROOT, fs=fs).log_end
    last = end // peer.size
    overwrite(fs, peer.paths[1], 0, bytes(peer.size))
    overwrite(fs, peer.paths[last], 0, bytes(peer.size))
    done = repair(ROOT, peer.fetch, fs=fs)
    assert done.ok, done
    assert log_of(fs) == peer.contents
    assert verify(ROOT, fs=fs).ok


@pytest.mark.parametrize("position", [2, 6, 9, 95], ids=["size", "magic", "checksum", "body"])
def test_last_record_of_a_killed_broker_is_put_back_although_nothing_says_it_was_flushed(
    position: int,
) -> None:
    fs = FaultyFileSystem()
    opened = MessageStore(config(), fs=fs)
    opened.open()
    for number in range(3):
        last = opened.append(message(number)).log_offset
    fs = fs.kill()
    peer = Peer(fs)
    fs.flip(peer.paths[0], last + position, 0x10)
    done = repair(ROOT, peer.fetch, fs=fs)
    assert [(one.start, one.repaired) for one in done.ranges] == [(last, True)]
    assert log_of(fs) == peer.contents


def test_peer_of_another_history_or_with_the_same_damage_changes_nothing() -> None:
    fs = store()
    whole = Peer(fs)
    other = Peer(fs)
    overwrite(fs, whole.paths[1], 500, b"rot" * 40)
    before = log_of(fs)
    same_damage = Peer(fs)
    done = repair(ROOT, same_damage.fetch, fs=fs)
    assert not done.ok
    assert "records there are damaged too" in done.ranges[0].problem
    # Every record next to the damage differs in one byte: these are different logs.
    walk = OfflineStore(StoreConfig(root=ROOT), fs)
    content = bytearray(other.contents[whole.paths[1]])
    for record in walk.scan(walk.segments()[1]):
        content[record.position + 60] ^= 1
    walk.close()
    other.contents[whole.paths[1]] = bytes(content)
    done = repair(ROOT, other.fetch, fs=fs)
    assert "another history" in done.ranges[0].problem
    assert log_of(fs) == before
    assert repair(ROOT, whole.fetch, fs=fs).ok


def test_store_of_a_running_broker_is_refused() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(10))
    with pytest.raises(StoreLocked):
        repair(ROOT, lambda start, end: b"", fs=fs)


def test_queues_that_lack_lost_messages_are_built_anew() -> None:
    fs = store()
    peer = Peer(fs)
    overwrite(fs, peer.paths[0], 300, b"rot" * 40)
    # As after a kill, with queues to be rebuilt from the log: the walk encounters the damage.
    fs.close(fs.open(f"{ROOT}/abort", create=True))
    fs.remove_tree(f"{ROOT}/consumequeue")
    skipping = Writer(fs, recover_past_corruption=True)
    skipping.store.close()
    assert verify(ROOT, fs=fs).unit_count < COUNT
    done = repair(ROOT, peer.fetch, fs=fs)
    assert done.ok
    assert done.rebuild
    Writer(fs).store.close()
    again = verify(ROOT, fs=fs)
    assert again.ok, again.findings[:3]
    assert again.unit_count == COUNT


# Queues, from the log of the store itself.

QUEUES = f"{ROOT}/consumequeue/"


def queue_files(fs: FaultyFileSystem) -> dict[str, bytes]:
    return {path: fs.content(path) for path in fs.paths() if path.startswith(QUEUES)}


def repaired_queues(fs: FaultyFileSystem, **options: Any) -> list[tuple[str, int, int]]:
    report = repair(ROOT, None, config(), fs=fs, **options)
    return [(one.topic, one.queue_id, one.unit_count) for one in report.queues]


@pytest.mark.parametrize("position", range(20))
def test_flip_in_any_unit_is_repaired_to_the_byte(position: int) -> None:
    fs = store()
    whole = queue_files(fs)
    path = f"{QUEUES}TopicA/1/{0:020d}"
    fs.flip(path, 5 * 20 + position, 4)
    [finding] = [found for found in verify(ROOT, fs=fs).findings if "queue offset 5" in found.where]
    assert finding.where == "TopicA/1 queue offset 5"
    assert repaired_queues(fs, dry_run=True) == [("TopicA", 1, 1)]
    assert queue_files(fs) != whole
    assert repaired_queues(fs) == [("TopicA", 1, 1)]
    assert queue_files(fs) == whole
    assert repaired_queues(fs) == []
    assert verify(ROOT, fs=fs).ok


@pytest.mark.parametrize(
    "damage", ["zeros", "noise", "short", "no file", "no queue", "no queues", "last file"]
)
def test_queues_are_rebuilt_whatever_became_of_their_files(damage: str) -> None:
    fs = store()
    whole = queue_files(fs)
    paths = [path for path in whole if path.startswith(f"{QUEUES}TopicA/1/")]
    assert len(paths) > 2
    if damage == "zeros":
        overwrite(fs, paths[1], 0, bytes(200))
    elif damage == "noise":
        overwrite(fs, paths[0], 3, random.Random(1).randbytes(250))
    elif damage == "short":
        fs.resize(paths[1], 100)
    elif damage == "no queues":
        fs.remove_tree(QUEUES.rstrip("/"))
    else:
        for path in paths[-1:] if damage == "last file" else paths[1:2] if damage == "no file" else paths:
            fs.remove(path)
    assert repaired_queues(fs)
    assert queue_files(fs) == whole
    assert verify(ROOT, fs=fs).ok
    opened = MessageStore(config(), fs=fs)
    assert opened.open().rebuilt_queues == []
    opened.close()
    assert queue_files(fs) == whole


def test_unit_is_repaired_beside_damage_in_the_log() -> None:
    fs = store()
    peer = Peer(fs)
    whole = queue_files(fs)
    path = f"{QUEUES}TopicA/1/{0:020d}"
    bad, _, _ = UNIT.unpack_from(whole[path], 3 * 20)
    fs.flip(f"{LOG}{0:020d}", bad + 4, 1)
    fs.flip(path, 5 * 20 + 7, 4)
    report = repair(ROOT, None, config(), fs=fs)
    assert [one.problem for one in report.ranges] == ["no broker was given to fetch it from"]
    assert not report.ok
    assert queue_files(fs) == whole, "the unit of the damaged record is left as it is"
    assert repair(ROOT, peer.fetch, config(), fs=fs).ok
    assert verify(ROOT, fs=fs).ok


def test_unit_of_a_lost_message_is_blank_in_a_queue_that_is_rebuilt() -> None:
    fs = store()
    path = f"{QUEUES}TopicA/1/{0:020d}"
    bad, _, _ = UNIT.unpack_from(fs.content(path), 3 * 20)
    fs.flip(f"{LOG}{0:020d}", bad + 4, 1)
    fs.remove_tree(f"{QUEUES}TopicA")
    assert {(topic, queue_id) for topic, queue_id, _ in repaired_queues(fs)} == {("TopicA", 0), ("TopicA", 1)}
    assert UNIT.unpack_from(fs.content(path), 3 * 20)[1] == BLANK_UNIT_SIZE
    opened = MessageStore(config(), fs=fs)
    opened.open()
    assert opened.read("TopicA", 1, 3, 1).count == 0
    assert opened.read("TopicA", 1, 4, 1).count == 1
    opened.close()


def test_number_that_rotted_in_the_head_of_a_record_is_not_believed() -> None:
    fs = store()
    whole = queue_files(fs)
    path = f"{QUEUES}TopicA/1/{0:020d}"
    for number, position in ((3, 20), (4, 27)):
        log_offset, _, _ = UNIT.unpack_from(whole[path], number * 20)
        fs.flip(f"{LOG}{0:020d}", log_offset + position, 0x10)
    assert repaired_queues(fs) == []
    assert queue_files(fs) == whole


def test_earlier_life_of_a_topic_is_not_brought_back() -> None:
    fs = FaultyFileSystem()
    opened = MessageStore(config(), fs=fs)
    opened.open()
    for number in range(30):
        opened.append(message(number, queue_count=1))
    opened.delete_topic("TopicA")
    opened.delete_topic("TopicB")
    for number in range(5):
        opened.append(message(number, queue_count=1))
    opened.close()
    whole = queue_files(fs)
    assert repaired_queues(fs) == []
    fs.remove(f"{ROOT}/deletedTopics.json")
    assert repaired_queues(fs) == []
    assert queue_files(fs) == whole
