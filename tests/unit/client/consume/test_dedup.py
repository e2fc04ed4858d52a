from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from tests.unit.client.messages import received

from orbitmq.client.consume.dedup import Deduplicator, sqlite_connections
from orbitmq.errors import ConfigError


def make(tmp_path: Path) -> Deduplicator:
    deduplicator = Deduplicator(connect=sqlite_connections(str(tmp_path / "done.db")), group="g")
    deduplicator.create_table()
    with deduplicator.connect() as setup:
        setup.execute("CREATE TABLE effects (text TEXT)")
    return deduplicator


def effects(deduplicator: Deduplicator) -> list[str]:
    with deduplicator.connect() as connection:
        return [row[0] for row in connection.execute("SELECT text FROM effects")]


def test_second_delivery_has_no_effect(tmp_path: Path) -> None:
    deduplicator = make(tmp_path)
    listen = deduplicator.once(lambda m, c: c.execute("INSERT INTO effects VALUES (?)", (m.text(),)))
    for _ in range(3):
        listen(received(0, UNIQ_KEY="one"))
    listen(received(1, UNIQ_KEY="two"))
    assert effects(deduplicator) == ["body", "body"]


def test_failed_handler_leaves_nothing_and_may_run_again(tmp_path: Path) -> None:
    deduplicator = make(tmp_path)
    tries: list[int] = []

    def handle(message: object, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO effects VALUES ('half')")
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("in the middle")

    listen = deduplicator.once(handle)
    with pytest.raises(RuntimeError):
        listen(received(0, UNIQ_KEY="one"))
    assert effects(deduplicator) == []
    listen(received(0, UNIQ_KEY="one"))
    assert effects(deduplicator) == ["half"]


def test_two_threads_at_one_message_have_one_effect(tmp_path: Path) -> None:
    deduplicator = make(tmp_path)
    listen = deduplicator.once(lambda m, c: c.execute("INSERT INTO effects VALUES ('x')"))
    threads = [threading.Thread(target=listen, args=(received(0, UNIQ_KEY="one"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert effects(deduplicator) == ["x"]


def test_old_notes_are_forgotten_and_bad_table_names_refused(tmp_path: Path) -> None:
    deduplicator = make(tmp_path)
    deduplicator.once(lambda m, c: None)(received(0, UNIQ_KEY="one"))
    assert deduplicator.forget_before(1) == 0
    assert deduplicator.forget_before(2**60) == 1
    with pytest.raises(ConfigError, match="table name"):
        Deduplicator(connect=deduplicator.connect, group="g", table="x; DROP TABLE y")
