"""A slave compares its log with its master's: the common part stays, the rest is truncated only on request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.kit import message, open_store

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.replication.log_prefix import LogPrefixCheck, LogsDiffer
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectionLostError
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.client import RpcClient
from orbitmq.wire.headers import ViewMessageByIdRequest


class Answer:
    def __init__(self, code: int, body: bytes = b"") -> None:
        self.code, self.body, self.remark = code, body, ""


class MasterRpc:
    """Answers VIEW_MESSAGE_BY_ID from a store, like a master."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.asked: list[int] = []
        self.silent = False

    async def call(self, address: str, code: int, header: ViewMessageByIdRequest, *, timeout_s: float) -> Any:
        assert (address, code) == ("master:1", RequestCode.VIEW_MESSAGE_BY_ID)
        if self.silent:
            raise ConnectionLostError("no answer")
        self.asked.append(header.offset)
        found = self._store.record_at(header.offset)
        return (
            Answer(ResponseCode.SYSTEM_ERROR) if found is None else Answer(ResponseCode.SUCCESS, bytes(found))
        )


class Pair:
    """The stores of a master and a slave with ``common`` equal messages."""

    def __init__(self, root: Path, common: int) -> None:
        clock = ManualClock()
        self.master, self.slave = open_store(root / "master", clock), open_store(root / "slave", clock)
        for number in range(common):
            for store in (self.master, self.slave):
                store.append_batch([message(f"T{number % 3}", body=b"both %d" % number)])
        self.rpc = MasterRpc(self.master)

    def alone(self, store: MessageStore, count: int, body: bytes) -> None:
        for number in range(count):
            store.append_batch([message(f"T{number % 3}", body=body + b" %d" % number)])

    def prefix_check(self, **options: Any) -> LogPrefixCheck:
        return LogPrefixCheck(BrokerConfig(**options), self.slave, cast(RpcClient, self.rpc))

    def close(self) -> None:
        self.master.close()
        self.slave.close()


def test_a_log_the_master_has_all_of_is_compared_with_one_question(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 50)
    pair.alone(pair.master, 20, b"newer")
    end = pair.slave.max_log_offset
    asyncio.run(pair.prefix_check().check("master:1"))
    assert pair.slave.max_log_offset == end
    assert len(pair.rpc.asked) == 1
    pair.close()


@pytest.mark.parametrize("common", [1, 2, 7, 64])
@pytest.mark.parametrize("alone", [1, 5, 33])
def test_what_only_the_slave_has_is_cut_when_it_was_told_so(tmp_path: Path, common: int, alone: int) -> None:
    pair = Pair(tmp_path, common)
    end = pair.slave.max_log_offset
    pair.alone(pair.slave, alone, b"slave")
    pair.alone(pair.master, 3, b"other")
    with pytest.raises(LogsDiffer, match=f"from offset {end} "):
        asyncio.run(pair.prefix_check().check("master:1"))
    assert pair.slave.max_log_offset > end, "nothing is cut without a word of the operator"
    check = pair.prefix_check()
    check.may_cut = True
    asyncio.run(check.check("master:1"))
    assert pair.slave.max_log_offset == end
    assert not check.may_cut, "the word counts once"
    pair.close()


def test_the_option_cuts_too(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 4)
    end = pair.slave.max_log_offset
    pair.alone(pair.slave, 2, b"slave")
    asyncio.run(pair.prefix_check(cut_differing_log=True).check("master:1"))
    assert pair.slave.max_log_offset == end
    pair.close()


def test_a_log_without_a_common_record_is_never_touched(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 0)
    pair.alone(pair.slave, 5, b"slave")
    pair.alone(pair.master, 5, b"other")
    end = pair.slave.max_log_offset
    check = pair.prefix_check(cut_differing_log=True)
    check.may_cut = True
    with pytest.raises(LogsDiffer, match="another group"):
        asyncio.run(check.check("master:1"))
    assert pair.slave.max_log_offset == end
    pair.close()


def test_nothing_is_asked_without_a_master_or_without_a_log(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 0)
    asyncio.run(pair.prefix_check().check("master:1"))
    pair.alone(pair.slave, 1, b"slave")
    asyncio.run(pair.prefix_check().check(""))
    assert not pair.rpc.asked
    pair.close()


def test_a_silent_master_is_no_reason_to_cut(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 3)
    pair.alone(pair.slave, 1, b"slave")
    end = pair.slave.max_log_offset
    pair.rpc.silent = True
    with pytest.raises(ConnectionLostError):
        asyncio.run(pair.prefix_check(cut_differing_log=True).check("master:1"))
    assert pair.slave.max_log_offset == end
    pair.close()
