"""The table of rights covers every request, and reads the fields its requests really have."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import Need, ResourceType, User, UserStatus, UserType
from orbitmq.auth.needs import APACHE_ROWS, ROWS, Asked
from orbitmq.auth.signature import sign_fields
from orbitmq.auth.stored import BrokerFacts, Place
from orbitmq.auth.table import AuthTable
from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import SerializeType
from orbitmq.errors import NoPermission
from orbitmq.requests import BY_CODE, Request, RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.transport.router import Route
from orbitmq.wire.frame import Frame, encode_binary_fields
from orbitmq.wire.headers import Empty

BODIES: dict[int, object] = {
    RequestCode.HEART_BEAT: {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}]}
        ],
    },
    RequestCode.LOCK_BATCH_MQ: {
        "consumerGroup": "g",
        "clientId": "c",
        "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}],
    },
    RequestCode.UNLOCK_BATCH_MQ: {
        "consumerGroup": "g",
        "clientId": "c",
        "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}],
    },
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "t"}]},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "g"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "g"}]},
    RequestCode.CHECK_CLIENT_CONFIG: {"group": "g", "subscriptionData": {"topic": "t"}},
    RequestCode.QUERY_ASSIGNMENT: {"topic": "t", "consumerGroup": "g"},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {"topic": "t", "consumerGroup": "g", "mode": "POP"},
    RequestCode.BATCH_ACK_MESSAGE: {"acks": [{"c": "g", "t": "t"}]},
}
FIELDS: dict[int, dict[str, str]] = {
    RequestCode.END_TRANSACTION: {"commitLogOffset": "0"},
    RequestCode.UNREGISTER_CLIENT: {"consumerGroup": "g"},
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": "0"},
}


PLACES = {
    5: Place("t", "t"),
    6: Place("%RETRY%g", "t"),
    7: Place("%DLQ%g", "t"),
    8: Place("rmq_sys_REVIVE_LOG_C", "rmq_sys_REVIVE_LOG_C"),
    0: Place("t", "t"),
}
FACTS = BrokerFacts("C", PLACES.get, {"pay", "pay_roll", "pop"}, {"t", "roll", "t_2", "roll_t"})


def frame(code: int, fields: dict[str, str], body: bytes) -> Frame:
    return Frame(
        code, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=encode_binary_fields(fields), body=body
    )


def asked(code: int) -> tuple[dict[str, str], bytes]:
    body = BODIES.get(code)
    return FIELDS.get(code, {}), b"" if body is None else json.dumps(body).encode()


@pytest.fixture
def control() -> AccessControl:
    table = AuthTable()
    table.store_user(User("root", "root-secret", UserType.SUPER))
    table.store_user(User("nobody", "nobody-secret"))
    table.store_user(User("gone", "gone-secret", UserType.SUPER, UserStatus.DISABLE))
    return AccessControl(table, FACTS)


def test_every_code_has_a_row() -> None:
    assert [code.name for code in BY_CODE.values() if code not in ROWS] == []
    assert set(APACHE_ROWS) == set(ROWS)


@pytest.mark.parametrize("code", list(BY_CODE.values()))
def test_no_request_passes_unsigned_or_with_a_wrong_secret_or_without_rights(
    control: AccessControl, code: Request
) -> None:
    fields, body = asked(code)
    for wrong in (
        fields,
        fields | {"AccessKey": "root"},
        sign_fields(fields, body, "root", "wrong-secret"),
        sign_fields(fields, body, "unknown", "root-secret"),
        sign_fields(fields, body, "gone", "gone-secret"),
        sign_fields(fields, body, "root", "root-secret") | {"more": "1"},
    ):
        with pytest.raises(NoPermission):
            control.check(frame(code, wrong, body), "127.0.0.1")
    assert control.check(frame(code, sign_fields(fields, body, "root", "root-secret"), body), "127.0.0.1")
    powerless = frame(code, sign_fields(fields, body, "nobody", "nobody-secret"), body)
    with pytest.raises(NoPermission, match="has no permission"):
        control.check(powerless, "127.0.0.1")


def test_code_without_a_row_is_for_super_users_only(control: AccessControl) -> None:
    control.check(frame(9999, sign_fields({}, b"", "root", "root-secret"), b""), "127.0.0.1")
    with pytest.raises(NoPermission, match="9999"):
        control.check(frame(9999, sign_fields({}, b"", "nobody", "nobody-secret"), b""), "127.0.0.1")


@pytest.mark.parametrize("code", sorted(BODIES))
def test_body_that_cannot_be_read_is_refused(control: AccessControl, code: int) -> None:
    for body in (b"", b"[]", b"{", b"\xff", b"1"):
        with pytest.raises(NoPermission):
            control.check(frame(code, sign_fields({}, body, "nobody", "nobody-secret"), body), "127.0.0.1")


def test_field_with_two_values_is_refused(control: AccessControl) -> None:
    signed = sign_fields({"b": "mine"}, b"", "root", "root-secret")
    # Java's 5.5.0 client writes the fields of a signed request twice.
    raw = encode_binary_fields({"b": "mine"}) + encode_binary_fields(signed)
    control.check(Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=raw), "127.0.0.1")
    raw = encode_binary_fields({"b": "theirs"}) + encode_binary_fields(signed)
    twice = Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=raw)
    with pytest.raises(NoPermission, match="two values"):
        control.check(twice, "127.0.0.1")


@pytest.mark.parametrize("first", ['"b":"theirs",', '"\\u0062":"theirs",', '"b":null,'])
def test_field_with_two_values_in_json_is_refused(control: AccessControl, first: str) -> None:
    signed = json.dumps(sign_fields({"b": "mine"}, b"", "root", "root-secret"))
    once = Frame(310, 1, ext_raw=signed.encode())
    assert control.check(once, "127.0.0.1")
    spaced = Frame(310, 1, ext_raw=signed.replace(", ", " ,  ").encode())
    assert control.check(spaced, "127.0.0.1")
    twice = Frame(310, 1, ext_raw=("{" + first + signed[1:]).encode())
    with pytest.raises(NoPermission, match="two values"):
        control.check(twice, "127.0.0.1")


def test_field_with_two_values_does_not_hide_behind_numbers(control: AccessControl) -> None:
    """A number is two bytes shorter than the text it is read as, so a header with a repeated field can be as long."""
    numbers = {f"n{number}": str(number) for number in range(7)}
    signed = msgspec.json.encode(sign_fields({"b": "mine", **numbers}, b"", "root", "root-secret")).decode()
    bare = re.sub(r'"(n\d)":"(\d)"', r'"\1":\2', signed)
    hidden = "{" + '"b":"theirs1",' + bare[1:]
    assert len(hidden) == len(signed)
    assert control.check(Frame(310, 1, ext_raw=bare.encode()), "127.0.0.1")
    with pytest.raises(NoPermission, match="two values"):
        control.check(Frame(310, 1, ext_raw=hidden.encode()), "127.0.0.1")


def test_header_of_very_many_fields_is_refused_before_its_signature_is_checked(
    control: AccessControl,
) -> None:
    many = sign_fields({f"f{number}": "x" for number in range(4_096)}, b"", "root", "root-secret")
    for form, raw in (
        (SerializeType.JSON, json.dumps(many).encode()),
        (SerializeType.ROCKETMQ, encode_binary_fields(many)),
    ):
        with pytest.raises(NoPermission, match="4,098 fields; the limit is 4,096"):
            control.check(Frame(310, 1, serialize_type=form, ext_raw=raw), "127.0.0.1")


def test_header_that_repeats_a_field_very_often_is_refused(control: AccessControl) -> None:
    signed = sign_fields({"b": "mine"}, b"", "root", "root-secret")
    raw = encode_binary_fields({"b": "mine"}) * 9_000 + encode_binary_fields(signed)
    with pytest.raises(NoPermission, match="too many fields"):
        control.check(Frame(310, 1, serialize_type=SerializeType.ROCKETMQ, ext_raw=raw), "127.0.0.1")
    text = "{" + '"b":"mine",' * 30_000 + json.dumps(signed)[1:]
    with pytest.raises(NoPermission, match="too long"):
        control.check(Frame(310, 1, ext_raw=text.encode()), "127.0.0.1")


class Recorder(dict[str, str]):
    """Records which fields were read."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, key: str, default: str = "") -> str:  # type: ignore[override]  # narrower on purpose
        self.names.add(key)
        return default


def read_by(code: int, fields: Mapping[str, str], body: bytes) -> Iterator[Need]:
    yield from ROWS[code](Asked(fields, body, FACTS))


def test_rows_read_fields_that_the_requests_have(tmp_path: Path) -> None:
    """A row with a misspelt field would judge an empty name."""

    async def routes() -> list[Route]:
        config = BrokerConfig(public_host="127.0.0.1", bind_host="127.0.0.1", listen_port=0)
        async with Broker(config, StoreConfig(root=str(tmp_path / "store"))) as broker:
            return [route for route in broker.main_router.routes if isinstance(route, Route)]

    wrong = {}
    for route in asyncio.run(routes()):
        recorder = Recorder()
        list(read_by(route.code, recorder, asked(route.code)[1]))
        known = set(route.header.__struct_encode_fields__)
        if route.header is not Empty and not recorder.names <= known:
            wrong[BY_CODE[route.code].name] = recorder.names - known
    assert wrong == {}


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (310, {"b": "%RETRY%g"}, ["Group:g"]),
        (320, {"b": "t"}, ["Topic:t"]),
        (11, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Group:g"]),
        (11, {"topic": "%RETRY%other", "consumerGroup": "g"}, ["Group:other", "Group:g"]),
        (200050, {"topic": "%RETRY%pop_t_2", "consumerGroup": "pop"}, ["Topic:t_2", "Group:pop"]),
        (200050, {"topic": "%RETRY%pop+t", "consumerGroup": "pop"}, ["Topic:t", "Group:pop"]),
        (200050, {"topic": "%RETRY%pay_roll", "consumerGroup": "pay"}, ["Group:pay_roll", "Group:pay"]),
        (200050, {"topic": "%RETRY%pay_roll", "consumerGroup": "pay_roll"}, ["Group:pay_roll"]),
        (200050, {"topic": "roll", "consumerGroup": "pay"}, ["Topic:roll", "Group:pay", "Group:pay_roll"]),
        (
            200052,
            {"topic": "t", "consumerGroup": "pay_roll"},
            ["Topic:t", "Group:pay_roll", "Group:pay", "Topic:roll_t"],
        ),
        (200054, {"topic": "t_2", "consumerGroup": "pop"}, ["Topic:t_2", "Group:pop"]),
        (11, {"topic": "%RETRY%pop_t", "consumerGroup": "g"}, ["Topic:t", "Group:pop", "Group:g"]),
        (11, {"topic": "SCHEDULE_TOPIC_XXXX", "consumerGroup": "g"}, ["Cluster:C", "Group:g"]),
        (310, {"b": "rmq_sys_wheel_timer"}, ["Cluster:C"]),
        (325, {"b": "C_REPLY_TOPIC"}, []),
        (325, {"b": "space%C_REPLY_TOPIC"}, []),
        (325, {"b": "%RETRY%C_REPLY_TOPIC"}, ["Group:C_REPLY_TOPIC"]),
        (324, {"topic": "t"}, ["Topic:t"]),
        (36, {"group": "g", "offset": "5"}, ["Group:g", "Topic:t"]),
        (36, {"group": "g", "offset": "+005"}, ["Group:g", "Topic:t"]),
        (36, {"group": "g", "offset": "6"}, ["Group:g", "Topic:t"]),
        (36, {"group": "g", "offset": "9"}, ["Group:g"]),
        (37, {"topic": "mine", "commitLogOffset": "5"}, ["Topic:t"]),
        (33, {"offset": "8"}, ["Cluster:C"]),
        (361, {"topic": "t", "consumerGroup": "g"}, ["Topic:t", "Group:g"]),
        (33, {"topic": "mine", "offset": "5"}, ["Topic:t"]),
        (25, {}, ["Cluster:C"]),
        (314, {"srcGroup": "g", "destGroup": "h", "topic": "t"}, ["Group:g", "Group:h", "Topic:t"]),
    ],
)
def test_needs_name_what_is_touched(code: int, fields: dict[str, str], expected: list[str]) -> None:
    needs = list(read_by(code, fields, b""))
    assert [need.text for need in needs] == expected
    assert all(isinstance(need.type, ResourceType) for need in needs)


def test_pop_without_retry_topics_of_version_1_shares_none() -> None:
    facts = BrokerFacts("C", groups={"pay_roll"}, reads_pop_retry_v1=lambda: False)
    needs = ROWS[200050](Asked({"topic": "roll", "consumerGroup": "pay"}, b"", facts))
    assert [need.text for need in needs] == ["Topic:roll", "Group:pay"]


def test_dead_letter_may_be_handled_by_its_readers() -> None:
    need = next(read_by(33, {"offset": "7"}, b""))
    assert need.text == "Topic:t"
    assert need.instead is not None
    assert need.instead.text == "Topic:%DLQ%g"
    assert next(read_by(33, {"offset": "6"}, b"")).instead is None


@pytest.mark.parametrize("text", ["5.0", "5e0", " 5", "0x5", "\u0665", "--5"])
def test_offset_that_a_handler_might_read_otherwise_is_refused(text: str) -> None:
    with pytest.raises(NoPermission):
        list(read_by(33, {"offset": text}, b""))


def test_owner_of_a_very_long_retry_topic_is_looked_for_among_possible_groups_only() -> None:
    class Asked(set[str]):
        count = 0

        def __contains__(self, name: object) -> bool:
            Asked.count += 1
            return super().__contains__(name)

    facts = BrokerFacts("C", groups=Asked({"pay"}))
    assert facts.retry_owner("_" * 100_000) == ("_" * 100_000, "")
    assert facts.retry_owner("pay_" + "_" * 100_000) == ("pay", "_" * 100_000)
    assert Asked.count < 1000
