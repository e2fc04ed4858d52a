"""Checking and inspecting a whole store."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.fault.workload import LOG, ROOT, Writer, config, message
from tests.golden.data import STORES, files, messages

from orbitmq.store.config import StoreConfig
from orbitmq.store.tools import dump
from orbitmq.store.tools.offline import OfflineSegment, OfflineStore
from orbitmq.store.tools.verify import Report, _Verifier, verify
from orbitmq.store.types import NewMessage
from orbitmq.testing.faulty_fs import FaultyFileSystem


def golden(store: str) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    for path, content in files(store).items():
        full = f"{ROOT}/{path}"
        fs.make_directories(full.rpartition("/")[0])
        handle = fs.open(full, create=True)
        fs.pwrite(handle, content, 0)
        fs.close(handle)
    return fs


def written(count: int = 150, *, close: bool = True) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(count))
    if close:
        writer.store.close()
    return fs


def errors(report: Report, area: str) -> list[str]:
    return [
        f"{finding.where}: {finding.text}"
        for finding in report.findings
        if finding.severity == "error" and finding.area == area
    ]


@pytest.mark.parametrize("store", STORES)
def test_recorded_store_of_apache_is_without_fault(store: str) -> None:
    fs = golden(store)
    before = {path: fs.content(path) for path in fs.paths()}
    report = verify(ROOT, fs=fs)
    assert report.findings == []
    assert report.record_count == report.unit_count == len(messages(store)["records"])
    assert report.log_end == messages(store)["commitLogEnd"]
    assert report.index_entry_count == sum(len(one["items"]) for one in messages(store)["index"].values())
    assert report.clean is (store == "store-clean")
    assert {path: fs.content(path) for path in fs.paths()} == before, "nothing was changed"
    assert fs.open_paths == []


def test_own_store_is_without_fault() -> None:
    report = verify(ROOT, fs=written())
    assert report.findings == []
    assert (report.record_count, report.unit_count, report.queue_count) == (150, 150, 4)
    assert report.index_entry_count == 3 * 150


def test_running_store_has_notes_but_no_errors() -> None:
    fs = written(close=False)
    report = verify(ROOT, fs=fs)
    assert report.ok
    assert not report.clean
    assert report.record_count == 150
    assert {finding.area for finding in report.findings} <= {"queue", "index", "checkpoint"}


def test_store_that_is_written_while_it_is_checked_has_no_errors() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(150))
    steps = 0

    def write_on(what: str, done: int, total: int) -> None:
        nonlocal steps
        start = 1000 + 8 * steps
        steps += 1
        if steps < 40:
            writer.append(range(start, start + 8))
            writer.sync_log()
            writer.clock.advance(1100)
            writer.store.tick()

    report = verify(ROOT, fs=fs, progress=write_on)
    assert steps > 5
    assert report.live
    assert [finding for finding in report.findings if finding.severity == "error"] == []
    writer.store.close()
    assert not verify(ROOT, fs=fs).live


def test_record_that_is_being_written_when_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    writer.append(range(5))
    end = writer.store.max_log_offset
    writer.append(range(5, 8))
    path = f"{LOG}{0:020d}"
    handle = fs.open(path, write=True)
    written = fs.pread(handle, 40, end)
    fs.pwrite(handle, bytes(40), end)
    search = _Verifier._next_record

    def meanwhile(self: _Verifier, segment: OfflineSegment, position: int) -> int | None:
        found = search(self, segment, position)
        fs.pwrite(handle, written, end)
        return found

    monkeypatch.setattr(_Verifier, "_next_record", meanwhile)
    report = verify(ROOT, fs=fs)
    assert (errors(report, "log"), report.record_count) == ([], 8)
    monkeypatch.undo()
    fs.pwrite(handle, bytes(40), end)
    assert errors(verify(ROOT, fs=fs), "log") != [], "what stays damaged is damage, running or not"


def test_store_with_every_kind_of_record_is_without_fault() -> None:
    fs = FaultyFileSystem()
    writer = Writer(fs)
    v6 = bytes(range(16)) + b"\0\0\x10\x00"
    for sys_flag in (0, 0x4, 0x8, 0xC):
        writer.store.append(NewMessage("T", 0, b"x", b"UNIQ_KEY\x01u\x02", 5, v6, sys_flag=sys_flag))
    writer.store.append(NewMessage("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\x02TAGS\x01a\x02", 5, v6))
    writer.store.append(NewMessage("%RETRY%" + "g" * 200, 0, b"", b"", 5, v6))
    writer.store.close()
    assert verify(ROOT, fs=fs).findings == []


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    verify(ROOT, fs=written(), progress=lambda *step: told.append(step))
    assert {what for what, _, _ in told} >= {"log", "queues"}
    assert all(0 <= done <= total for _, done, total in told)


@pytest.mark.parametrize("store", STORES)
def test_flip_anywhere_in_a_body_queue_or_index_is_found(store: str) -> None:
    fs = golden(store)
    chance = random.Random(7)
    records = messages(store)["records"]
    for record in chance.sample([one for one in records if one.get("bodyHex")], 12):
        path = f"{LOG}{record['commitLogOffset'] // 1048576 * 1048576:020d}"
        position = record["commitLogOffset"] % 1048576 + 88 + chance.randrange(len(record["bodyHex"]) // 2)
        fs.flip(path, position)
        report = verify(ROOT, fs=fs)
        assert errors(report, "log"), record["commitLogOffset"]
        assert report.record_count == len(records) - 1, "the walk goes on behind the damage"
        fs.flip(path, position)
    queue = f"{ROOT}/consumequeue/GoldenBulk/0/{6000:020d}"
    for position in chance.sample(range(6000), 12):
        fs.flip(queue, position)
        assert errors(verify(ROOT, fs=fs), "queue"), position
        fs.flip(queue, position)
    index = fs.paths(f"{ROOT}/index/")[1]
    for number in chance.sample(range(1, 999), 12):
        position = 2040 + 20 * number + chance.choice([0, 4, 11])
        fs.flip(index, position)
        assert errors(verify(ROOT, fs=fs), "index"), number
        fs.flip(index, position)
    assert verify(ROOT, fs=fs).findings == []


def remove_unit(fs: FaultyFileSystem) -> None:
    path = fs.paths(f"{ROOT}/consumequeue/TopicA/1/")[-1]
    used = len(fs.content(path).rstrip(b"\0"))
    fs.overwrite(path, (used - 1) // 20 * 20, bytes(20))


def remove_queue(fs: FaultyFileSystem) -> None:
    fs.remove_tree(f"{ROOT}/consumequeue/TopicB")


def cut_queue_file(fs: FaultyFileSystem) -> None:
    fs.resize(fs.paths(f"{ROOT}/consumequeue/TopicA/0/")[0], 33)


def remove_segment(fs: FaultyFileSystem) -> None:
    fs.remove(fs.paths(LOG)[1])


def shorten_segment(fs: FaultyFileSystem) -> None:
    fs.resize(fs.paths(LOG)[1], 8000)


def append_garbage(fs: FaultyFileSystem) -> None:
    path = fs.paths(LOG)[-1]
    fs.overwrite(path, 8000, b"garbage")


def break_index(fs: FaultyFileSystem) -> None:
    fs.resize(fs.paths(f"{ROOT}/index/")[0], 100)


def claim_too_much(fs: FaultyFileSystem) -> None:
    fs.overwrite(f"{ROOT}/checkpoint", 0, (1 << 50).to_bytes(8, "big"))
    fs.overwrite(f"{ROOT}/checkpoint", 2048, bytes(8))


@pytest.mark.parametrize(
    ("damage", "area"),
    [
        (remove_unit, "queue"),
        (remove_queue, "queue"),
        (cut_queue_file, "queue"),
        (remove_segment, "log"),
        (shorten_segment, "log"),
        (append_garbage, "log"),
        (break_index, "index"),
        (claim_too_much, "checkpoint"),
    ],
)
def test_damage_is_found_in_its_area(damage: Callable[[FaultyFileSystem], None], area: str) -> None:
    fs = written()
    damage(fs)
    report = verify(ROOT, fs=fs)
    assert not report.ok
    assert errors(report, area), report.findings
    assert fs.open_paths == []


def test_findings_are_bounded_but_counted() -> None:
    fs = written(count=600)
    fs.remove_tree(f"{ROOT}/commitlog")
    fs.make_directories(f"{ROOT}/commitlog")
    report = verify(ROOT, config(), fs=fs)
    assert report.error_count > 1000
    assert len(report.findings) == 1000


@pytest.mark.parametrize("store", STORES)
def test_sizes_are_read_off_the_files(store: str) -> None:
    found = OfflineStore(StoreConfig(root=ROOT), golden(store)).config
    sizes = messages(store)["brokerConf"]
    assert found.segment_bytes == sizes["mappedFileSizeCommitLog"]
    assert found.queue_file_bytes == sizes["mappedFileSizeConsumeQueue"]
    assert (found.index_slots, found.index_entries) == (sizes["maxHashSlotNum"], sizes["maxIndexNum"])


def rows_of(store: str) -> dict[str, list[Any]]:
    offline = OfflineStore(StoreConfig(root=ROOT), golden(store))
    return {
        "segments": list(dump.segment_rows(offline)),
        "records": list(dump.record_rows(offline, with_body=True)),
        "queues": list(dump.queue_rows(offline)),
        "units": list(dump.unit_rows(offline, "GoldenBulk", 1)),
        "index": list(dump.index_rows(offline)),
        "entries": list(dump.entry_rows(offline, offline.index_paths()[0])),
        "checkpoint": [dump.checkpoint_row(offline)],
    }


@pytest.mark.parametrize("store", STORES)
def test_dump_of_a_recorded_store_equals_what_is_known_of_it(store: str) -> None:
    rows, known = rows_of(store), messages(store)
    assert [(row.log_offset, row.end) for row in rows["segments"]][:2] == [(0, "blank"), (1048576, "zeroes")]
    assert sum(row.record_count for row in rows["segments"]) == len(known["records"])
    for row, record in zip(rows["records"], known["records"], strict=True):
        assert (row.log_offset, row.size, row.topic) == (
            record["commitLogOffset"],
            record["size"],
            record["topic"],
        )
        assert (row.queue_id, row.queue_offset) == (record["queueId"], record["queueOffset"])
        assert (row.born_ms, row.store_ms) == (record["bornTimestamp"], record["storeTimestamp"])
        assert row.message_id == record["offsetMsgId"]
        assert row.properties == record["properties"]
        if "bodyHex" in record:
            assert row.body == bytes.fromhex(record["bodyHex"])
    queues = {f"{row.topic}/{row.queue_id}": row.max_offset for row in rows["queues"]}
    assert queues == {name: one["count"] for name, one in known["consumeQueues"].items()}
    units = [[row.log_offset, row.size, row.tag_code] for row in rows["units"]]
    assert units == known["consumeQueues"]["GoldenBulk/1"]["units"]
    assert [row.entry_count + 1 for row in rows["index"]] == [
        one["indexCount"] for one in known["index"].values()
    ]
    first = next(iter(known["index"].values()))["items"]
    assert [(row.key_hash, row.log_offset) for row in rows["entries"]] == [
        (one["hash"], one["phys"]) for one in first
    ]
    assert rows["checkpoint"][0].physic_msg_timestamp == known["checkpoint"]["physicMsgTimestamp"]


def test_records_can_be_shown_from_an_offset_and_damage_is_named() -> None:
    fs = written(count=20)
    offline = OfflineStore(config(), fs)
    rows = list(dump.record_rows(offline))
    assert [row.log_offset for row in dump.record_rows(offline, rows[5].log_offset)] == [
        row.log_offset for row in rows[5:]
    ]
    assert next(dump.record_rows(offline, rows[5].log_offset + 1)).error
    fs.flip(fs.paths(LOG)[0], rows[7].log_offset + 90)
    assert "CRC" in list(dump.record_rows(OfflineStore(config(), fs)))[7].error
    assert message(0).topic == rows[0].topic
