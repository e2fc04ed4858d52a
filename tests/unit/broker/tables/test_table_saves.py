"""A table is saved once per set of changes, to a temporary file, and old content never replaces newer content."""

from __future__ import annotations

import asyncio
import threading

from orbitmq.broker.tables.table_file import TableSaves
from orbitmq.runtime.tasks import TaskOwner


class Disk:
    def __init__(self) -> None:
        self.value = 0
        self.written: list[bytes] = []
        self.threads: set[int] = set()
        self.refuse = False
        self.gate = threading.Event()
        self.gate.set()

    def content(self) -> bytes:
        return b"%d" % self.value

    def write(self, content: bytes) -> None:
        assert self.gate.wait(10)
        self.threads.add(threading.get_ident())
        if self.refuse:
            raise OSError("full")
        self.written.append(content)


def test_changes_of_one_turn_are_one_save_on_another_thread() -> None:
    disk = Disk()
    saves = TableSaves("groups", disk.content, disk.write)

    async def run() -> None:
        saves._tasks = tasks = TaskOwner("test")
        for value in range(300):
            disk.value = value
            saves.aside()
        assert disk.written == []
        await saves.saved()
        await tasks.close()

    asyncio.run(run())
    assert disk.written == [b"299"]
    assert threading.get_ident() not in disk.threads


def test_an_older_content_that_comes_late_is_dropped() -> None:
    disk = Disk()
    saves = TableSaves("groups", disk.content, disk.write)
    disk.value = 1
    older = saves._next()
    disk.value = 2
    saves.now()
    saves._put(*older)
    assert disk.written == [b"2"]


def test_a_refused_save_is_made_by_the_next_persist() -> None:
    disk = Disk()
    saves = TableSaves("groups", disk.content, disk.write)

    async def run() -> None:
        saves._tasks = tasks = TaskOwner("test")
        disk.refuse, disk.value = True, 5
        saves.aside()
        await saves.saved()
        disk.refuse = False
        saves.persist()
        assert disk.written == [b"5"]
        disk.value = 6
        saves.aside()
        await tasks.close()  # cancelled half way: not known whether it was written
        saves.persist()
        saves.persist()

    asyncio.run(run())
    assert disk.written[-1] == b"6"


def test_without_a_loop_every_save_is_made_at_once() -> None:
    disk = Disk()
    saves = TableSaves("groups", disk.content, disk.write)
    disk.value = 9
    saves.aside()
    assert disk.written == [b"9"]
