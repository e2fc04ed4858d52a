"""Tests the harness itself: Apache's clients against Apache's servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.apache.fixtures import ApacheCluster, started_cluster
from tests.apache.harness import (
    LATEST,
    LEGACY,
    SMALL_JVM,
    AdminShell,
    ApacheBroker,
    ApacheNamesrv,
    ClientError,
    Clients,
    GoClients,
    HarnessTimeout,
    JavaClients,
    Message,
    Script,
    Sql,
    cluster_info,
    mqadmin,
    run_benchmark,
    wait_known,
    wait_until,
)

Unique = Callable[[str], str]
ALL_CLIENTS = ["java_latest", "java_legacy", "go_clients"]
JAVA_CLIENTS = ALL_CLIENTS[:2]


@pytest.fixture(scope="module")
def apache_cluster(apache_tools: None) -> Iterator[ApacheCluster]:
    """A separate cluster, because these tests commit transactions (see ``tests/apache/fixtures.py``)."""
    with started_cluster() as cluster:
        yield cluster


@pytest.fixture
def clients(request: pytest.FixtureRequest) -> Clients:
    """The process named by the parameter."""
    process: Clients = request.getfixturevalue(request.param)
    return process


@pytest.fixture
def java(request: pytest.FixtureRequest) -> JavaClients:
    process: JavaClients = request.getfixturevalue(request.param)
    return process


@pytest.mark.parametrize("clients", ALL_CLIENTS, indirect=True)
def test_every_client_produces_and_consumes_every_field(
    clients: Clients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"))
    producer = clients.producer(unique("producers"), apache_cluster.namesrv)
    body = "größe".encode()
    sent = producer.send(
        Message(topic=topic, body=body, tags="A", keys="k1 k2", flag=7, properties={"colour": "blau"})
    )
    assert sent.status == "SEND_OK"
    consumer = clients.push_consumer(unique("readers"), apache_cluster.namesrv, {topic: "*"}, from_first=True)
    [delivery] = consumer.wait(1)
    message = delivery.message
    assert message.body == body
    assert (message.tags, message.keys, message.flag) == ("A", "k1 k2", 7)
    assert message.properties["colour"] == "blau"
    assert message.msg_id == sent.msg_id
    assert message.offset_msg_id == sent.offset_msg_id
    assert (message.queue, message.queue_offset) == (sent.queue, sent.queue_offset)
    assert message.store_host == apache_cluster.broker.address
    assert delivery.received_at_ms >= message.stored_at_ms > message.born_at_ms - 1_000


@pytest.mark.parametrize("clients", ALL_CLIENTS, indirect=True)
def test_every_way_to_send_arrives_where_it_should(
    clients: Clients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"))
    producer = clients.producer(unique("producers"), apache_cluster.namesrv)
    queues = producer.queues(topic)
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]

    def message(body: bytes, delay_level: int = 0) -> Message:
        return Message(topic=topic, body=body, delay_level=delay_level)

    assert producer.send(message(b"queue"), queue=queues[2]).queue == queues[2]
    assert producer.send(message(b"index"), selector=("index", 3)).queue == queues[3]
    one, other = (producer.send(message(name), selector=("hash", "order-7")) for name in (b"h1", b"h2"))
    assert one.queue == other.queue
    assert producer.send(message(b"async"), mode="async").status == "SEND_OK"
    producer.send_oneway(message(b"oneway"))
    batch = producer.send_batch([message(b"b1"), message(b"b2")])
    assert batch.offset_msg_id is not None
    assert len(batch.offset_msg_id.split(",")) == 2
    many = producer.send_many([message(b"m%d" % n) for n in range(20)], mode="async")
    assert {result.status for result in many} == {"SEND_OK"}
    delayed = producer.send(message(b"delayed", delay_level=1))
    expected = {b"queue", b"index", b"h1", b"h2", b"async", b"oneway", b"b1", b"b2", b"delayed"}
    expected |= {b"m%d" % n for n in range(20)}
    consumer = clients.push_consumer(unique("readers"), apache_cluster.namesrv, {topic: "*"}, from_first=True)
    deliveries = consumer.wait_bodies(expected)
    assert len(deliveries) == len(expected)
    [late] = [delivery for delivery in deliveries if delivery.body == b"delayed"]
    assert late.message.stored_at_ms - late.message.born_at_ms >= 900, delayed


@pytest.mark.parametrize("clients", ALL_CLIENTS, indirect=True)
def test_orderly_and_broadcast_consumers_follow_their_script(
    clients: Clients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"), queue_count=1)
    namesrv = apache_cluster.namesrv
    producer = clients.producer(unique("producers"), namesrv)
    orderly = clients.push_consumer(
        unique("orderly"),
        namesrv,
        {topic: "*"},
        orderly=True,
        from_first=True,
        script=Script(fail_times=1, fail_tag="again", suspend_ms=50),
    )
    group = unique("broadcast")
    # A broadcasting member keeps its offset on its own disk, so a new one must know where to begin.
    members = [
        clients.push_consumer(
            group, namesrv, {topic: "A || again"}, from_first=True, messageModel="BROADCASTING"
        )
        for _ in range(2)
    ]
    for body, tag in ((b"1", "A"), (b"2", "again"), (b"3", "B")):
        producer.send(Message(topic=topic, body=body, tags=tag))
    assert [delivery.body for delivery in orderly.wait(4)] == [b"1", b"2", b"2", b"3"]
    assert [delivery.failed for delivery in orderly.deliveries] == [False, True, False, False]
    for member in members:
        assert {delivery.body for delivery in member.wait(2)} == {b"1", b"2"}


@pytest.mark.parametrize("clients", ALL_CLIENTS, indirect=True)
def test_pull_consumer_reads_by_queue_and_offset(
    clients: Clients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"), queue_count=1)
    producer = clients.producer(unique("producers"), apache_cluster.namesrv)
    producer.send_many([Message(topic=topic, body=b"%d" % n) for n in range(5)])
    consumer = clients.pull_consumer(unique("readers"), apache_cluster.namesrv, topics=[topic])
    [queue] = consumer.queues(topic)
    pulled = consumer.pull(queue, 1, max_count=3)
    assert (pulled.status, pulled.next_offset, pulled.min_offset) == ("FOUND", 4, 0)
    assert [message.body for message in pulled.messages] == [b"1", b"2", b"3"]

    def stored() -> bool:
        # The clients send the offset oneway, so the question may overtake it, and a busy broker may drop it.
        consumer.update_offset(queue, 4)
        return consumer.fetch_offset(queue) == 4

    wait_until(stored, timeout_s=20, what="the offset to be stored")


@pytest.mark.parametrize("java", JAVA_CLIENTS, indirect=True)
def test_lite_pull_consumer_assigns_seeks_pauses_and_commits(
    java: JavaClients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"), queue_count=1)
    producer = java.producer(unique("producers"), apache_cluster.namesrv)
    producer.send_many([Message(topic=topic, body=b"%d" % n) for n in range(4)])
    consumer = java.lite_pull_consumer(unique("readers"), apache_cluster.namesrv, autoCommit=False)
    queues = consumer.queues(topic)
    consumer.assign(queues)
    consumer.seek(queues[0], 2)
    assert [message.body for message in consumer.poll_until(2)] == [b"2", b"3"]
    consumer.commit()
    wait_until(lambda: consumer.committed(queues[0]) == 4, timeout_s=5, what="the committed offset")
    consumer.pause(queues)
    consumer.seek(queues[0], "begin")
    assert consumer.poll(timeout_ms=100) == []
    consumer.resume(queues)
    assert consumer.poll_until(4)[0].body == b"0"


@pytest.mark.parametrize("java", JAVA_CLIENTS, indirect=True)
def test_java_push_consumer_retries_filters_and_shows_its_queues(
    java: JavaClients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"))
    namesrv = apache_cluster.namesrv
    producer = java.producer(unique("producers"), namesrv)
    retrying = java.push_consumer(
        apache_cluster.create_group(unique("retrying")),
        namesrv,
        {topic: Sql("price > 5")},
        from_first=True,
        strategy="AVG_BY_CIRCLE",
        script=Script(fail_times=1, delay_level=1),
    )
    for price in (3, 7):
        producer.send(Message(topic=topic, body=b"%d" % price, properties={"price": str(price)}))
    first, second = retrying.wait(2)
    assert (first.body, first.failed, second.body, second.failed) == (b"7", True, b"7", False)
    assert (first.message.reconsume_times, second.message.reconsume_times) == (0, 1)
    held = retrying.wait_queues(lambda queues: len(queues) == 4, topic=topic)
    assert held == producer.queues(topic)
    retrying.persist()
    assert retrying.offsets(topic)[first.message.queue] == first.message.queue_offset + 1


@pytest.mark.parametrize("java", JAVA_CLIENTS, indirect=True)
def test_java_transactions_requests_and_queries(
    java: JavaClients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"), queue_count=1)
    namesrv = apache_cluster.namesrv
    transactional = java.producer(unique("transactions"), namesrv, transactional=True)
    kept = transactional.send_in_transaction(Message(topic=topic, body=b"kept", keys="order-1"))
    assert kept.local_state == "COMMIT_MESSAGE"
    dropped = transactional.send_in_transaction(
        Message(topic=topic, body=b"dropped"), local="ROLLBACK_MESSAGE"
    )
    assert dropped.local_state == "ROLLBACK_MESSAGE"
    requesters = unique("requesters")
    plain = java.producer(requesters, namesrv)
    plain.send(Message(topic=topic, body=b"plain"))
    wait_known(apache_cluster.broker, producer_group=requesters)
    answering = java.push_consumer(
        unique("answering"), namesrv, {topic: "*"}, from_first=True, script=Script(reply_by=plain)
    )
    reply = plain.request(Message(topic=topic, body=b"question"), timeout_ms=10_000)
    assert reply.body == b"reply to question"
    answered = answering.wait_bodies({b"kept", b"question"})
    assert b"dropped" not in {delivery.body for delivery in answered}
    [queue] = plain.queues(topic)
    wait_until(
        lambda: len(plain.query_by_key(topic, "order-1")) == 1, timeout_s=5, what="the key in the index"
    )
    [found] = plain.query_by_key(topic, "order-1")
    assert found.body == b"kept"
    assert found.offset_msg_id is not None
    assert plain.query_by_id(topic, found.offset_msg_id).body == b"kept"
    assert (plain.min_offset(queue), plain.max_offset(queue)) == (0, 3)
    assert plain.search_offset(queue, 0) == 0
    assert plain.earliest_time_ms(queue) == found.stored_at_ms


def test_open_transaction_is_checked_until_the_script_commits_it(
    apache_tools: None, java_latest: JavaClients, unique: Unique
) -> None:
    with (
        ApacheNamesrv(LATEST) as namesrv,
        ApacheBroker(LATEST, namesrv, transactionCheckInterval=1_000, transactionTimeOut=200) as broker,
    ):
        cluster = ApacheCluster(namesrv, broker)
        topic = cluster.create_topic(unique("topic"), queue_count=1)
        producer = java_latest.producer(unique("transactions"), namesrv, transactional=True)
        script = ["UNKNOW", "COMMIT_MESSAGE"]
        producer.send_in_transaction(Message(topic=topic, body=b"open"), local="UNKNOW", checks=script)
        consumer = java_latest.push_consumer(unique("readers"), namesrv, {topic: "*"}, from_first=True)
        assert [check.answer for check in producer.wait_checks(2)] == script
        [delivery] = consumer.wait(1)
        assert delivery.body == b"open"
        java_latest.abandon()


def test_timer_message_of_the_latest_client_comes_on_time(
    java_latest: JavaClients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"))
    producer = java_latest.producer(unique("producers"), apache_cluster.namesrv)
    consumer = java_latest.push_consumer(
        unique("readers"), apache_cluster.namesrv, {topic: "*"}, from_first=True
    )
    sent_at_ms = int(time.time() * 1000)
    producer.send(Message(topic=topic, body=b"later", delay_ms=1_500))
    [delivery] = consumer.wait(1)
    assert delivery.received_at_ms - sent_at_ms >= 1_400


def test_binary_headers_namespace_and_vip_channel_reach_the_broker(
    apache_tools: None, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    with JavaClients(LEGACY, serialize="ROCKETMQ") as java:
        topic = apache_cluster.create_topic(f"space%{unique('topic')}")
        producer = java.producer(
            "producers",
            apache_cluster.namesrv,
            namespace="space",
            vipChannelEnabled=True,
            sendMsgTimeout=5_000,
        )
        plain_topic = topic.removeprefix("space%")
        assert producer.send(Message(topic=plain_topic, body=b"x" * 9_000)).status == "SEND_OK"
        consumer = java.pull_consumer("readers", apache_cluster.namesrv)
        [stored] = [
            message
            for queue in consumer.queues(topic)
            for message in consumer.pull(queue, 0, timeout_ms=3_000, block=False).messages
        ]
        assert (stored.topic, stored.body, stored.sys_flag & 1) == (topic, b"x" * 9_000, 1)


@pytest.mark.parametrize("clients", ALL_CLIENTS, indirect=True)
def test_refusals_of_a_client_keep_their_kind(
    clients: Clients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    with pytest.raises(ClientError, match="noSuchSetting"):
        clients.producer(unique("producers"), apache_cluster.namesrv, noSuchSetting=1)
    with pytest.raises(ClientError, match=r"no op|no client"):
        clients.call("producer.send", handle="nobody", message=Message(topic="T").to_json())
    topic = apache_cluster.create_topic(unique("topic"))
    consumer = clients.push_consumer(unique("readers"), apache_cluster.namesrv, {topic: "*"})
    with pytest.raises(HarnessTimeout, match="1 deliveries; 0 came"):
        consumer.wait(1, timeout_s=0.1)


def test_admin_client_answers_by_method_name(
    java_latest: JavaClients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"), queue_count=2)
    admin = java_latest.admin(apache_cluster.namesrv)
    assert len(admin.invoke("examineTopicStats", topic)["offsetTable"]) == 2
    assert admin.invoke("examineTopicRouteInfo", topic)["queueDatas"][0]["readQueueNums"] == 2


def test_mqadmin_in_its_own_jvm_lists_the_cluster(apache_cluster: ApacheCluster) -> None:
    result = mqadmin(LATEST, apache_cluster.namesrv, "clusterList")
    assert result.returncode == 0
    assert result.rows()[0][:4] == ["DefaultCluster", "broker-a", "0", apache_cluster.broker.address]


@pytest.mark.parametrize("version", [LATEST, LEGACY])
def test_mqadmin_commands_share_one_jvm(
    version: str, shared_mqadmin: dict[str, AdminShell], apache_cluster: ApacheCluster, unique: Unique
) -> None:
    shell = shared_mqadmin[version]
    namesrv = apache_cluster.namesrv
    topic = apache_cluster.create_topic(unique("topic"), queue_count=3)
    listed = shell.run("clusterList", namesrv=namesrv)
    assert listed.rows()[0][:4] == ["DefaultCluster", "broker-a", "0", apache_cluster.broker.address]
    status = shell.run("topicStatus", "-t", topic, namesrv=namesrv)
    assert [row[:4] for row in status.rows()[:3]] == [["broker-a", str(n), "0", "0"] for n in range(3)]
    refused = shell.run("topicStatus", namesrv=namesrv)
    assert refused.returncode != 0, "a missing option ends a command, not the shell"
    assert topic in shell.run("topicList", namesrv=namesrv).stdout.split()


def test_benchmark_program_reports_when_it_has_sent_its_messages(
    apache_cluster: ApacheCluster, unique: Unique
) -> None:
    """Its rate is 0 here: it compares two of its one-second samples, and may have ended before the second."""
    topic = apache_cluster.create_topic(unique("topic"))
    args = ["-q", "100", "-w", "1", "-s", "64"]
    [report] = run_benchmark(
        "producer", apache_cluster.namesrv, topic=topic, report_count=1, args=args, jvm_args=SMALL_JVM
    )
    assert report.failed == 0
    assert {"Send TPS", "Average RT(ms)"} <= set(report.figures)


def test_legacy_servers_restart_on_their_port_and_keep_the_store(
    apache_tools: None, java_legacy: JavaClients, unique: Unique, tmp_path: Path
) -> None:
    with ApacheNamesrv(LEGACY) as namesrv, ApacheBroker(LEGACY, namesrv, tmp_path / "store") as broker:
        topic = ApacheCluster(namesrv, broker).create_topic(unique("topic"), queue_count=1)
        producer = java_legacy.producer(unique("producers"), namesrv)
        producer.send(Message(topic=topic, body=b"before"))
        assert broker.rss_bytes() > broker.private_bytes() > 10 * 1024 * 1024
        assert broker.cpu_seconds() > 0
        address = broker.address
        broker.kill()
        assert (tmp_path / "store" / "abort").exists()
        namesrv.kill()
        assert cluster_info(namesrv.address) is None
        namesrv.start()
        broker.start()
        assert broker.address == address
        [queue] = producer.queues(topic)
        assert producer.max_offset(queue) == 1
        java_legacy.abandon()


def test_go_client_commits_a_transaction(
    go_clients: GoClients, apache_cluster: ApacheCluster, unique: Unique
) -> None:
    topic = apache_cluster.create_topic(unique("topic"), queue_count=1)
    producer = go_clients.producer(unique("transactions"), apache_cluster.namesrv, transactional=True)
    result = producer.send_in_transaction(Message(topic=topic, body=b"kept"))
    assert result.local_state == "COMMIT_MESSAGE"
    consumer = go_clients.push_consumer(
        unique("readers"), apache_cluster.namesrv, {topic: "*"}, from_first=True
    )
    assert [delivery.body for delivery in consumer.wait(1)] == [b"kept"]
