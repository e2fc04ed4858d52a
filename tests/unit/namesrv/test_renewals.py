"""A registration identical to the previous one is not parsed again; every other one is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.unit.namesrv.brokers import check_invariants, key, registration, topic_config

from orbitmq.errors import ServerError
from orbitmq.model.route import QueueData
from orbitmq.namesrv.registration import Registration, RouteRules
from orbitmq.namesrv.route_table import RouteTable
from orbitmq.testing.manual_clock import ManualClock

SAME = b"same"
LINK = "connection of a0:1"


def registered(table: RouteTable, sent: Registration, fingerprint: bytes = SAME) -> None:
    table.register(sent)
    table.note_renewal(sent, fingerprint)


@pytest.fixture
def table() -> RouteTable:
    table = RouteTable(ManualClock())
    registered(table, registration())
    registered(table, registration(name="b"), b"of b")
    return table


def test_same_registration_keeps_a_broker_alive_without_being_read() -> None:
    clock = ManualClock()
    table = RouteTable(clock, RouteRules(broker_timeout_ms=10_000))
    registered(table, registration())
    for _ in range(5):
        clock.advance(8_000)
        assert table.renew(key(), LINK, SAME)
        assert table.expire() == ([], [])
    clock.advance(11_000)
    table.expire()
    assert not table.renew(key(), LINK, SAME)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: table.delete_topic("T"), id="topic deleted here"),
        pytest.param(lambda table: table.unregister(key("b"), "b"), id="another broker gone"),
        pytest.param(lambda table: table.register(registration(broker_id=1)), id="a slave came"),
        pytest.param(lambda table: table.register(registration(address="x:1")), id="another took its place"),
        pytest.param(lambda table: table.connection_lost(LINK), id="its connection lost"),
    ],
)
def test_change_of_the_table_makes_the_next_registration_count(
    table: RouteTable, change: Callable[[RouteTable], object]
) -> None:
    assert table.renew(key(), LINK, SAME)
    change(table)
    assert not table.renew(key(), LINK, SAME)


def test_other_bytes_another_connection_and_a_slave_are_read(table: RouteTable) -> None:
    assert not table.renew(key(), LINK, b"other")
    assert not table.renew(key(), "another connection", SAME)
    slave = registration(broker_id=1)
    registered(table, slave)
    assert not table.renew(slave.key, slave.connection, SAME)


def test_with_delete_topic_with_registration_each_one_is_read() -> None:
    table = RouteTable(ManualClock(), RouteRules(delete_topic_with_registration=True))
    registered(table, registration())
    assert not table.renew(key(), LINK, SAME)


def snapshot(table: RouteTable) -> object:
    return (
        [(topic, table.route(topic)) for topic in sorted(table.topics())],
        table.brokers(),
        table.clusters(),
    )


@pytest.mark.parametrize("seed", range(60))
def test_registration_that_is_passed_over_would_have_changed_nothing(seed: int) -> None:
    chance = random.Random(seed)
    table = RouteTable(ManualClock())
    sent: dict[str, Registration] = {}
    passed = 0
    for _ in range(120):
        name = chance.choice("abcd")
        what = chance.randrange(8)
        if what <= 1 or name not in sent:
            topics = [
                topic_config(topic, queues=chance.choice((4, 8))) for topic in chance.sample("TUVWX", 3)
            ]
            sent[name] = registration(topics, name=name, version=chance.randrange(4))
            registered(table, sent[name], repr(sent[name]).encode())
        elif what <= 4:
            again = sent[name]
            if table.renew(again.key, again.connection, repr(again).encode()):
                before = snapshot(table)
                table.register(again)
                assert snapshot(table) == before
                passed += 1
        elif what == 5:
            table.delete_topic(chance.choice("TUVWX"))
        elif what == 6:
            table.unregister(key(name), name)
        else:
            step = chance.randrange(4)
            if step == 0:
                table.wipe_write_perm(name)
            elif step == 1:
                table.add_write_perm(name)
            elif step == 2:
                queues = QueueData(
                    broker_name=name, perm=6, read_queue_nums=1, topic_sys_flag=0, write_queue_nums=1
                )
                table.add_topic(chance.choice("TY"), [queues])
            else:
                try:
                    table.register(registration(name=name, broker_id=1))
                except ServerError:
                    pass
        check_invariants(table)
    assert passed > 0
