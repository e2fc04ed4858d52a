"""Malformed requests to a broker: Apache's code, a remark that names the fault, and no message stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.integration import bad_requests
from tests.integration.bad_requests import (
    GROUP,
    LONG_NAMES,
    READ_TOPIC,
    SEND_TOPIC,
    SEND_V2,
    STORED_COUNT,
    Case,
)
from tests.unit.transport.loops import run

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.transport.client import RpcClient
from orbitmq.wire.frame import Frame

HOST = "127.0.0.1"
ACCEPTED: Final = ResponseCode.SUCCESS
REFUSED: Final = ResponseCode.SYSTEM_ERROR
INVALID: Final = ResponseCode.INVALID_PARAMETER

# Where our response deliberately differs from Apache's, and our code.
STRICTER: Final = {
    # Apache reads any text except "true" as false, and a malformed optional number as missing.
    **{f"{code} {flag}='maybe'": REFUSED for code in (310, 320) for flag in "km"},
    **{f"10 {flag}='maybe'": REFUSED for flag in ("unitMode", "batch")},
    "17 order='maybe'": REFUSED,
    **{
        f"{code} {field}={value!r}": REFUSED
        for code, field in (
            (10, "defaultTopicQueueNums"),
            (10, "reconsumeTimes"),
            (17, "topicSysFlag"),
            (36, "maxReconsumeTimes"),
        )
        for value in ("abc", "", "1.5", "2147483648", "9223372036854775808")
    },
    # Apache stores offsets of nonexistent queues and offset -1, creates topics with -1 queues, and locks queues for a
    # client without a name.
    "15 queueId='-1'": INVALID,
    "15 queueId='99'": INVALID,
    "15 commitOffset='-1'": INVALID,
    **{f"17 {field}='-1'": INVALID for field in ("readQueueNums", "writeQueueNums", "perm")},
    "17 perm='99'": INVALID,
    "41 body '{}'": REFUSED,
    "34 body '{}'": REFUSED,
    "46 body ''": REFUSED,
    "46 body 'null'": REFUSED,
    "12 without topic": REFUSED,
    "12 without key": REFUSED,
    "14 without consumerGroup": REFUSED,
}
OTHER_CODE: Final = {
    # Both refuse, or neither stores anything that could not be read.
    **{
        f"15 {field}={value!r}": REFUSED
        for field, values in (
            ("queueId", ("abc", "", "1.5", "2147483648", "9223372036854775808")),
            ("commitOffset", ("abc", "", "1.5", "9223372036854775808")),
        )
        for value in values
    },
    "15 without consumerGroup": REFUSED,
    # Bits that claim IPv6 hosts: Apache writes an unreadable record, or fails to; we clear them.
    "10 sysFlag='-1'": ACCEPTED,
    "310 f='-1'": ACCEPTED,
    "320 f='99'": ACCEPTED,
    # A search for a negative number finds nothing.
    "12 maxNum='-1'": ResponseCode.QUERY_NOT_FOUND,
}


@asynccontextmanager
async def broker_with_messages(
    directory: Path, form: SerializeType
) -> AsyncIterator[tuple[Broker, RpcClient]]:
    config = BrokerConfig(
        broker_name="broker-a",
        listen_port=0,
        bind_host=HOST,
        public_host=HOST,
        fast_port_enabled=False,
    )
    client = RpcClient(serialize_type=form)
    async with Broker(config, StoreConfig(root=str(directory))) as broker:
        try:
            for topic in (SEND_TOPIC, READ_TOPIC):
                fields = {**bad_requests.VALID[17][0], "topic": topic}
                await ok(client, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            for number in range(STORED_COUNT):
                properties = f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02"
                fields = {**SEND_V2, "b": READ_TOPIC, "i": properties}
                await ok(client, broker, RequestCode.SEND_MESSAGE_V2, fields, b"body")
            yield broker, client
        finally:
            await client.close()


async def ok(
    client: RpcClient, broker: Broker, code: int, fields: dict[str, str], body: bytes = b""
) -> Frame:
    answer = await client.call(broker.address, code, None, body, ext=fields)
    assert answer.code == 0, (code, answer.code, answer.remark)
    return answer


async def ask(client: RpcClient, broker: Broker, case: Case) -> Frame:
    await ok(client, broker, RequestCode.HEART_BEAT, {}, bad_requests.HEARTBEAT)
    return await client.call(broker.address, case.code, None, case.body, ext=dict(case.fields), timeout_s=5.0)


def expected_code(case: Case) -> int | None:
    for table in (STRICTER, OTHER_CODE):
        if case.name in table:
            return table[case.name]
    return bad_requests.recorded_codes()[case.name]


def names_the_fault(case: Case, remark: str) -> bool:
    """Returns whether the remark names the field as on the wire, its value, or the expected value."""
    if case.field == "body":
        return any(word in remark for word in ("body", "batch"))
    if bad_requests.recorded_codes()[f"{case.code} valid"] != ACCEPTED and "header field" not in remark:
        return bool(remark)  # the request would be refused without this fault, too
    wanted = {f"`{case.field}`", f"$.{case.field}", case.field if len(case.field) > 1 else "", case.value}
    wanted.add(LONG_NAMES.get(case.field, ""))
    return any(text and text in remark for text in wanted) or (
        # A blank name has nothing to quote.
        case.value == "" and any(word in remark for word in ("blank", "topic", "group"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", list(SerializeType), ids=lambda form: form.name)
def test_wrong_request_gets_apaches_code_a_telling_remark_and_stores_nothing(
    tmp_path: Path, form: SerializeType
) -> None:
    problems: list[str] = []

    async def everything() -> None:
        async with broker_with_messages(tmp_path, form) as (broker, client):
            for case in bad_requests.cases():
                if form is SerializeType.ROCKETMQ and not case.value and "=''" in case.what:
                    continue  # the binary form cannot tell an empty value from none
                before = broker.store.max_log_offset
                topics = set(broker.topics.configs)
                answer = await ask(client, broker, case)
                wanted = expected_code(case)
                remark = answer.remark or ""
                if answer.code != wanted:
                    problems.append(f"{case.name}: {answer.code} ({remark!r}), Apache {wanted}")
                if answer.code != ACCEPTED and case.field:
                    if answer.code in (REFUSED, INVALID) and not names_the_fault(case, remark):
                        problems.append(f"{case.name}: does not say what is wrong: {remark!r}")
                    if broker.store.max_log_offset != before or set(broker.topics.configs) != topics:
                        problems.append(f"{case.name}: refused, but something was stored")
                if "internal error" in remark:
                    problems.append(f"{case.name}: {remark}")

    run("uvloop", everything)
    assert not problems, "\n".join(problems)


def test_every_deviation_is_one() -> None:
    """The tables above list no case that Apache answers alike, and no unknown case."""
    recorded = bad_requests.recorded_codes()
    for table in (STRICTER, OTHER_CODE):
        for name, code in table.items():
            assert recorded[name] != code, name
    assert set(recorded) == {case.name for case in bad_requests.cases()}


@pytest.mark.slow
def test_refused_oneway_requests_are_silent_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def everything() -> None:
        async with broker_with_messages(tmp_path, SerializeType.JSON) as (broker, client):
            connection = await client.connection(broker.address)
            before = broker.store.max_log_offset
            for case in bad_requests.cases():
                if case.field and expected_code(case) not in (ACCEPTED, None):
                    connection.notify(case.code, None, case.body, ext=dict(case.fields))
            fields = {"topic": READ_TOPIC, "queueId": "0"}
            answer = await ok(client, broker, RequestCode.GET_MAX_OFFSET, fields)
            assert answer.ext_fields["offset"] == str(STORED_COUNT)
            assert broker.store.max_log_offset == before

    run("uvloop", everything)


@pytest.mark.slow
def test_one_bad_message_of_a_read_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    async def everything() -> None:
        async with broker_with_messages(tmp_path, SerializeType.ROCKETMQ) as (broker, client):
            connection = await client.connection(broker.address)
            good = {**SEND_V2, "i": "UNIQ_KEY\x017F0000014676C0DEE0B0000000000001\x02"}
            requests = [
                good,
                {**good, "e": "77"},
                good,
                {**good, "b": "no such topic"},
                {**good, "i": "x\x01" + "y" * 40_000 + "\x02"},
                good,
            ]
            futures = [
                connection.call(RequestCode.SEND_MESSAGE_V2, None, b"body", timeout_s=5.0, ext=fields)
                for fields in requests
            ]
            codes = [answer.code for answer in await asyncio.gather(*futures)]
            assert codes == [0, 29, 0, 29, 13, 0]
            assert broker.store.max_offset(SEND_TOPIC, 0) == 3

    run("uvloop", everything)


@pytest.mark.slow
def test_group_that_was_never_online_is_told_so(tmp_path: Path) -> None:
    async def everything() -> None:
        async with broker_with_messages(tmp_path, SerializeType.JSON) as (broker, client):
            fields = {**bad_requests.PULL, "consumerGroup": "nobody", "sysFlag": "0"}
            answer = await client.call(broker.address, RequestCode.PULL_MESSAGE, ext=fields)
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await ok(client, broker, RequestCode.HEART_BEAT, {}, bad_requests.HEARTBEAT)
            for changes, code in (
                ({"sysFlag": "0"}, ResponseCode.SUCCESS),
                ({"sysFlag": "0", "subVersion": "2"}, ResponseCode.SUBSCRIPTION_NOT_LATEST),
                ({"sysFlag": "0", "topic": SEND_TOPIC}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
                ({"sysFlag": "4", "expressionType": "SQL92", "subscription": "a >"}, None),
            ):
                fields = {**bad_requests.PULL, "consumerGroup": GROUP, **changes}
                answer = await client.call(broker.address, RequestCode.PULL_MESSAGE, ext=fields)
                # SQL is off unless enablePropertyFilter enables it.
                assert answer.code == (ResponseCode.SYSTEM_ERROR if code is None else code), answer.remark

    run("uvloop", everything)
