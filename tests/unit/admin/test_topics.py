"""Topics through the admin functions: which servers are queried, which requests are sent, and how responses are
handled.
"""

from __future__ import annotations

import pytest
from tests.unit.admin.scripted import NS, NS2, A, B, Scripted

from orbitmq.admin import topics
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.codes import ResponseCode
from orbitmq.model.route import MessageQueue
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.wire import bodies
from orbitmq.wire.bodies.stats import TopicOffset, TopicStats
from orbitmq.wire.javajson import ObjectMap

PUT = RequestCode.UPDATE_AND_CREATE_TOPIC
ORDER_PUT, ORDER_GET = RequestCode.PUT_KV_CONFIG, RequestCode.GET_KV_CONFIG


@pytest.fixture
def admin() -> Scripted:
    return Scripted()


def config(**more: object) -> TopicConfig:
    values = {"topic_name": "T", "read_queue_nums": 4, "write_queue_nums": 6, "perm": 6, **more}
    return TopicConfig(**values)  # type: ignore[arg-type]  # of any option


def test_topic_is_stored_on_the_masters_of_a_cluster_with_its_attributes(admin: Scripted) -> None:
    changes = {"+message.type": "FIFO", "-old": ""}
    done = admin.run(topics.update_topic(admin, config(), changes, broker=None, cluster="C"))
    assert [asked.address for asked in admin.of(PUT)] == [A, B]
    [fields] = {tuple(sorted(asked.fields.items())) for asked in admin.of(PUT)}
    assert dict(fields) == {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "6",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+message.type=FIFO,-old",
    }
    assert [(one.target, one.action) for one in done.changes] == [
        (A, "topic T stored"),
        (B, "topic T stored"),
    ]
    assert admin.of(ORDER_PUT) == []


def test_topic_without_queues_is_refused_before_anybody_is_asked(admin: Scripted) -> None:
    nothing = config(read_queue_nums=0, write_queue_nums=0)
    with pytest.raises(AdminError, match="topic T would have no queue"):
        admin.run(topics.update_topic(admin, nothing, {}, broker=None, cluster="C"))
    assert admin.asked == []


def test_ordered_topic_of_a_cluster_gets_all_its_brokers_in_every_name_server(admin: Scripted) -> None:
    admin.run(topics.update_topic(admin, config(order=True), {}, broker=None, cluster="C"))
    assert [asked.address for asked in admin.of(ORDER_PUT)] == [NS, NS2]
    assert admin.of(ORDER_PUT)[0].fields == {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "T",
        "value": "broker-a:6;broker-b:6",
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("broker-a:2;broker-c:3", "broker-a:6;broker-c:3"),
        ("broker-c:3", "broker-c:3;broker-a:6"),
        (None, "broker-a:6"),
    ],
)
def test_ordered_topic_of_one_broker_keeps_the_entries_of_others(
    admin: Scripted, before: str | None, after: str
) -> None:
    admin.answers[ORDER_GET] = lambda asked: (
        int(ResponseCode.QUERY_NOT_FOUND) if before is None else {"value": before}
    )
    admin.run(topics.update_topic(admin, config(order=True), {}, broker="broker-a", cluster=None))
    assert {asked.fields["value"] for asked in admin.of(ORDER_PUT)} == {after}


def test_permission_is_changed_alone_and_only_where_it_differs(admin: Scripted) -> None:
    admin.route_of("T", queues=3, perm=6)
    changed = admin.run(topics.update_topic_perm(admin, "T", 4, broker=None, cluster="C"))
    assert [asked.address for asked in admin.of(PUT)] == [A, B]
    assert (
        admin.of(PUT)[0].fields.items() >= {"perm": "4", "readQueueNums": "3", "writeQueueNums": "3"}.items()
    )
    assert {one.action for one in changed.changes} == {"perm of T changed from 6 to 4"}
    admin.asked.clear()
    same = admin.run(topics.update_topic_perm(admin, "T", 6, broker="broker-b", cluster=None))
    assert [(one.target, one.action) for one in same.changes] == [(B, "perm of T is 6 already")]
    assert admin.of(PUT) == []


def test_permission_of_a_topic_that_the_broker_does_not_have_is_an_error(admin: Scripted) -> None:
    admin.route_of("T")
    with pytest.raises(AdminError, match=r"topic T is on no master of 10\.9\.9\.9:1"):
        admin.run(topics.update_topic_perm(admin, "T", 4, broker="10.9.9.9:1", cluster=None))


def test_topic_is_deleted_from_masters_before_it_leaves_the_name_servers(admin: Scripted) -> None:
    admin.topics("T", "U")
    changed = admin.run(topics.delete_topic(admin, "T", "C"))
    codes = [asked.code for asked in admin.asked if asked.fields.get("topic") == "T"]
    in_broker, in_name_server = RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert codes == [in_broker, in_broker, in_name_server, in_name_server]
    assert [one.target for one in changed.changes] == [A, B, NS, NS2]


def test_unknown_topic_is_not_deleted_and_system_names_are_not_offered(admin: Scripted) -> None:
    admin.topics("U", "%RETRY%G")
    with pytest.raises(UnknownNameError) as caught:
        admin.run(topics.delete_topic(admin, "T", "C"))
    assert caught.value.known == ["U"]
    assert admin.of(RequestCode.DELETE_TOPIC_IN_BROKER) == []


def test_names_that_servers_and_groups_made_are_listed_as_such(admin: Scripted) -> None:
    made = ["C", "broker-a", "C_REPLY_TOPIC", "%RETRY%G", "%DLQ%G", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC"]
    admin.topics("T", *made)
    found = admin.run(topics.listed_topics(admin))
    assert found.topics == ["T", *made]
    assert found.system == made


def test_status_adds_up_brokers_in_the_order_of_queues(admin: Scripted) -> None:
    admin.route_of("T")
    names = {A: "broker-a", B: "broker-b"}

    def stats(address: str) -> bytes:
        table = {
            MessageQueue(topic="T", broker_name=names[address], queue_id=queue): TopicOffset(
                min_offset=queue, max_offset=10 + queue, last_update_timestamp=0
            )
            for queue in (1, 0)
        }
        return TopicStats(offset_table=ObjectMap(table), topic_put_tps=1.5 if address == A else None).encode()

    admin.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda asked: stats(asked.address)
    found = admin.run(topics.topic_status(admin, "T"))
    assert [(row.broker_name, row.queue_id, row.min_offset, row.max_offset) for row in found.queues] == [
        ("broker-a", 0, 0, 10),
        ("broker-a", 1, 1, 11),
        ("broker-b", 0, 0, 10),
        ("broker-b", 1, 1, 11),
    ]
    assert found.topic_put_tps == 1.5, "a broker of 4.x tells none"
    admin.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda asked: TopicStats().encode()
    with pytest.raises(UnknownNameError):
        admin.run(topics.topic_status(admin, "T"))


def test_owners_name_groups_and_skip_what_cannot_be_asked(admin: Scripted) -> None:
    admin.topics("T", "gone", "%RETRY%G", "%DLQ%G")
    admin.route_of("T")
    groups = bodies.GroupList(group_list=["G", "H"]).encode()
    admin.answers[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = lambda asked: groups
    found = admin.run(topics.topic_owners(admin))
    assert [(row.cluster, row.topic, row.group) for row in found.topics] == [
        ("C", "T", "G"),
        ("C", "T", "H"),
        ("", "gone", ""),
    ]
    assert len(admin.of(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)) == 1, "one broker has all groups"


def test_queues_are_shared_out_like_clients_do(admin: Scripted) -> None:
    admin.route_of("T", queues=2)
    found = admin.run(topics.allocation(admin, "T", ["one", "two", "three"]))
    shares = [[(q.broker_name, q.queue_id) for q in row.queues] for row in found.allocations]
    assert shares == [
        [("broker-a", 0), ("broker-a", 1)],
        [("broker-b", 0)],
        [("broker-b", 1)],
    ]
