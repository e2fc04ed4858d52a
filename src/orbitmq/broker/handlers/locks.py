"""Queue locks of orderly consumers: requests 41 and 42 (Apache: the lock part of AdminBrokerProcessor)."""

from __future__ import annotations

from typing import Final

from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.errors import InvalidParameter, ServerError
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.bodies import LockBatchRequest, LockBatchResponse
from orbitmq.wire.headers import LockBatchMqRequest, UnlockBatchMqRequest

__all__ = ["LockHandlers"]

_NAME_CHARS_MAX: Final = 1024
"""Longest name of a group, client, topic or broker; Apache's are below 256."""

_QUEUES_MAX: Final = 10_000
"""Maximum number of queues in one request."""


class LockHandlers:
    """Locks and unlocks queues in batches."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.LOCK_BATCH_MQ, self.lock, LockBatchMqRequest),
            Route(RequestCode.UNLOCK_BATCH_MQ, self.unlock, UnlockBatchMqRequest),
        ]

    def lock(self, call: Call[LockBatchMqRequest]) -> Reply:
        group, client_id, request = _read(call.body)
        for name in (
            group,
            client_id,
            *(name for one in request.mq_set for name in (one.topic, one.broker_name)),
        ):
            if len(name) > _NAME_CHARS_MAX:
                raise InvalidParameter(f"a name has {len(name):,} characters; the limit is {_NAME_CHARS_MAX}")
        held = self._locks.lock(group, client_id, request.mq_set)
        return Reply(body=LockBatchResponse(lock_ok_mq_set=held).encode())

    def unlock(self, call: Call[UnlockBatchMqRequest]) -> Reply:
        group, client_id, request = _read(call.body)
        self._locks.unlock(group, client_id, request.mq_set)
        return Reply()


def _read(body: bytes) -> tuple[str, str, LockBatchRequest]:
    request = LockBatchRequest.decode(body)
    if not request.consumer_group or not request.client_id:
        missing = "clientId" if request.consumer_group else "consumerGroup"
        raise ServerError(f"the body has no {missing}")
    if len(request.mq_set) > _QUEUES_MAX:
        raise InvalidParameter(f"the body has {len(request.mq_set):,} queues; the limit is {_QUEUES_MAX:,}")
    return request.consumer_group, request.client_id, request
