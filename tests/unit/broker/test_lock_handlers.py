"""Queue locks by request: 41, 42."""

from __future__ import annotations

import json

import pytest
from tests.golden import data
from tests.unit.broker.kit import CONFIG, Asker

from orbitmq.broker.handlers.locks import LockHandlers
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.codes import SerializeType
from orbitmq.model.route import MessageQueue
from orbitmq.requests import Request, RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.bodies import LockBatchRequest, LockBatchResponse

QUEUES = [MessageQueue(broker_name="broker-a", queue_id=number, topic="T") for number in range(3)]


@pytest.fixture
def asker() -> Asker:
    return Asker(LockHandlers(QueueLocks(CONFIG, ManualClock())).routes())


def lock(asker: Asker, client: str, *numbers: int) -> list[int]:
    request = LockBatchRequest(
        client_id=client, consumer_group="g", mq_set=[QUEUES[number] for number in numbers]
    )
    answer = asker.ask(RequestCode.LOCK_BATCH_MQ, body=request.encode())
    assert answer.code == 0
    return [queue.queue_id for queue in LockBatchResponse.decode(answer.body).lock_ok_mq_set]


def test_two_clients_share_the_queues(asker: Asker) -> None:
    assert lock(asker, "a", 0, 1) == [0, 1]
    assert lock(asker, "b", 1, 2) == [2]
    request = LockBatchRequest(client_id="a", consumer_group="g", mq_set=[QUEUES[1]])
    assert asker.ask(RequestCode.UNLOCK_BATCH_MQ, body=request.encode()).code == 0
    assert lock(asker, "b", 1, 2) == [1, 2]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"consumerGroup": "g", "mqSet": []}, "clientId"),
        ({"clientId": "c", "mqSet": []}, "consumerGroup"),
        ({"clientId": "c", "consumerGroup": "g", "mqSet": [{"topic": "T"}]}, "brokerName"),
    ],
)
@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_what_is_missing_is_named(asker: Asker, code: Request, body: object, named: str) -> None:
    answer = asker.ask(code, body=json.dumps(body).encode())
    assert answer.code == 1
    assert named in (answer.remark or "")


@pytest.mark.parametrize("form", list(SerializeType))
def test_recorded_requests_get_the_recorded_answers(asker: Asker, form: SerializeType) -> None:
    compared = {41: 0, 42: 0}
    for exchange in data.frames():
        request = bytes.fromhex(exchange["request"]["hex"])
        if exchange["code"] not in compared or request[4] != form:
            continue
        answer = asker.dispatch(request)
        if "response" not in exchange:
            assert answer is None
            continue
        assert answer is not None
        recorded = exchange["response"]
        assert (answer.code, answer.ext_fields) == (
            recorded["header"]["code"],
            recorded["header"]["extFields"],
        )
        assert answer.body.decode() == recorded.get("bodyText", "")
        compared[exchange["code"]] += 1
    assert all(compared.values()), compared
