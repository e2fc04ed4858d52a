"""Key-value configuration: on the disk before it is visible, in Apache's file."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from orbitmq.errors import CorruptionError, ServerError
from orbitmq.namesrv.kv_config import KvConfig
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.testing.faulty_fs import FaultyFileSystem

PATH = "/data/namesrv/kvConfig.json"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def reopened(fs: FaultyFileSystem) -> KvConfig:
    kv = KvConfig(SafeFile(fs, PATH))
    kv.load()
    return kv


def test_put_survives_a_power_cut_and_is_written_as_apache_writes_it() -> None:
    fs = FaultyFileSystem()
    kv = reopened(fs)
    run(kv.put("ns", "k", "v"))
    run(kv.put("ns", "k2", "grün"))
    assert json.loads(fs.content(PATH)) == {"configTable": {"ns": {"k": "v", "k2": "grün"}}}
    again = reopened(fs.power_cut())
    assert again.value("ns", "k") == "v"
    assert again.table("ns") == {"k": "v", "k2": "grün"}


def test_delete_leaves_an_empty_namespace_and_ignores_what_is_not_there() -> None:
    kv = KvConfig()
    run(kv.put("ns", "k", "v"))
    run(kv.delete("ns", "k"))
    run(kv.delete("ns", "k"))
    run(kv.delete("none", "k"))
    assert kv.value("ns", "k") is None
    assert kv.table("ns") == {}
    assert kv.table("none") is None


def test_put_without_value_makes_the_namespace_only() -> None:
    kv = KvConfig()
    run(kv.put("ns", "k", None))
    assert kv.table("ns") == {}


def test_disk_that_refuses_leaves_the_old_value_and_is_reported() -> None:
    fs = FaultyFileSystem()
    kv = reopened(fs)
    run(kv.put("ns", "k", "old"))
    fs.fail_writes(error=errno.ENOSPC)
    with pytest.raises(ServerError, match="No space left"):
        run(kv.put("ns", "k", "new"))
    fs.heal()
    assert kv.value("ns", "k") == "old"
    assert reopened(fs).value("ns", "k") == "old"


def test_file_that_makes_no_sense_stops_the_start() -> None:
    fs = FaultyFileSystem()
    SafeFile(fs, PATH).save(b"{{")
    with pytest.raises(CorruptionError, match=r"kvConfig\.json"):
        reopened(fs)


def test_file_of_apache_with_null_values_is_read() -> None:
    fs = FaultyFileSystem()
    SafeFile(fs, PATH).save(b'{"configTable":{"ns":{"k":null,"l":"1"}}}')
    assert reopened(fs).table("ns") == {"l": "1"}


def test_concurrent_changes_are_all_kept() -> None:
    fs = FaultyFileSystem()
    kv = reopened(fs)

    async def put_many() -> None:
        await asyncio.gather(*(kv.put("ns", f"k{n}", str(n)) for n in range(20)))

    run(put_many())
    assert len(reopened(fs).table("ns") or {}) == 20


def test_changes_are_reported_after_they_are_visible() -> None:
    seen: list[tuple[str, str, str | None]] = []
    kv = KvConfig(on_change=lambda namespace, key: seen.append((namespace, key, kv.value(namespace, key))))
    run(kv.put("ns", "k", "v"))
    run(kv.put("ns", "k", "v"))
    run(kv.delete("ns", "k"))
    assert seen == [("ns", "k", "v"), ("ns", "k", None)]


def test_table_that_could_not_be_read_again_is_refused() -> None:
    kv = KvConfig()
    with pytest.raises(ServerError, match="would exceed"):
        run(kv.put("ns", "k", "x" * (16 << 20)))
    assert kv.table("ns") is None
