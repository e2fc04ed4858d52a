"""Messages by key and by position, and raw queue units: 12, 33, 321, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import World
from tests.unit.broker.kit import Asker

from orbitmq.broker.handlers import query
from orbitmq.broker.handlers.query import QueryHandlers
from orbitmq.codes import ResponseCode
from orbitmq.record.codec import decode_records
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import QueryConsumeQueueResponse
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import QueryConsumeQueueRequest, QueryMessageRequest, ViewMessageByIdRequest

FOREVER_MS = 2**62


class Queries(World):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asker = Asker(
            QueryHandlers(store=self.store, store_config=self.store.config, consumers=self.consumers).routes()
        )

    def by_key(
        self, key: str, *, count: int = 32, unique: bool | None = None, kind: str | None = None
    ) -> Frame:
        header = QueryMessageRequest(
            topic="T",
            key=key,
            max_num=count,
            begin_timestamp=0,
            end_timestamp=FOREVER_MS,
            unique_key_query=unique,
            index_type=kind,
        )
        return self.asker.ask(RequestCode.QUERY_MESSAGE, header)

    def units(self, index: int = 0, count: int = 10, *, queue_id: int = 0, group: str | None = None) -> Frame:
        header = QueryConsumeQueueRequest(
            topic="T", queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        return self.asker.ask(RequestCode.QUERY_CONSUME_QUEUE, header)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Queries]:
    world = Queries(tmp_path)
    yield world
    world.store.close()


def bodies(frame: Frame) -> list[bytes]:
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    return [record.body for record in decode_records(frame.body)]


def test_query_by_key_gives_whole_records_and_how_far_the_index_got(world: Queries) -> None:
    world.put("T", body=b"1", KEYS="a b")
    last = world.put("T", body=b"2", KEYS="b")
    world.put("U", body=b"3", KEYS="b")
    answer = world.by_key("b")
    assert sorted(bodies(answer)) == [b"1", b"2"]
    assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) > last.log_offset
    assert answer.ext_fields["indexLastUpdateTimestamp"] == str(world.clock.now_ms())


def test_query_that_finds_nothing_is_answered_with_22_and_the_header(world: Queries) -> None:
    world.put("T", KEYS="a")
    for answer in (world.by_key("nothing"), world.by_key("a", count=0), world.by_key("a", count=-5)):
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert "indexLastUpdatePhyoffset" in answer.ext_fields


def test_query_by_unique_key_ignores_the_count_asked_for(world: Queries) -> None:
    for _ in range(3):
        world.put("T", UNIQ_KEY="U1")
    assert len(bodies(world.by_key("U1", count=1))) == 1
    assert len(bodies(world.by_key("U1", count=1, unique=True))) == 3


def test_query_by_tag_finds_what_the_tag_index_holds(world: Queries) -> None:
    world.put("T", body=b"1", TAGS="red")
    world.put("T", body=b"2", TAGS="blue")
    assert bodies(world.by_key("red", kind="T")) == [b"1"]
    assert world.by_key("red", kind="K").code == ResponseCode.QUERY_NOT_FOUND


def test_query_that_continues_after_an_index_key_is_refused(world: Queries) -> None:
    world.put("T", KEYS="a")
    header = QueryMessageRequest(
        topic="T", key="a", max_num=1, begin_timestamp=0, end_timestamp=FOREVER_MS, last_key="a"
    )
    answer = world.asker.ask(RequestCode.QUERY_MESSAGE, header)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")


def test_query_never_answers_with_more_than_a_frame_takes(
    world: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        world.put("T", body=bytes(1000), KEYS="k")
    monkeypatch.setattr(query, "_ANSWER_BYTES_MAX", 2500)
    assert len(bodies(world.by_key("k"))) == 2
    monkeypatch.setattr(query, "_ANSWER_BYTES_MAX", 10)
    assert len(bodies(world.by_key("k"))) == 1, "one message is given whatever its size"


def test_view_by_offset_gives_the_record_and_refuses_any_other_place(world: Queries) -> None:
    appended = world.put("T", body=b"here")

    def view(offset: int) -> Frame:
        return world.asker.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageByIdRequest(offset=offset))

    assert bodies(view(appended.log_offset)) == [b"here"]
    for wrong in (1, appended.size, -1, -(2**63), 2**63 - 1):
        answer = view(wrong)
        assert answer.code == ResponseCode.SYSTEM_ERROR, wrong
        assert str(wrong) in (answer.remark or "")


def test_units_of_a_queue_are_told_as_stored(world: Queries) -> None:
    first = world.put("T", TAGS="red")
    second = world.put("T")
    answer = QueryConsumeQueueResponse.decode(world.units().body)
    assert (answer.min_queue_index, answer.max_queue_index) == (0, 2)
    assert answer.queue_data is not None
    assert [(unit.physic_offset, unit.physic_size) for unit in answer.queue_data] == [
        (first.log_offset, first.size),
        (second.log_offset, second.size),
    ]
    assert answer.queue_data[0].tags_code == 112785, "Java's hash of 'red'"
    assert answer.filter_data is None
    one = QueryConsumeQueueResponse.decode(world.units(1, 1).body)
    assert [unit.physic_offset for unit in one.queue_data or ()] == [second.log_offset]


def test_units_with_a_group_come_with_its_subscription(world: Queries) -> None:
    world.put("T")
    offline = QueryConsumeQueueResponse.decode(world.units(group="g").body)
    assert offline.subscription_data is None
    assert "g" in (offline.filter_data or "")
    world.consumer("g", "T")
    online = QueryConsumeQueueResponse.decode(world.units(group="g").body)
    assert online.subscription_data is not None
    assert online.subscription_data.topic == "T"
    assert online.filter_data == "null"


def test_units_outside_a_queue_and_of_no_queue(world: Queries) -> None:
    world.put("T")
    for index in (1, 99, -1):
        answer = world.units(index)
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b""), "as Apache"
        assert answer.remark
    assert world.units(queue_id=7).code == ResponseCode.SYSTEM_ERROR
    assert world.units(queue_id=-7).code == ResponseCode.SYSTEM_ERROR
    answer = world.asker.ask_raw(RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": "x"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "queueId" in (answer.remark or "")


def test_units_of_one_answer_are_bounded(world: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        world.put("T")
    monkeypatch.setattr(query, "_UNITS_MAX", 3)
    answer = QueryConsumeQueueResponse.decode(world.units(0, 2**31 - 1).body)
    assert len(answer.queue_data or ()) == 3
