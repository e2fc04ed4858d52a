"""The mapping of broker failures to client statuses."""

from __future__ import annotations

import pytest

from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectionLostError, OrbitError, RequestTimeoutError, TopicNotFound, error_for_code
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused, refused_by, status, status_of_code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.SUCCESS, pb.OK),
        (ResponseCode.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, pb.NOT_IMPLEMENTED),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, pb.CONSUMER_GROUP_NOT_FOUND),
        (ResponseCode.LMQ_QUOTA_EXCEEDED, pb.LITE_TOPIC_QUOTA_EXCEEDED),
        (ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (ResponseCode.NO_PERMISSION, pb.INTERNAL_SERVER_ERROR),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, pb.INTERNAL_SERVER_ERROR),
        (ResponseCode.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
        (31_999, pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_answer_of_a_broker_has_the_code_apaches_proxy_gives(code: int, expected: pb.Code) -> None:
    found = status_of_code(int(code), "why")
    assert (found.code, found.message) == (expected, "why")
    if code != ResponseCode.SUCCESS:
        assert refused_by(error_for_code(int(code), "why")).code == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TopicNotFound("no such topic"), pb.TOPIC_NOT_FOUND),
        (RequestTimeoutError("too late"), pb.PROXY_TIMEOUT),
        (ConnectionLostError("gone"), pb.INTERNAL_SERVER_ERROR),
        (OrbitError("other"), pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_failed_call_has_the_code_apaches_proxy_gives(error: OrbitError, expected: pb.Code) -> None:
    refused = refused_by(error)
    assert refused.code == expected
    assert refused.message


def test_status_without_a_message_is_the_name_of_its_code() -> None:
    assert status(pb.FORBIDDEN).message == "FORBIDDEN"
    assert Refused(pb.FORBIDDEN, "no").status == pb.Status(code=pb.FORBIDDEN, message="no")
    assert status_of_code(0, None).message == "OK"
