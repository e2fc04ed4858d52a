"""Raw stores, read without Spark: every split, cut and damage gives whole records or an error, never wrong rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own
from tests.golden import data as golden

from orbitmq.errors import ConfigError, CorruptionError, RecordError
from orbitmq.kernel.layout import BLANK, BLANK_BYTES, MAGIC_BLANK, MAGIC_V1
from orbitmq.record.codec import Record, encode_record
from orbitmq.spark.arrow import Positions, scan_records
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.store.files import CLOCK_SLACK_MS, Block, list_segments, open_location, plan_blocks
from orbitmq.spark.store.options import StoreOptions
from orbitmq.spark.store.reading import read_block

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
SEGMENT_BYTES = 4096
FIRST_MS = 1_700_000_000_000
# Not the class of local file systems, so this is what happens with a remote one.
REMOTE = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())


def record(number: int, log_offset: int, body: bytes = b"", topic: str = "T") -> bytes:
    message = Record(
        topic=topic,
        queue_id=0,
        body=body or b"body %d" % number,
        properties=b"UNIQ_KEY\x01key-%d\x02" % number,
        born_timestamp_ms=FIRST_MS,
        born_host=HOST,
        flag=0,
        sys_flag=0,
        reconsume_times=0,
        prepared_offset=0,
        queue_offset=number,
        log_offset=log_offset,
        store_timestamp_ms=0,
        store_host=HOST,
        body_crc=0,
        magic=0,
        size=0,
    )
    return encode_record(message, number, log_offset, FIRST_MS + 1000 * number, HOST)


@dataclass
class Log:
    """A log made by hand: the place of every record in it."""

    root: Path
    offsets: list[int]

    @property
    def end(self) -> int:
        return self.offsets[-1]


def write_log(root: Path, bodies: Sequence[bytes], *, ahead: int = 1, first: int = 0) -> Log:
    """Segments of 4 KiB, ``ahead`` of them made before they are needed."""
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    offsets: list[int] = []
    segments: list[bytearray] = [bytearray()]
    base = first
    for number, body in enumerate(bodies):
        data = record(number, base + len(segments[-1]), body)
        room = SEGMENT_BYTES - len(segments[-1])
        if len(data) + BLANK_BYTES > room:
            segments[-1] += BLANK.pack(room, MAGIC_BLANK)
            segments.append(bytearray())
            base += SEGMENT_BYTES
            data = record(number, base, body)
        offsets.append(base + len(segments[-1]))
        segments[-1] += data
    offsets.append(base + len(segments[-1]))
    segments += [bytearray() for _ in range(ahead)]
    for index, content in enumerate(segments):
        path = directory / f"{first + index * SEGMENT_BYTES:020d}"
        path.write_bytes(bytes(content).ljust(SEGMENT_BYTES, b"\0"))
    return Log(root, offsets)


def read(
    root: Path,
    *,
    block_bytes: int = 0,
    columns: Sequence[str] = ("queue_offset", "log_offset", "body"),
    remote: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    chosen = StoreOptions(paths=(str(root),), **options)
    filesystem = REMOTE if remote else None
    location = str(root)[1:] if remote else str(root)
    blocks = plan_blocks(
        list_segments(location, filesystem),
        block_bytes=block_bytes,
        starting_ms=chosen.starting_ms,
        ending_ms=chosen.ending_ms,
        fail_on_data_loss=chosen.fail_on_data_loss,
        filesystem=filesystem,
    )
    return [
        row
        for block in blocks
        for batch in read_block(block, chosen, columns, filesystem)
        for row in batch.to_pylist()
    ]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["queue_offset"] for row in rows]


def change(log: Log, offset: int, data: bytes) -> None:
    path = log.root / "commitlog" / f"{offset - offset % SEGMENT_BYTES:020d}"
    content = bytearray(path.read_bytes())
    at = offset % SEGMENT_BYTES
    content[at : at + len(data)] = data
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("block_bytes", [0, 1000, 100_000])
@pytest.mark.parametrize("store", golden.STORES)
def test_apache_store_gives_every_record_in_every_split(
    tmp_path: Path, store: str, block_bytes: int, remote: bool
) -> None:
    root = golden.extract(store, tmp_path)
    rows = read(root, block_bytes=block_bytes, columns=("log_offset", "topic", "msg_id"), remote=remote)
    wanted = golden.messages(store)["records"]
    assert [(row["log_offset"], row["topic"]) for row in rows] == [
        (one["commitLogOffset"], one["topic"]) for one in wanted
    ]


@pytest.mark.parametrize(("block_bytes", "count"), [(0, 1), (300, 11), (3600, 8), (10**6, 8)])
def test_newest_segment_is_cut_into_equal_blocks_for_several_cores(
    tmp_path: Path, block_bytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.spark.store.files._BLOCK_BYTES_MIN", 100)
    log = write_log(tmp_path, [b"x" * 20] * 25)
    blocks = plan_blocks(list_segments(str(tmp_path)), block_bytes=block_bytes)
    sizes = [block.end - block.start for block in blocks]
    one = log.offsets[1] - log.offsets[0]
    assert len(sizes) == count
    assert max(sizes) - min(sizes) <= 2 * one, sizes


def planned(root: Path, written_until: int) -> list[int]:
    """The numbers of the rows of a plan that trusts the log up to there."""
    blocks = plan_blocks(list_segments(str(root)), block_bytes=300, written_until=written_until)
    chosen = StoreOptions(paths=(str(root),))
    batches = (batch for block in blocks for batch in read_block(block, chosen, ("queue_offset",)))
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def test_what_the_checkpoint_knows_is_not_walked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path, [b"x" * 20] * 25)
    walked: list[int] = []

    def scan(view: memoryview, start: int, end: int) -> Positions:
        walked.append(start)
        return scan_records(view, start, end)

    monkeypatch.setattr("orbitmq.spark.store.files.scan_records", scan)
    for written_until in log.offsets:
        assert planned(tmp_path, written_until) == list(range(25))
        assert walked.pop() <= written_until
        assert not walked
    planned(tmp_path, log.end)
    assert walked[0] > log.end - 600


def test_copy_that_ends_before_its_checkpoint_gives_what_it_has(tmp_path: Path) -> None:
    """Made while the broker ran: the log first, its checkpoint a moment later."""
    log = write_log(tmp_path, [b"x" * 20] * 25)
    whole = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    for count in range(1, 26):
        cut = whole[: log.offsets[count]].ljust(SEGMENT_BYTES, b"\0")
        (tmp_path / "commitlog" / f"{0:020d}").write_bytes(cut)
        assert planned(tmp_path, log.end) == list(range(count))


def test_damage_in_what_the_checkpoint_knows_is_not_taken_for_the_end(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b"x" * 20] * 25)
    change(log, log.offsets[7], b"\xff" * 30)
    with pytest.raises(CorruptionError, match=f"no record at log offset {log.offsets[7]}"):
        planned(tmp_path, log.end)


@pytest.mark.parametrize("store", golden.STORES)
def test_apache_store_gives_every_field_as_recorded(tmp_path: Path, store: str) -> None:
    rows = read(golden.extract(store, tmp_path), block_bytes=50_000, columns=COLUMNS, broker="broker-g")
    wanted = golden.messages(store)["records"]
    assert len(rows) == len(wanted)
    inflated = 0
    for row, one in zip(rows, wanted, strict=True):
        properties = one["properties"]
        assert row["topic"] == one["topic"]
        assert row["broker"] == "broker-g"
        assert (row["queue_id"], row["queue_offset"]) == (one["queueId"], one["queueOffset"])
        assert row["msg_id"] == properties.get("UNIQ_KEY", one["offsetMsgId"])
        assert (row["keys"], row["tags"]) == (properties.get("KEYS"), properties.get("TAGS"))
        assert dict(row["properties"]) == properties
        assert row["born_timestamp"] == at_ms(one["bornTimestamp"])
        assert row["store_timestamp"] == at_ms(one["storeTimestamp"])
        assert (row["born_host"], row["store_host"]) == (one["bornHost"], one["storeHost"])
        assert (row["reconsume_times"], row["sys_flag"]) == (one["reconsumeTimes"], one["sysFlag"])
        assert row["flag"] == one["flag"]
        if one["sysFlag"] & 1:
            inflated += 1
            assert len(row["body"]) > one.get("bodyLength", len(one.get("bodyHex", "")) // 2)
        elif "bodyHex" in one:
            assert row["body"] == bytes.fromhex(one["bodyHex"])
        else:
            assert hashlib.sha256(row["body"]).hexdigest() == one["bodySha256"]
    assert inflated > 0


def at_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_log_cut_at_any_byte_gives_exactly_the_whole_records(tmp_path: Path, remote: bool) -> None:
    log = write_log(tmp_path / "s", [b""] * 3)
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    for cut in range(log.offsets[1], log.end + 1):
        path.write_bytes(whole[:cut].ljust(SEGMENT_BYTES, b"\0"))
        kept = sum(1 for end in log.offsets[1:] if end <= cut)
        # What is zero anyway may be cut off: the record is as whole as before.
        if whole[cut : log.offsets[kept + 1] if kept < 3 else log.end].strip(b"\0") == b"":
            continue
        assert numbers(read(tmp_path / "s", remote=remote)) == list(range(kept)), cut


def test_log_of_a_running_broker_ends_where_it_did_when_the_read_was_planned(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b""] * 5)
    blocks = plan_blocks(list_segments(str(tmp_path)), block_bytes=0)
    change(log, log.end, record(5, log.end))
    rows = [row for block in blocks for row in rows_of(block)]
    assert numbers(rows) == [0, 1, 2, 3, 4]
    assert numbers(read(tmp_path)) == [0, 1, 2, 3, 4, 5]


def rows_of(block: Block, **options: Any) -> list[dict[str, Any]]:
    chosen = StoreOptions(paths=(), **options)
    return [
        row
        for batch in read_block(block, chosen, ("queue_offset", "log_offset"))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("block_bytes", [0, 500])
def test_zeroes_before_the_end_of_a_full_segment_are_damage(tmp_path: Path, block_bytes: int) -> None:
    log = write_log(tmp_path, [b""] * 60)
    lost = log.offsets[10]
    change(log, lost, bytes(SEGMENT_BYTES - lost))
    with pytest.raises(CorruptionError, match=f"no record at log offset {lost}: zeroes"):
        read(tmp_path, block_bytes=block_bytes)
    kept = numbers(read(tmp_path, block_bytes=block_bytes, fail_on_data_loss=False))
    first_of_next = next(i for i, offset in enumerate(log.offsets) if offset >= SEGMENT_BYTES)
    assert kept == [*range(10), *range(first_of_next, 60)]


def test_body_that_rotted_is_refused_with_its_offset_or_left_out(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b""] * 60)
    change(log, log.offsets[7] + 90, b"\xff")
    with pytest.raises(RecordError, match=f"log offset {log.offsets[7]} "):
        read(tmp_path)
    assert numbers(read(tmp_path, fail_on_data_loss=False)) == [i for i in range(60) if i != 7]
    assert numbers(read(tmp_path, verify_crc=False)) == list(range(60))


def test_records_that_lie_elsewhere_are_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b""] * 60)
    stranger = record(3, log.offsets[3] + 1)
    change(log, log.offsets[3], stranger)
    with pytest.raises(RecordError, match=f"log offset {log.offsets[3]} names offset {log.offsets[3] + 1}"):
        read(tmp_path)


def test_body_made_to_look_like_a_record_gives_an_error_and_not_wrong_rows(tmp_path: Path) -> None:
    # The body contains a whole record that names exactly the offset where it is stored.
    at = 0
    bodies = [b"", b"", b""]
    for number in range(2):
        at += len(record(number, at))
    fake_at = at + 88 + 10
    bodies[2] = b"0123456789" + record(99, fake_at) + b"tail" * 300
    write_log(tmp_path, [*bodies, *[b""] * 60])
    block_bytes = fake_at - 5
    with pytest.raises(CorruptionError, match="splitSegments=false"):
        read(tmp_path, block_bytes=block_bytes)
    assert numbers(read(tmp_path, block_bytes=0)) == list(range(63))


def test_time_range_skips_segments_and_gives_exactly_its_rows(tmp_path: Path) -> None:
    write_log(tmp_path, [b""] * 400)
    segments = list_segments(str(tmp_path))
    everything = plan_blocks(segments, block_bytes=0)
    starting, ending = FIRST_MS + 200_000, FIRST_MS + 210_000
    blocks = plan_blocks(segments, block_bytes=0, starting_ms=starting, ending_ms=ending)
    assert len(everything) > 8
    slack = 2 * CLOCK_SLACK_MS // 1000 // 30 + 3  # a segment holds about 30 records, one a second
    assert 0 < len(blocks) <= slack < len(everything)
    rows = read(tmp_path, block_bytes=700, starting_ms=starting, ending_ms=ending)
    assert numbers(rows) == list(range(200, 210))


def test_topics_are_chosen_by_name_or_pattern(tmp_path: Path) -> None:
    root = golden.extract("store-clean", tmp_path)
    wanted = [one["topic"] for one in golden.messages("store-clean")["records"]]
    names = {"GoldenTx", "GoldenBatch", "RMQ_SYS_TRANS_HALF_TOPIC"} & set(wanted)
    assert names
    chosen = read(root, columns=("topic",), topics=frozenset(names))
    assert [row["topic"] for row in chosen] == [topic for topic in wanted if topic in names]
    by_pattern = read(root, columns=("topic",), topic_pattern="Golden.*")
    assert [row["topic"] for row in by_pattern] == [t for t in wanted if t.startswith("Golden")]


def test_store_is_found_by_its_root_its_log_or_one_file(tmp_path: Path) -> None:
    write_log(tmp_path / "s", [b""] * 60)
    log = tmp_path / "s" / "commitlog"
    assert numbers(read(log)) == list(range(60))
    first = read(log / f"{0:020d}")
    assert 20 < len(first) < 40
    assert numbers(first) == list(range(len(first)))
    assert [one.path for one in list_segments((tmp_path / "s").as_uri())] == [
        one.path for one in list_segments(str(log))
    ]
    with pytest.raises(ConfigError, match="no commit log"):
        list_segments(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="cannot open"):
        open_location("nosuch://host/path")


def test_log_that_does_not_start_at_zero_is_read(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b""] * 60, first=40 * SEGMENT_BYTES)
    rows = read(tmp_path, block_bytes=1000)
    assert [row["log_offset"] for row in rows] == log.offsets[:-1]


def test_empty_store_gives_no_block(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(SEGMENT_BYTES))
    assert plan_blocks(list_segments(str(tmp_path)), block_bytes=0) == []


def test_segment_deleted_after_planning_is_named(tmp_path: Path) -> None:
    write_log(tmp_path, [b""] * 60)
    blocks = plan_blocks(list_segments(str(tmp_path)), block_bytes=0)
    Path(blocks[0].segment.path).unlink()
    with pytest.raises(CorruptionError, match="is missing"):
        rows_of(blocks[0])
    assert rows_of(blocks[0], fail_on_data_loss=False) == []


def test_segment_cut_while_it_is_read_is_an_error_and_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of a file that became shorter ends the process with SIGBUS."""
    monkeypatch.setattr("orbitmq.spark.store.reading.BATCH_BYTES", 1000)
    write_log(tmp_path, [b"x" * 300] * 60)
    block = plan_blocks(list_segments(str(tmp_path)), block_bytes=0)[0]
    batches = read_block(block, StoreOptions(paths=()), ("queue_offset",))
    assert next(batches).num_rows == 2
    os.truncate(block.segment.path, 0)
    with pytest.raises(CorruptionError):
        list(batches)


def test_record_longer_than_a_batch_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitmq.spark.store.reading.BATCH_BYTES", 200)
    write_log(tmp_path, [b"x" * 1500, b"y", b"z" * 900] * 20)
    assert [len(row["body"]) for row in read(tmp_path, block_bytes=1000)] == [1500, 1, 900] * 20


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "'path' is required"),
        ({"path": "x", "topic": "a", "topicpattern": "b"}, "not both"),
        ({"path": "x", "topicpattern": "("}, "not a regular expression"),
        ({"path": "x", "startingtimestamp": "5", "endingtimestamp": "5"}, "is not before"),
        ({"path": "x", "verifycrc": "maybe"}, "true or false"),
        ({"path": "x", "maxpartitionbyte": "5"}, "did you mean 'maxPartitionBytes'"),
        ({"paths": "[]"}, "JSON list"),
    ],
)
def test_option_that_cannot_be_used_is_explained(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        StoreOptions.parse(options)


def test_options_are_read_in_any_case() -> None:
    parsed = StoreOptions.parse(
        {"paths": '["a", "b"]', "TOPIC": "x, y", "splitsegments": "false", "MinPartitions": "3"}
    )
    assert parsed.paths == ("a", "b")
    assert parsed.topics == frozenset({"x", "y"})
    assert (parsed.partition_bytes, parsed.partitions_min) == (0, 3)


def test_magic_in_a_body_is_not_taken_for_a_record(tmp_path: Path) -> None:
    write_log(tmp_path, [MAGIC_V1.to_bytes(4, "big") * 40] * 100)
    assert numbers(read(tmp_path, block_bytes=150)) == list(range(100))


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_records_of_another_log_in_a_body_are_not_taken_for_records_of_this_one(
    tmp_path: Path, remote: bool
) -> None:
    # What a tool that copies a log through a topic would send.
    foreign = b"".join(record(number, 113 * number + 1_000_000) for number in range(5))
    write_log(tmp_path, [foreign] * 60)
    for block_bytes in (150, 400, 1000):
        assert numbers(read(tmp_path, block_bytes=block_bytes, remote=remote)) == list(range(60))
