"""POP requests broken in every field: each is answered, the broker stays alive and its tables stay small."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.pop_kit import GROUP, TOPIC, PopClient, serving

from orbitmq.requests import BY_CODE, RequestCode

pytestmark = pytest.mark.slow

logger = logging.getLogger(__name__)

TEXTS: Final = (
    "",
    " ",
    "-1",
    "0",
    "1",
    "7",
    "33",
    "999",
    "2147483647",
    "2147483648",
    "-9223372036854775808",
    "9223372036854775807",
    "99999999999999999999999",
    "1_000",
    "٣",
    "abc",
    "true",
    "\x00",
    "a > ",
    "%RETRY%packers_Orders",
    "x" * 300,
    "0 0 0 0 0 broker-a 0 0",
    "0 1 2 999 0 broker-a 0 0",
    "9 9 9 9 9 9 9 9 9 9",
)
POP: Final = {
    "consumerGroup": GROUP,
    "topic": TOPIC,
    "queueId": "-1",
    "maxMsgNums": "3",
    "invisibleTime": "60",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
    "expType": "TAG",
    "exp": "*",
    "order": "false",
    "attemptId": "a",
}
ACK: Final = {
    "consumerGroup": GROUP,
    "topic": TOPIC,
    "queueId": "0",
    "extraInfo": "0 1 2 3 0 broker-a 0 0",
    "offset": "0",
}
NOTIFY: Final = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "pollTime": "0", "bornTime": "0"}
ENTRY: Final = {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 1, "pt": 1, "it": 2, "b": "AQ=="}
REQUESTS: Final = {
    RequestCode.POP_MESSAGE: POP,
    RequestCode.ACK_MESSAGE: ACK,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: {**ACK, "invisibleTime": "10", "suspend": "false"},
    RequestCode.NOTIFICATION: NOTIFY,
    RequestCode.POLLING_INFO: {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"},
    RequestCode.PEEK_MESSAGE: {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "3"},
    RequestCode.BATCH_ACK_MESSAGE: {},
    RequestCode.QUERY_ASSIGNMENT: {},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {},
    RequestCode.POP_ROLLBACK: {},
}
BODIES: Final = {
    RequestCode.BATCH_ACK_MESSAGE: {"brokerName": "broker-a", "acks": [ENTRY]},
    RequestCode.QUERY_ASSIGNMENT: {"topic": TOPIC, "consumerGroup": GROUP, "strategyName": "AVG"},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP"},
}
VALUES: Final[tuple[Any, ...]] = (
    None,
    "",
    "abc",
    -1,
    0,
    2**31,
    2**63 - 1,
    2**70,
    True,
    [],
    {},
    [[]],
    "////",
    "AAAAAAAAAAAA",
    1.5,
)


def mutated_fields(dice: random.Random, fields: dict[str, str]) -> dict[str, str]:
    changed = dict(fields)
    for name in dice.sample(sorted(fields), dice.randint(0, min(3, len(fields)))):
        if dice.random() < 0.3:
            del changed[name]
        elif name == "pollTime":
            changed[name] = dice.choice(("abc", "-5", "0", "60"))  # not for hours
        else:
            changed[name] = dice.choice(TEXTS)
    return changed


def mutated_body(dice: random.Random, code: int) -> bytes:
    body = BODIES.get(BY_CODE[code])
    if body is None:
        return dice.choice((b"", b"junk", b"\xff" * 9))
    kind = dice.random()
    if kind < 0.15:
        return dice.choice((b"", b"{}", b"null", b"[]", b"{" * 200, b"\x00", json.dumps(body).encode()[:-3]))
    copied = json.loads(json.dumps(body))
    target = copied["acks"][0] if "acks" in copied and kind < 0.8 else copied
    target[dice.choice([*target, "unknown"])] = dice.choice(VALUES)
    return json.dumps(copied).encode()


@pytest.mark.parametrize("count", [1_500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_broken_requests_are_answered_and_leave_nothing_behind(tmp_path: Path, count: int) -> None:
    dice = random.Random(17)

    async def ask(client: PopClient) -> int:
        code = dice.choice(sorted(REQUESTS))
        fields = mutated_fields(dice, REQUESTS[BY_CODE[code]])
        answer = await client.call(code, fields, mutated_body(dice, code), wait_s=15.0)
        assert "internal error" not in (answer.remark or ""), (code, fields, answer.remark)
        return answer.code

    async def scenario() -> None:
        async with serving(tmp_path, pop_checkpoints_max=500) as client:
            for number in range(200):
                await client.send(f"m{number}", number % 2)
            codes: set[int] = set()
            before = 0
            for part in range(count // 100):
                codes.update(await asyncio.gather(*(ask(client) for _ in range(100))))
                if part == 5:
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            logger.info("mutated POP requests: codes %s, memory grew by %d KiB", sorted(codes), grown_kib)
            assert grown_kib < 64 * 1024, grown_kib
            assert {0, 1, 13, 17, 208, 210} <= codes
            assert client.broker._pop.waiters.count == 0
            assert len(client.broker.pop.log.table) <= 500 + 200
            await client.send("alive")

    asyncio.run(scenario())
