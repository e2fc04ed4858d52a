"""Idempotent sends: the same unique key is stored once, and repeats get the first response."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.broker.test_send_handlers import KEY, Sender, send

from orbitmq.broker.delivery.stored_sends import WINDOW_MS
from orbitmq.codes import Property, ResponseCode
from orbitmq.record.batch import encode_batch
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.wire.frame import Frame

MARK = f"{Property.IDEMPOTENT}\x01true\x02"
PLACE = ("msgId", "queueId", "queueOffset", "transactionId")


def marked(key: str = KEY, extra: str = "") -> str:
    return f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02{extra}{MARK}"


def place(answer: Frame) -> list[str | None]:
    return [answer.ext_fields.get(name) for name in PLACE]


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    return Sender(tmp_path)


@pytest.mark.parametrize("together", [True, False])
def test_repeat_in_the_same_or_a_later_turn_is_answered_but_not_stored(
    sender: Sender, together: bool
) -> None:
    first, other, again = (
        send(1, properties=marked()),
        send(2, properties=marked("another")),
        send(3, properties=marked(), queue_id=2),
    )
    answers = sender.feed(first, other, again) if together else sender.feed(first, other) + sender.feed(again)
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert place(answers[2]) == place(answers[0]) != place(answers[1])
    assert [record.unique_key for record in sender.records()] == [KEY, "another"]
    assert all(Property.IDEMPOTENT not in record.property_map() for record in sender.records())


def test_official_clients_may_store_a_key_twice(sender: Sender) -> None:
    sender.feed(send(1), send(2))
    sender.feed(send(3))
    assert len(sender.records()) == 3


def test_key_of_another_topic_or_before_the_window_is_stored(sender: Sender) -> None:
    sender.world.topic("U", queues=4)
    sender.feed(send(1, properties=marked()))
    sender.feed(send(2, properties=marked(), topic="U"))
    assert len(sender.records()) == 2
    sender.world.clock.advance(WINDOW_MS + 2000)
    sender.feed(send(3, properties=marked()))
    assert len(sender.records()) == 3


def test_key_of_another_message_is_refused(sender: Sender) -> None:
    sender.feed(send(1, properties=marked()))
    (answer,) = sender.feed(send(2, properties=marked(), body=b"another"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "already used" in (answer.remark or "")
    assert len(sender.records()) == 1


def test_repeated_batch_gets_the_places_of_the_first(sender: Sender) -> None:
    body = encode_batch([(0, b"a", b"UNIQ_KEY\x01k1\x02"), (0, b"b", b"UNIQ_KEY\x01k2\x02")])
    mixed = encode_batch([(0, b"a", b"UNIQ_KEY\x01k1\x02"), (0, b"c", b"UNIQ_KEY\x01k3\x02")])
    request = {"batch": True, "body": body, "properties": f"WAIT\x01true\x02{MARK}"}
    first, again = sender.feed(send(1, **request), send(2, **request))  # type: ignore[arg-type]
    (later,) = sender.feed(send(3, **request))  # type: ignore[arg-type]
    assert place(first) == place(again) == place(later)
    assert len(sender.records()) == 2
    (refused,) = sender.feed(send(4, **(request | {"body": mixed})))  # type: ignore[arg-type]
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(sender.records()) == 2


@pytest.mark.parametrize("extra", ["DELAY\x013\x02", "TRAN_MSG\x01true\x02", "TIMER_DELAY_MS\x0160000\x02"])
def test_repeat_of_a_parked_message_gets_the_first_answer(sender: Sender, extra: str) -> None:
    (first,) = sender.feed(send(1, properties=marked(extra=extra)))
    sender.world.clock.advance(5000)
    (again,) = sender.feed(send(2, properties=marked(extra=extra)))
    assert again.code == 0
    assert place(again) == place(first)
    assert again.ext_fields.get("recallHandle") == first.ext_fields.get("recallHandle")
    assert len(sender.records()) == 1


def test_killed_broker_finds_the_keys_after_its_restart(tmp_path: Path) -> None:
    before = Sender(tmp_path / "before")
    (first,) = before.feed(send(1, properties=marked()))
    shutil.copytree(tmp_path / "before", tmp_path / "after")  # the state after a kill: nothing was closed
    after = Sender(tmp_path / "after")
    (again,) = after.feed(send(2, properties=marked()))
    assert place(again) == place(first)
    assert len(after.records()) == 1


def test_idempotent_sends_are_refused_without_a_key_index(
    tmp_path: Path, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = MessageStore(StoreConfig(root=str(tmp_path / "without"), index_enabled=False))
    monkeypatch.setattr(MessageStore, "index_gap", without.index_gap)
    (answer,) = sender.feed(send(1, properties=marked()))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "messageIndexEnable" in (answer.remark or "")
    assert sender.feed(send(2))[0].code == 0
    assert len(sender.records()) == 1
