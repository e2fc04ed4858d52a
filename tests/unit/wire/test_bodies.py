"""Typed bodies compared with those of real peers, and the forms that are not plain JSON."""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec
import pytest
from tests.golden import data
from tests.unit.wire.recorded import RecordedFrame, recorded_frames

import orbitmq.wire.bodies as bodies
from orbitmq.codes import Version
from orbitmq.errors import BodyError
from orbitmq.model.data_version import DataVersion
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.route import BrokerData, QueueData, TopicRoute
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import Request, RequestCode
from orbitmq.wire import javajson
from orbitmq.wire.bodies import (
    BatchAck,
    RegisterBrokerBody,
    TimerCheckPoint,
    TopicConfigWrapper,
    decode_registration,
    decode_route,
    encode_body,
    encode_registration,
    encode_route,
)

# The type that reads the JSON body of each request and of its response.
REQUEST_BODIES: dict[Request, type[msgspec.Struct]] = {
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.HEART_BEAT: bodies.HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: bodies.LockBatchRequest,
    RequestCode.UNLOCK_BATCH_MQ: bodies.LockBatchRequest,
    RequestCode.SET_MESSAGE_REQUEST_MODE: bodies.MessageRequestMode,
    RequestCode.QUERY_ASSIGNMENT: bodies.QueryAssignmentRequest,
}
RESPONSE_BODIES: dict[Request, type[msgspec.Struct]] = {
    RequestCode.GET_BROKER_CLUSTER_INFO: bodies.ClusterInfo,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRoute,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: bodies.TopicList,
    RequestCode.GET_TOPIC_STATS_INFO: bodies.TopicStats,
    RequestCode.GET_TOPIC_CONFIG: bodies.TopicConfigAndMapping,
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigWrapper,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: bodies.SubscriptionGroupWrapper,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: bodies.ConsumerIdList,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: bodies.ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: bodies.ProducerConnection,
    RequestCode.GET_CONSUME_STATS: bodies.ConsumeStats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: bodies.GroupList,
    RequestCode.LOCK_BATCH_MQ: bodies.LockBatchResponse,
    RequestCode.QUERY_ASSIGNMENT: bodies.QueryAssignmentResponse,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: bodies.ResetOffset,
    RequestCode.GET_ALL_CONSUMER_OFFSET: bodies.ConsumerOffsets,
    RequestCode.GET_ALL_DELAY_OFFSET: bodies.DelayOffsets,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: bodies.MessageRequestModes,
    RequestCode.GET_TIMER_METRICS: bodies.TimerMetrics,
}

ADDED_SINCE_4_9 = {
    "attributes",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "groupRetryPolicy",
    "groupSysFlag",
}
"""Members of a group that 4.9.7 does not send; the model fills them in."""

JSON_FRAMES = [recorded for recorded in recorded_frames() if recorded.body_text is not None]


def body_type(recorded: RecordedFrame) -> type[msgspec.Struct]:
    return (RESPONSE_BODIES if recorded.is_response else REQUEST_BODIES)[recorded.code]


def without_order(value: Any) -> Any:
    """Sets travel as arrays in any order."""
    if isinstance(value, dict):
        return {key: without_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((without_order(item) for item in value), key=repr)
    return value


@pytest.mark.parametrize("recorded", JSON_FRAMES, ids=lambda recorded: recorded.name)
def test_recorded_body_survives_decode_and_encode(recorded: RecordedFrame) -> None:
    value = javajson.decode(recorded.frame.body, body_type(recorded))
    original = javajson.loads(recorded.frame.body)
    for encoded in (javajson.encode(value), encode_body(value)):
        again = javajson.loads(encoded)
        added = set(again) - set(original)
        assert added <= ADDED_SINCE_4_9
        assert without_order({key: again[key] for key in original}) == without_order(original)
        assert javajson.decode(encoded, type(value)) == value


def test_recorded_bodies_have_every_kind_of_key() -> None:
    texts = "".join(recorded.body_text or "" for recorded in JSON_FRAMES)
    assert '{{"brokerName"' in texts
    assert '"brokerAddrs":{0:' in texts
    assert '"brokerAddrs":{"0":' in texts


def test_every_recorded_body_that_looks_like_json_has_a_type() -> None:
    for recorded in recorded_frames():
        if recorded.frame.body.startswith(b"{"):
            assert recorded.body_text is not None
            assert body_type(recorded)


WRITTEN_BY_JAVA: dict[str, str] = json.loads((data.APACHE / "bodies.json").read_bytes())["filled"]
JAVA_CLASSES: dict[str, type[msgspec.Struct]] = {
    "BatchAckMessageRequestBody": bodies.BatchAckRequest,
    "BrokerStatsData": bodies.BrokerStatsData,
    "CheckClientRequestBody": bodies.CheckClientConfig,
    "ClusterInfo": bodies.ClusterInfo,
    "ConsumeMessageDirectlyResult": bodies.ConsumeMessageDirectlyResult,
    "ConsumeStats": bodies.ConsumeStats,
    "ConsumeStatsList": bodies.ConsumeStatsList,
    "ConsumerConnection": bodies.ConsumerConnection,
    "ConsumerOffsetSerializeWrapper": bodies.ConsumerOffsets,
    "ConsumerRunningInfo": bodies.ConsumerRunningInfo,
    "CreateTopicListRequestBody": bodies.TopicConfigList,
    "DataVersion": DataVersion,
    "GetBrokerMemberGroupResponseBody": bodies.MemberGroup,
    "GetConsumerListByGroupResponseBody": bodies.ConsumerIdList,
    "GetConsumerStatusBody": bodies.ConsumerStatus,
    "GroupForbidden": bodies.GroupForbidden,
    "GroupList": bodies.GroupList,
    "HARuntimeInfo": bodies.HaRuntimeInfo,
    "HeartbeatData": bodies.HeartbeatData,
    "KVTable": bodies.KvTable,
    "LockBatchRequestBody": bodies.LockBatchRequest,
    "LockBatchResponseBody": bodies.LockBatchResponse,
    "MessageRequestModeSerializeWrapper": bodies.MessageRequestModes,
    "ProducerConnection": bodies.ProducerConnection,
    "ProducerTableInfo": bodies.ProducerTable,
    "QueryAssignmentRequestBody": bodies.QueryAssignmentRequest,
    "QueryAssignmentResponseBody": bodies.QueryAssignmentResponse,
    "QueryConsumeQueueResponseBody": bodies.QueryConsumeQueueResponse,
    "QueryConsumeTimeSpanBody": bodies.QueueTimeSpans,
    "QueryCorrectionOffsetBody": bodies.CorrectionOffsets,
    "QuerySubscriptionResponseBody": bodies.QuerySubscriptionResponse,
    "RegisterBrokerBody": RegisterBrokerBody,
    "ResetOffsetBody": bodies.ResetOffset,
    "ResetOffsetBodyForC": bodies.ResetOffsetForCpp,
    "SetMessageRequestModeRequestBody": bodies.MessageRequestMode,
    "SubscriptionGroupConfig": SubscriptionGroupConfig,
    "SubscriptionGroupList": bodies.SubscriptionGroupList,
    "SubscriptionGroupWrapper": bodies.SubscriptionGroupWrapper,
    "TopicConfig": TopicConfig,
    "TopicConfigAndMappingSerializeWrapper": TopicConfigWrapper,
    "TopicConfigSerializeWrapper": TopicConfigWrapper,
    "TopicList": bodies.TopicList,
    "TopicRouteData": TopicRoute,
    "TopicStatsTable": bodies.TopicStats,
    "UnlockBatchRequestBody": bodies.LockBatchRequest,
}


def test_every_body_written_by_java_has_a_type() -> None:
    assert set(JAVA_CLASSES) == set(WRITTEN_BY_JAVA)


@pytest.mark.parametrize("name", sorted(JAVA_CLASSES))
def test_body_written_by_java_is_rewritten_byte_for_byte(name: str) -> None:
    text = WRITTEN_BY_JAVA[name].encode()
    value = javajson.decode(text, JAVA_CLASSES[name])
    assert javajson.encode(value) == text
    assert encode_body(value) == text


@pytest.mark.parametrize(
    "cls",
    [
        cls
        for cls in vars(bodies).values()
        if isinstance(cls, type) and issubclass(cls, bodies.Body) and cls is not bodies.Body
    ],
    ids=lambda cls: cls.__name__,
)
def test_fast_and_slow_writer_agree(cls: type[bodies.Body]) -> None:
    required = {info.encode_name for info in msgspec.structs.fields(cls) if info.required}
    stand_ins = {"topicConfigList": "[]", "groupConfigList": "[]", "queueId": "1", "offset": "2"}
    members = ",".join(
        f'"{name}":{stand_ins.get(name, chr(34) + "x" + chr(34))}' for name in sorted(required)
    )
    value = cls.decode(b"{" + members.encode() + b"}")
    assert javajson.loads(value.encode()) == javajson.loads(javajson.encode(value))
    assert b"null" not in value.encode()


def test_route_has_quoted_ids_for_new_peers_and_bare_ids_for_old_ones() -> None:
    route = TopicRoute(
        broker_datas=[BrokerData(broker_addrs={0: "h:1", 1: "h:2"}, broker_name="b", cluster="c")],
        queue_datas=[QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=4)],
    )
    standard, bare = encode_route(route, standard=True), encode_route(route, standard=False)
    assert b'"brokerAddrs":{"0":"h:1","1":"h:2"}' in standard
    assert b'"brokerAddrs":{0:"h:1",1:"h:2"}' in bare
    assert decode_route(standard) == decode_route(bare) == route


# Registration.
REGISTRATION: dict[str, str] = json.loads((data.APACHE / "bodies.json").read_bytes())["registration"]
COMPRESSED = bytes.fromhex(REGISTRATION["compressedHex"])


def plain_registration() -> RegisterBrokerBody:
    return RegisterBrokerBody.decode(REGISTRATION["plain"].encode())


def test_compressed_registration_of_java_loses_only_order_and_system_flag() -> None:
    body = decode_registration(COMPRESSED, compressed=True, version=Version.V5_5_0)
    expected = plain_registration()
    wrapper, expected_wrapper = body.topic_config_serialize_wrapper, expected.topic_config_serialize_wrapper
    assert body.filter_server_list == expected.filter_server_list
    assert wrapper.data_version == expected_wrapper.data_version
    assert wrapper.topic_config_table == {
        name: msgspec.structs.replace(topic, order=False, topic_sys_flag=0)
        for name, topic in expected_wrapper.topic_config_table.items()
    }


def test_our_compressed_registration_inflates_to_the_bytes_of_java() -> None:
    ours = encode_registration(plain_registration(), compressed=True)
    assert zlib.decompress(ours) == zlib.decompress(COMPRESSED)


@pytest.mark.parametrize("version", [Version.V5_0_0 - 1, Version.V5_0_0])
@pytest.mark.parametrize("compressed", [False, True])
def test_registration_survives_encode_and_decode_by_version(version: int, compressed: bool) -> None:
    mapping = b'{"topic":"TopicA","totalQueues":3}'
    body = RegisterBrokerBody(
        filter_server_list=["a", "b"],
        topic_config_serialize_wrapper=TopicConfigWrapper(
            data_version=DataVersion(counter=3),
            topic_config_table={"TopicA": TopicConfig(topic_name="TopicA", attributes={"+a": "b"})},
            topic_queue_mapping_info_map={"TopicA": msgspec.Raw(mapping)},
        ),
    )
    raw = encode_registration(body, compressed=compressed, version=version)
    again = decode_registration(raw, compressed=compressed, version=version)
    wrapper = again.topic_config_serialize_wrapper
    assert again.filter_server_list == ["a", "b"]
    assert wrapper.topic_config_table == body.topic_config_serialize_wrapper.topic_config_table
    mappings = wrapper.topic_queue_mapping_info_map
    if compressed and version < Version.V5_0_0:
        assert mappings is None
    else:
        assert mappings is not None
        assert bytes(mappings["TopicA"]) == mapping


def test_registration_before_3_0_11_is_the_topic_table_alone() -> None:
    text = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{}}'
    body = decode_registration(text, compressed=False, version=Version.V3_0_11 - 1)
    assert body.topic_config_serialize_wrapper.data_version == DataVersion(counter=1, timestamp_ms=2)


def test_registration_without_body_is_an_empty_table() -> None:
    assert decode_registration(b"", compressed=True, version=Version.V5_5_0) == RegisterBrokerBody()


@pytest.mark.parametrize("cut", range(1, len(COMPRESSED)))
def test_cut_registration_raises_body_error(cut: int) -> None:
    with pytest.raises(BodyError):
        decode_registration(COMPRESSED[:cut], compressed=True, version=Version.V5_5_0)


@pytest.mark.parametrize("cut", range(len(zlib.decompress(COMPRESSED))))
def test_registration_cut_before_it_was_compressed_raises_body_error(cut: int) -> None:
    raw = zlib.compress(zlib.decompress(COMPRESSED)[:cut])
    with pytest.raises(BodyError):
        decode_registration(raw, compressed=True, version=Version.V5_5_0)


@pytest.mark.slow
def test_registration_that_inflates_without_end_is_refused() -> None:
    bomb = zlib.compress(bytes(65 * 1024 * 1024), 9)
    assert len(bomb) < 100_000
    with pytest.raises(BodyError, match="longer than"):
        decode_registration(bomb, compressed=True, version=Version.V5_5_0)


# Bodies with a part that is not JSON.
def test_recorded_timer_checkpoints_survive_decode_and_encode() -> None:
    raws = [
        recorded.frame.body
        for recorded in recorded_frames()
        if recorded.code == RequestCode.GET_TIMER_CHECK_POINT and recorded.is_response
    ]
    assert raws
    for raw in raws:
        check_point = TimerCheckPoint.decode(raw)
        assert check_point.data_version.timestamp_ms > 1_700_000_000_000
        assert check_point.encode() == raw


@pytest.mark.parametrize("size", [0, 31, 33, 55, 57])
def test_timer_checkpoint_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(BodyError):
        TimerCheckPoint.decode(bytes(size))


def test_timer_checkpoint_of_four_numbers_has_no_version() -> None:
    assert TimerCheckPoint.decode(bytes(31) + b"\x01") == TimerCheckPoint(master_timer_queue_offset=1)


def test_batch_acknowledgement_bits_are_those_of_java() -> None:
    (ack,) = bodies.BatchAckRequest.decode(WRITTEN_BY_JAVA["BatchAckMessageRequestBody"].encode()).acks
    assert ack.indexes() == [0, 3]
    assert BatchAck().with_indexes([0, 3]).bits == "CQ=="
    assert BatchAck().with_indexes([]).indexes() == []
    assert BatchAck().with_indexes([500]).indexes() == [500]


@pytest.mark.parametrize("bits", ["*", "CQ=", "é", "A" * 8196])
def test_batch_acknowledgement_with_broken_bits_raises_body_error(bits: str) -> None:
    with pytest.raises(BodyError):
        BatchAck(bits=bits).indexes()
