"""A writer process is killed at full speed, repeatedly on the same store: nothing it acknowledged is lost."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fault.killed_writer import QUEUES, config

from orbitmq.record.codec import decode_record
from orbitmq.store.message_store import MessageStore
from orbitmq.store.tools.verify import verify
from orbitmq.store.types import FlushMode

WRITER = Path(__file__).with_name("killed_writer.py")


def run_and_kill(root: Path, mode: FlushMode, first: int, after_s: float) -> list[tuple[int, int, int, int]]:
    """Returns the messages the writer had acknowledged when it died."""
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(root), mode.value, str(first)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        pipe = writer.stdout.fileno()
        opened = os.read(pipe, 5)
        assert opened == b"open\n", writer.stderr.read().decode()
        # Read while it runs, or it would block on a full pipe.
        output = bytearray()
        end = time.monotonic() + after_s
        while (left := end - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                output += os.read(pipe, 1 << 20)
                assert writer.poll() is None, writer.stderr.read().decode()
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        while data := os.read(pipe, 1 << 20):
            output += data
    # The last line may be cut: then its message counts as not acknowledged.
    lines = bytes(output).split(b"\n")[:-1]
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]  # three numbers a line


def check(root: Path, mode: FlushMode, acknowledged: list[tuple[int, int, int, int]]) -> int:
    """Opens the store and checks that every acknowledged message is at its reported position. Returns the next free
    number.
    """
    store = MessageStore(config(str(root), mode))
    store.open()
    try:
        for number, queue_id, queue_offset, log_offset in acknowledged:
            assert store.log_offset_at("Kill", queue_id, queue_offset) == log_offset, number
            record = store.record_at(log_offset)
            assert record is not None, number
            assert bytes(record).find(b"%d:" % number) > 0
        for number, _, _, log_offset in acknowledged[:: max(1, len(acknowledged) // 20)]:
            hits, _ = store.query("Kill", f"k{number}", 32, 0, 1 << 62)
            assert log_offset in [decode_record(hit).log_offset for hit in hits], number
        last = -1
        for queue_id in range(QUEUES):
            end = store.max_offset("Kill", queue_id)
            if end > 0:
                found = store.read("Kill", queue_id, end - 1, 1)
                record = found.slices[0]
                last = max(last, int(decode_record(bytes(record)).body.partition(b":")[0]))
        return last + 1
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.parametrize("kills", [25, pytest.param(200, marks=pytest.mark.soak)])
def test_no_acknowledged_message_is_lost(kills: int, mode: FlushMode, tmp_path: Path) -> None:
    chance = random.Random(mode.value)
    root = tmp_path / "store"
    following = total = 0
    for number in range(kills):
        acknowledged = run_and_kill(root, mode, following, chance.uniform(0.01, 0.12))
        total += len(acknowledged)
        # Mostly on a copy, so that the next writer recovers from the crash itself; sometimes in place.
        where = root
        if number % 5:
            where = tmp_path / "copy"
            shutil.rmtree(where, ignore_errors=True)
            shutil.copytree(root, where)
            (where / "lock").unlink()
        following = check(where, mode, acknowledged)
        if number % 10 == 0:
            report = verify(str(where), config(str(where), mode))
            assert report.ok, report.findings[:5]
        if number % 20 == 19:
            shutil.rmtree(root)
            following = 0
    assert total > 100 * kills, "the writer was not under load"
