"""The order and the form in which ``orbitmq consume`` prints messages."""

from __future__ import annotations

import click
import pytest

from orbitmq.cli.consume import TimeOrder, template
from orbitmq.client import ReceivedMessage
from orbitmq.model.route import MessageQueue
from orbitmq.testing import message


def stored(queue_id: int, offset: int, stored_ms: int) -> ReceivedMessage:
    made = message(f"{queue_id}:{offset}", topic="T", queue_offset=offset)
    made.record.queue_id = queue_id
    made.record.store_timestamp_ms = stored_ms
    return ReceivedMessage(made.record, MessageQueue(topic="T", broker_name="broker-a", queue_id=queue_id))


def taken(order: TimeOrder) -> list[str]:
    return [one.text() for one in order.ready()]


def test_queues_are_merged_by_store_time_once_each_has_a_message() -> None:
    first, second = stored(0, 0, 10), stored(1, 0, 5)
    order = TimeOrder([first.queue, second.queue])
    order.add(first)
    assert taken(order) == []
    order.add(second)
    assert taken(order) == ["1:0"]
    order.add(stored(1, 1, 20))
    assert taken(order) == ["0:0"]
    order.finish(first.queue)
    assert taken(order) == ["1:1"]
    order.finish(second.queue)
    assert (taken(order), order.open) == ([], set())


def test_messages_of_one_queue_keep_their_order_whatever_their_times() -> None:
    one, two = stored(0, 0, 10), stored(0, 1, 5)
    order = TimeOrder([one.queue])
    order.add(one)
    order.add(two)
    order.finish(one.queue)
    assert taken(order) == ["0:0", "0:1"]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("text", "body"),
        ("%k=%v", "a b=body"),
        (r"%q\t%o\n%%", "3\t7\n%"),
        ("%t %g %b", "T tag test"),
        ("%p", '{"colour": "red"}'),
    ],
)
def test_template_shows_the_fields_it_names(form: str, text: str) -> None:
    made = message(
        "body", topic="T", tags="tag", keys=["a", "b"], properties={"colour": "red"}, queue_offset=7
    )
    made.record.queue_id = 3
    assert template(form)(made) == text


@pytest.mark.parametrize("form", ["xml", "%x", "%v%"])
def test_unknown_form_is_refused_with_what_there_is(form: str) -> None:
    with pytest.raises(click.BadParameter, match=r"%v|template"):
        template(form)
