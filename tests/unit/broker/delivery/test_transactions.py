"""Transactions on a real store: how half messages begin, end, are checked and abandoned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.kit import Asker, channel, door, open_store, peer, safe_file

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery import transactions as transactions_module
from orbitmq.broker.delivery.half_messages import as_committed, mark_offsets, op_message
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.delivery.transactions import Transactions
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.transactions import TransactionHandlers
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.clients import ProducerTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.errors import NoPermission
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.names import (
    HALF_OP_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import offset_message_id
from orbitmq.record.properties import decode_properties, encode_properties
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import ClockSteps
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.types import Appended, NewMessage
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import FrameDecoder, encode_request
from orbitmq.wire.header import encode_ext
from orbitmq.wire.headers import (
    CheckTransactionStateRequest,
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GOLDEN = Path(__file__).parents[3] / "golden" / "apache-5.5.0" / "store-clean.messages.json"


class Client:
    """A producer that records the checks it receives."""

    def __init__(self) -> None:
        self.connection = peer(9)
        self.asked: list[tuple[CheckTransactionStateRequest, Record]] = []
        cast(Any, self.connection).notify = self._notify

    def _notify(self, code: int, header: CheckTransactionStateRequest, body: bytes = b"") -> None:
        assert code == RequestCode.CHECK_TRANSACTION_STATE
        self.asked.append((header, decode_record(body)))


class Bench:
    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.config = BrokerConfig(broker_name="broker-a", transaction_check_count_max=3, **options)
        self.store = open_store(directory, self.clock)
        self.topics = TopicTable(
            self.config, self.clock, safe_file(directory, "topics.json"), events=BrokerEvents()
        )
        self.topics.load()
        self.offsets = ConsumerOffsets(self.config, self.clock, safe_file(directory, "offsets.json"))
        self.producers = ProducerTable(self.config, self.clock)
        self.client = Client()
        self.producers.register("PG", channel(self.client.connection, "c1"))
        self.puts = door(self.store, self.clock, self.config)
        self.transactions = self.new_transactions()
        self.open()

    def new_transactions(self) -> Transactions:
        return Transactions(
            config=self.config,
            store=self.store,
            store_host=HOST,
            topics=self.topics,
            offsets=self.offsets,
            producers=self.producers,
            puts=self.puts,
            stats=BrokerStats(),
            clock=self.clock,
        )

    def open(self) -> None:
        """Takes over the cursors like ``start``, without its jobs."""

        async def begin() -> None:
            self.transactions.start()
            tasks = self.transactions._tasks
            assert tasks is not None
            await tasks.close()

        asyncio.run(begin())
        self.ends = TransactionHandlers(self.transactions, after_turn=lambda _work: None)
        self.asker = Asker(self.ends.routes())

    def restart(self, *, killed: bool = False) -> None:
        if not killed:
            asyncio.run(self.transactions.stop())
        self.transactions = self.new_transactions()
        self.open()

    def send(self, body: bytes = b"x", **properties: str) -> Appended:
        sent = NewMessage(
            "T",
            3,
            body,
            encode_properties({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": body.decode(), **properties}),
            self.clock.now_ms(),
            HOST,
            5,
        )
        half = self.puts.parking.of_producer(sent)
        assert half.topic == HALF_TOPIC
        return self.store.append(half)

    def end(self, where: Appended, how: int, *, asked: bool = False, **changes: Any) -> int:
        fields: dict[str, Any] = {
            "producer_group": "PG",
            "tran_state_table_offset": where.queue_offset,
            "commit_log_offset": where.log_offset,
            "commit_or_rollback": how,
            "from_transaction_check": asked,
            "msg_id": "m",
        }
        header = EndTransactionRequest(**(fields | changes))
        return self.asker.ask(RequestCode.END_TRANSACTION, header, finish=self.ends.append_pending).code

    def check(self, after_ms: int = 10_000) -> list[bytes]:
        """Runs one round; returns the bodies of the checked messages."""
        self.clock.advance(after_ms)
        before = len(self.client.asked)
        asyncio.run(self.transactions.check())
        return [record.body for _, record in self.client.asked[before:]]

    def last_asked(self) -> Appended:
        header, record = self.client.asked[-1]
        assert header.tran_state_table_offset == record.queue_offset
        assert header.commit_log_offset == record.log_offset
        return Appended(record.log_offset, record.size, record.queue_offset, record.store_timestamp_ms)

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        units = self.store.units(topic, queue_id, 0, 10_000)
        return [decode_record(self.store.record_at(offset, size) or b"") for offset, size, _ in units]

    def bodies(self, topic: str = "T", queue_id: int = 3) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]

    def cursors(self) -> tuple[int, int]:
        query = self.offsets.query
        return query(TRANSACTION_GROUP, HALF_TOPIC, 0), query(TRANSACTION_GROUP, HALF_OP_TOPIC, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def golden(topic: str) -> list[dict[str, Any]]:
    records = json.loads(GOLDEN.read_text())["records"]
    return [record for record in records if record["topic"] == topic]


def test_half_commit_and_mark_are_what_apache_stores() -> None:
    [half, *_] = golden(HALF_TOPIC)
    [commit] = [record for record in golden("GoldenTx") if record["sysFlag"] == 8]
    [op] = golden(HALF_OP_TOPIC)
    sent = {
        k: v
        for k, v in half["properties"].items()
        if k not in ("REAL_TOPIC", "REAL_QID", "__transactionId__")
    }
    clock = ManualClock()
    message = Parking(BrokerConfig(), DelayLevels(), ClockSteps(clock, lambda: 0), clock).of_producer(
        NewMessage(
            "GoldenTx", 0, bytes.fromhex(half["bodyHex"]), encode_properties(sent), 1, HOST, sys_flag=4
        )
    )
    assert (message.topic, message.queue_id, message.sys_flag) == (HALF_TOPIC, 0, half["sysFlag"])
    assert decode_properties(message.properties) == half["properties"]
    record = Record(
        message.topic, 0, message.body, message.properties, 1, HOST, 0, 0, 0, 0, 0,
        half["commitLogOffset"], 1, HOST, 0, 0, 0,
    )  # fmt: skip
    committed = as_committed(record)
    assert (committed.topic, committed.queue_id, committed.sys_flag) == ("GoldenTx", 0, 8)
    assert committed.prepared_offset == commit["preparedTransactionOffset"]
    assert decode_properties(committed.properties) == commit["properties"]
    mark = op_message([0, 1], 1, HOST)
    assert mark.body.hex() == op["bodyHex"]
    assert decode_properties(mark.properties) == op["properties"]


def test_a_half_message_is_invisible_until_it_is_committed(bench: Bench) -> None:
    where = bench.send(b"a")
    assert bench.bodies() == []
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    [record] = bench.records("T", 3)
    assert (record.body, record.flag, record.sys_flag, record.prepared_offset) == (
        b"a",
        5,
        8,
        where.log_offset,
    )
    bench.transactions.flush_marks()
    [op] = bench.records(HALF_OP_TOPIC)
    assert (op.body, mark_offsets(op)) == (b"0,", [0])
    assert bench.check() == []
    assert bench.cursors() == (1, 1)


def test_a_rolled_back_message_is_never_seen_nor_asked_about(bench: Bench) -> None:
    assert bench.end(bench.send(), ROLLBACK) == ResponseCode.SUCCESS
    assert (bench.check(), bench.bodies(), bench.cursors()) == ([], [], (1, 1))


def test_a_cursor_is_committed_when_what_moved_it_is_safe(bench: Bench) -> None:
    """A check stores a half message again. If failover truncates that copy, the first one has to be found again."""
    bench.send(b"a")
    bench.send(b"b")
    end = bench.store.max_log_offset
    bench.puts.gate.is_master = lambda: not bench.client.asked  # it is lost with the first check
    assert bench.check() == [b"a"]
    assert bench.store.max_log_offset > end
    assert bench.cursors() == (-1, -1)
    asyncio.run(bench.transactions.stop())
    bench.store.truncate(end)
    bench.puts.gate.is_master = None
    bench.restart(killed=True)
    assert bench.cursors() == (-1, -1)
    assert bench.check() == [b"a", b"b"]
    assert bench.cursors() == (2, 0)


def test_a_stop_without_the_office_commits_no_cursor(bench: Bench) -> None:
    bench.end(bench.send(b"a"), COMMIT)

    async def lose_office() -> None:
        bench.transactions.start()
        bench.puts.gate.is_master = lambda: False
        await bench.transactions.stop()

    asyncio.run(lose_office())
    assert bench.cursors() == (-1, -1)
    assert bench.records(HALF_OP_TOPIC) == []


def test_an_unknown_end_has_no_answer_and_changes_nothing(bench: Bench) -> None:
    where = bench.send()
    header = EndTransactionRequest(
        producer_group="PG",
        tran_state_table_offset=where.queue_offset,
        commit_log_offset=where.log_offset,
        commit_or_rollback=UNKNOWN,
        msg_id="m",
    )
    bench.asker.tell(RequestCode.END_TRANSACTION, header)
    assert bench.check() == [b"x"]


@pytest.mark.parametrize(
    "changes",
    [
        {"producer_group": "other"},
        {"tran_state_table_offset": 5},
        {"commit_log_offset": 1},
        {"commit_log_offset": -1},
        {"commit_log_offset": 10**15},
    ],
)
def test_an_end_that_names_another_message_is_refused(bench: Bench, changes: dict[str, Any]) -> None:
    where = bench.send()
    assert bench.end(where, COMMIT, **changes) == ResponseCode.SYSTEM_ERROR
    assert bench.bodies() == []


def test_an_end_that_names_a_plain_message_is_refused(bench: Bench) -> None:
    plain = NewMessage(
        "T", 3, b"plain", encode_properties({"PGROUP": "PG", "REAL_TOPIC": "U", "REAL_QID": "0"}), 1, HOST
    )
    assert bench.end(bench.store.append(plain), COMMIT) == ResponseCode.SYSTEM_ERROR
    assert bench.bodies("U", 0) == []


def test_a_second_end_changes_nothing(bench: Bench) -> None:
    where = bench.send()
    bench.end(where, COMMIT)
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    bench.transactions.flush_marks()
    assert bench.end(where, ROLLBACK) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"x"]


def put_off(bench: Bench, where: Appended, how: int) -> None:
    """Ends a transaction, but does not finish the turn of the event loop."""
    header = EndTransactionRequest(
        producer_group="PG",
        tran_state_table_offset=where.queue_offset,
        commit_log_offset=where.log_offset,
        commit_or_rollback=how,
        msg_id="m",
    )
    request = encode_request(RequestCode.END_TRANSACTION, where.queue_offset, encode_ext(header))
    assert bench.asker.dispatch(request) is None


def answers(bench: Bench) -> list[list[tuple[int, int]]]:
    """Returns opaque and code of the responses of each write."""
    sent = cast(Any, bench.asker.connection).sent
    writes = [[(one.opaque, one.code) for one in FrameDecoder().feed(data)] for data in sent]
    sent.clear()
    return writes


def test_commits_of_one_turn_are_appended_and_answered_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [bench.send(b"%d" % number) for number in range(3)]
    appends: list[int] = []
    append = bench.store.append_batch

    def count(messages: list[NewMessage]) -> list[Appended]:
        appends.append(len(messages))
        return append(messages)

    monkeypatch.setattr(bench.store, "append_batch", count)
    for where in places:
        put_off(bench, where, COMMIT)
    assert (bench.bodies(), answers(bench)) == ([], [])
    bench.ends.append_pending()
    assert appends == [3]
    assert bench.bodies() == [b"0", b"1", b"2"]
    assert answers(bench) == [[(number, ResponseCode.SUCCESS) for number in range(3)]]


def test_the_second_end_of_a_transaction_in_one_turn_changes_nothing(bench: Bench) -> None:
    where, other = bench.send(b"a"), bench.send(b"b")
    put_off(bench, where, COMMIT)
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    put_off(bench, other, COMMIT)
    assert bench.end(other, ROLLBACK) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"a", b"b"]
    assert answers(bench) == [[(0, ResponseCode.SUCCESS)], [(1, ResponseCode.SUCCESS)]]


def test_one_commit_that_the_store_refuses_costs_no_other_of_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [bench.send(b"%d" % number) for number in range(3)]
    append = bench.store.append_batch

    def refuse_one(messages: list[NewMessage]) -> list[Appended]:
        if any(message.body == b"1" for message in messages):
            raise StoreUnavailable("no room")
        return append(messages)

    monkeypatch.setattr(bench.store, "append_batch", refuse_one)
    for where in places:
        put_off(bench, where, COMMIT)
    bench.ends.append_pending()
    assert bench.bodies() == [b"0", b"2"]
    codes = {opaque: code for write in answers(bench) for opaque, code in write}
    assert (codes[0], codes[2]) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert codes[1] != ResponseCode.SUCCESS
    monkeypatch.undo()
    assert bench.end(places[1], COMMIT) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"0", b"2", b"1"]


def test_only_old_enough_messages_are_asked_about(bench: Bench) -> None:
    bench.send(b"old")
    bench.clock.advance(5_000)
    bench.send(b"young")
    assert bench.check(1_001) == [b"old"]
    # An open one is checked in every round.
    assert bench.check(5_000) == [b"young", b"old"]
    header, record = bench.client.asked[0]
    assert (record.topic, record.queue_id, record.body) == ("T", 3, b"old")
    assert (header.transaction_id, header.broker_name) == ("old", "broker-a")
    assert record.property_map()["TRANSACTION_CHECK_TIMES"] == "1"


def test_an_answer_to_a_question_ends_the_transaction(bench: Bench) -> None:
    bench.send(b"a")
    assert bench.check() == [b"a"]
    assert bench.end(bench.last_asked(), COMMIT, asked=True) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"a"]
    assert bench.check() == []
    assert bench.cursors() == (2, 1)


def test_an_end_that_crosses_a_question_is_not_repeated(bench: Bench) -> None:
    where = bench.send(b"a")
    assert bench.check() == [b"a"]
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    assert bench.end(bench.last_asked(), COMMIT, asked=True) == ResponseCode.SUCCESS
    assert bench.check() == []
    assert bench.bodies() == [b"a"]


def test_answers_to_several_questions_end_it_once(bench: Bench) -> None:
    where = bench.send(b"a")
    asked = []
    for _ in range(3):
        assert bench.check() == [b"a"]
        asked.append(bench.last_asked())
    # A slow producer answers all of them, in whatever order, and its own end comes last.
    for place in (asked[1], asked[0], asked[2]):
        assert bench.end(place, COMMIT, asked=True) == ResponseCode.SUCCESS
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"a"]
    assert bench.check() == []
    assert bench.transactions.behind_count == 0
    assert bench.transactions.asked_places == 0


def test_an_answer_to_an_older_question_after_its_own_end_is_not_repeated(bench: Bench) -> None:
    where = bench.send(b"a")
    bench.check()
    first = bench.last_asked()
    bench.check()
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    assert bench.end(first, COMMIT, asked=True) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"a"]


def test_an_end_that_comes_after_many_others_is_not_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "_RECENT_MAX", 4)
    first = bench.send(b"abandoned")
    places = [bench.send(b"%d" % number) for number in range(5)]
    assert bench.check() == [b"abandoned", b"0", b"1", b"2", b"3", b"4"]
    for place in places:
        bench.end(place, COMMIT)
    assert [bench.check() for _ in range(3)] == [[b"abandoned"], [b"abandoned"], []]
    for place in places:
        assert bench.end(place, COMMIT) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    # An abandoned half message may still be ended by a late response, once.
    for place in (bench.last_asked(), first):
        assert bench.end(place, COMMIT, asked=True) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"0", b"1", b"2", b"3", b"4", b"abandoned"]


def test_who_is_asked_too_often_is_given_up_and_can_be_taken_back(bench: Bench) -> None:
    bench.send(b"a")
    assert [bench.check() for _ in range(5)] == [[b"a"], [b"a"], [b"a"], [], []]
    [given_up] = bench.records(TRANSACTION_CHECK_MAX_TIME_TOPIC)
    assert given_up.property_map()["REAL_TOPIC"] == "T"
    header = ResumeCheckHalfMessageRequest(msg_id=offset_message_id(HOST, given_up.log_offset))
    assert bench.asker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header).code == ResponseCode.SUCCESS
    assert bench.check() == [b"a"]
    bench.end(bench.last_asked(), COMMIT, asked=True)
    assert bench.bodies() == [b"a"]


@pytest.mark.parametrize("msg_id", [None, "", "zz", offset_message_id(HOST, 10**12)])
def test_taking_back_what_is_not_there_is_refused(bench: Bench, msg_id: str | None) -> None:
    header = ResumeCheckHalfMessageRequest(msg_id=msg_id)
    assert bench.asker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header).code == ResponseCode.SYSTEM_ERROR


def test_older_than_the_log_keeps_is_given_up(bench: Bench) -> None:
    bench.send(b"a")
    assert bench.check(bench.store.config.retention_hours * 3_600_000 + 1) == []
    assert len(bench.records(TRANSACTION_CHECK_MAX_TIME_TOPIC)) == 1


def test_without_a_producer_nobody_is_asked_but_the_count_goes_on(bench: Bench) -> None:
    bench.send(b"a", PGROUP="nobody")
    bench.send(b"b")
    assert bench.check() == [b"b"]
    assert bench.records(HALF_TOPIC)[2].property_map()["TRANSACTION_CHECK_TIMES"] == "1"


def test_immunity_of_its_own_lets_others_pass_and_forbids_late_ends(bench: Bench) -> None:
    where = bench.send(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    bench.send(b"plain")
    assert bench.check() == [b"plain"]
    bench.end(bench.last_asked(), COMMIT, asked=True)
    assert bench.check() == []
    aside = bench.records(HALF_TOPIC)[-1]
    assert aside.property_map()["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert bench.check(60_000) == [b"immune"]
    assert bench.end(where, COMMIT) == ResponseCode.ILLEGAL_OPERATION
    assert bench.end(bench.last_asked(), COMMIT, asked=True) == ResponseCode.SUCCESS
    assert bench.bodies() == [b"plain", b"immune"]


def test_an_immune_message_that_was_put_aside_ends_where_it_began(bench: Bench) -> None:
    where = bench.send(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    bench.check()
    bench.check()
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    assert bench.check(120_000) == []
    assert bench.bodies() == [b"immune"]


def test_a_restart_goes_on_where_it_was(bench: Bench) -> None:
    bench.end(bench.send(b"done"), COMMIT)
    bench.send(b"open")
    bench.end(bench.send(b"undone"), ROLLBACK)
    bench.restart()
    assert bench.check() == [b"open"]
    bench.end(bench.last_asked(), COMMIT, asked=True)
    bench.restart()
    assert bench.check() == []
    assert bench.bodies() == [b"done", b"open"]
    assert bench.transactions.behind_count == 0


def test_a_kill_repeats_ends_that_were_not_marked_and_loses_none(bench: Bench) -> None:
    bench.end(bench.send(b"unmarked"), COMMIT)
    bench.send(b"open")
    bench.restart(killed=True)
    assert bench.check() == [b"unmarked", b"open"]


def test_a_cursor_outside_its_queue_is_corrected(bench: Bench) -> None:
    bench.send(b"a")
    for topic in (HALF_TOPIC, HALF_OP_TOPIC):
        bench.offsets.commit("x", TRANSACTION_GROUP, topic, 0, 99)
    bench.restart(killed=True)
    bench.send(b"b")
    assert bench.check() == [b"b"]


def test_a_delayed_transaction_waits_after_its_commit(bench: Bench) -> None:
    where = bench.send(b"later", DELAY="3")
    assert bench.end(where, COMMIT) == ResponseCode.SUCCESS
    assert bench.bodies() == []
    [waiting] = bench.records(SCHEDULE_TOPIC, 2)
    assert waiting.property_map()["REAL_TOPIC"] == "T"


def test_many_ends_are_marked_in_portions_of_the_configured_size(tmp_path: Path) -> None:
    bench = Bench(tmp_path, transaction_op_bytes_max=20)
    for number in range(100):
        bench.end(bench.send(b"%d" % number), ROLLBACK)
    bench.transactions.flush_marks()
    ops = bench.records(HALF_OP_TOPIC)
    assert [offset for op in ops for offset in mark_offsets(op)] == list(range(100))
    assert max(len(op.body) for op in ops) <= 24
    assert bench.check() == []
    assert bench.cursors() == (100, len(ops))
    bench.store.close()


def test_marks_wait_for_a_store_that_refuses(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    where = bench.send(b"a")
    bench.send(b"b")
    bench.end(where, ROLLBACK)

    def refuse(_message: object) -> Appended:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "append_batch", refuse)
        assert bench.check() == []
        assert bench.end(Appended(*_place(bench, 1)), COMMIT) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bench.check() == [b"b"]
    assert len(bench.records(HALF_OP_TOPIC)) == 1


def _place(bench: Bench, queue_offset: int) -> tuple[int, int, int, int]:
    record = bench.records(HALF_TOPIC)[queue_offset]
    return record.log_offset, record.size, record.queue_offset, record.store_timestamp_ms


def test_marks_nobody_can_read_are_passed_over(bench: Bench) -> None:
    bench.store.append(NewMessage(HALF_OP_TOPIC, 0, b"x,,-1,9z,", b"TAGS\x01d\x02", 1, HOST))
    bench.store.append(NewMessage(HALF_OP_TOPIC, 0, b"0,", b"TAGS\x01other\x02", 1, HOST))
    bench.store.append(NewMessage(HALF_OP_TOPIC, 0, b"1", b"TAGS\x01d\x02", 1, HOST))
    bench.send(b"a")
    bench.send(b"b")
    assert bench.check() == [b"a"]
    assert bench.cursors() == (2, 3)


def test_transactions_can_be_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, transactions_refused=True)
    with pytest.raises(NoPermission, match="transaction"):
        bench.send()
    bench.store.close()


@pytest.mark.parametrize("properties", [{}, {"TRAN_MSG": "false"}, {"TRAN_MSG": "true", "DELAY": "2"}])
def test_what_is_no_transaction_stays_plain(bench: Bench, properties: dict[str, str]) -> None:
    sent = NewMessage("T", 3, b"x", encode_properties(properties), 1, HOST, reconsume_times=1)
    assert bench.puts.parking.of_producer(sent).topic != HALF_TOPIC


def test_a_slave_ends_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    where = bench.send()
    object.__setattr__(bench.config, "role", type(bench.config.role).SLAVE)
    assert bench.end(where, COMMIT) == ResponseCode.SLAVE_NOT_AVAILABLE
    bench.store.close()
