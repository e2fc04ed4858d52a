"""A filter class in its process: the messages it selects, and the effects of faulty classes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orbitmq.errors import InvalidParameter, NoPermission, ServerError, SystemBusy
from orbitmq.filtersrv.classes import FilterClasses
from orbitmq.filtersrv.config import FilterServerConfig
from orbitmq.filtersrv.sandbox import FAILURES_MAX, FilterFailed, FilterProcess
from orbitmq.record.codec import encode_record
from orbitmq.store.types import NewMessage

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"

pytestmark = pytest.mark.slow  # each test starts its own processes

CHEAP = """
import re
class Cheap:
    def match(self, message):
        print("a line of output")
        return int(message.properties["price"]) < 10 and bool(re.match("h", message.body.decode()))
"""


def record(price: str, body: bytes = b"hello") -> bytes:
    return encode_record(
        NewMessage("T", 0, body, b"price\x01%b\x02" % price.encode(), 1, HOST), 0, 0, 1, HOST
    )


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def with_class(source: str, test: Callable[[FilterProcess], Awaitable[None]], **limits: Any) -> None:
    async def body() -> None:
        process = FilterProcess(
            "shop.Cheap", source, **{"memory_bytes": 512 << 20, "batch_s": 10.0, **limits}
        )
        try:
            await test(process)
        finally:
            await process.close()

    run(body)


def test_class_selects_and_what_it_raises_or_prints_does_no_harm() -> None:
    async def test(process: FilterProcess) -> None:
        records = [record("5"), record("50"), record("5", b"bye"), record("not a number"), record("9")]
        assert await process.select(records) == [True, False, False, False, True]
        assert await process.select([record("1")]) == [True]

    with_class(CHEAP, test)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Cheap(", "SyntaxError"),
        ("class Other: pass", "no class Cheap"),
        ("class Cheap: pass", "no method match"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("import socket", "Error"),
        ("open('/dev/null')", "Error"),
        ("x = ' ' * (1 << 30)", "MemoryError"),
    ],
)
def test_class_that_cannot_be_loaded_or_reaches_outside_is_refused(source: str, reason: str) -> None:
    async def test(process: FilterProcess) -> None:
        with pytest.raises(FilterFailed, match=reason):
            await process.check()

    with_class(source, test)


def test_message_that_hangs_or_kills_the_class_is_not_selected_and_the_others_are() -> None:
    source = """
import sys
class Cheap:
    def match(self, message):
        while message.body == b"hang":
            pass
        return True
"""

    async def test(process: FilterProcess) -> None:
        assert await process.select([record("1"), record("1", b"hang"), record("1")]) == [True, False, True]

    with_class(source, test, batch_s=1.5)


def test_class_that_eats_memory_gets_an_error_and_the_machine_does_not() -> None:
    source = """
class Cheap:
    def match(self, message):
        return len(b"x" * (1 << 30)) > 0
"""

    async def test(process: FilterProcess) -> None:
        assert await process.select([record("1")]) == [False]

    with_class(source, test)


def test_class_that_fails_again_and_again_is_left_alone() -> None:
    async def test(process: FilterProcess) -> None:
        for _ in range(FAILURES_MAX):
            with pytest.raises(FilterFailed, match="SyntaxError"):
                await process.check()
        with pytest.raises(FilterFailed, match="paused"):
            await process.check()

    with_class("class", test)


def test_upload_is_refused_unless_allowed_and_checked_if_it_is() -> None:
    async def test() -> None:
        closed = FilterClasses(FilterServerConfig())
        with pytest.raises(NoPermission):
            await closed.upload("T", "g", "Cheap", CHEAP.encode(), 0)
        classes = FilterClasses(FilterServerConfig(upload_allowed=True, classes_max=1, source_bytes_max=1000))
        try:
            with pytest.raises(InvalidParameter, match="CRC"):
                await classes.upload("T", "g", "Cheap", CHEAP.encode(), 7)
            with pytest.raises(InvalidParameter, match="1000 bytes"):
                await classes.upload("T", "g", "Cheap", b"#" * 1001, 0)
            with pytest.raises(InvalidParameter, match="name"):
                await classes.upload("T", "g", "../Cheap", CHEAP.encode(), 0)
            with pytest.raises(InvalidParameter, match="UTF-8"):
                await classes.upload("T", "g", "Cheap", b"\xff", 0)
            with pytest.raises(ServerError, match="SyntaxError"):
                await classes.upload("T", "g", "Cheap", b"class", 0)
            assert classes.uploaded("T", "g") is None
            await classes.upload("T", "g", "Cheap", CHEAP.encode(), 0)
            process = classes.uploaded("T", "g")
            assert process is not None
            await classes.upload("T", "g", "Cheap", CHEAP.encode(), 0)
            assert classes.uploaded("T", "g") is process, "the same source is not loaded twice"
            with pytest.raises(SystemBusy):
                await classes.upload("T", "another", "Cheap", CHEAP.encode(), 0)
        finally:
            await classes.close()

    run(test)


def test_class_of_the_directory_is_found_by_its_name_and_renewed_with_its_file(tmp_path: Path) -> None:
    async def test() -> None:
        classes = FilterClasses(FilterServerConfig(class_directory=str(tmp_path)))
        file = tmp_path / "shop" / "orders.py"
        file.parent.mkdir()
        file.write_text(CHEAP)
        try:
            process = await classes.from_directory("T", "g", "shop.orders.Cheap")
            assert await process.select([record("5"), record("50")]) == [True, False]
            assert await classes.from_directory("T", "g", "shop.orders.Cheap") is process
            file.write_text(CHEAP.replace("< 10", "> 10"))
            renewed = await classes.from_directory("T", "g", "shop.orders.Cheap")
            assert await renewed.select([record("5"), record("50")]) == [False, True]
            for name in ("shop.nowhere.Cheap", "..Cheap", "shop/orders.Cheap", ""):
                with pytest.raises(ServerError):
                    await classes.from_directory("T", "g", name)
        finally:
            await classes.close()

    run(test)
