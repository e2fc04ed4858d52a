"""Requests with very many fields are refused before they are parsed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orbitmq.proxy.field_count import UNCOUNTED_BYTES, fields_max, has_more_fields
from orbitmq.proxy.http2.call import GrpcError, GrpcStatus
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.service import _parsed

MANY = 1 << 19


def nested(number: int, data: bytes) -> bytes:
    """Returns a field of that number with ``data`` as its message."""
    size, out = len(data), bytearray([number << 3 | 2])
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out) + bytes([size]) + data


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param(pb.AckMessageRequest, b"\x1a\x00" * MANY, id="entries"),
        pytest.param(pb.SendMessageRequest, b"\x0a\x00" * MANY, id="messages"),
        pytest.param(pb.SendMessageRequest, nested(1, b"\x12\x00" * MANY), id="properties"),
        pytest.param(pb.SendMessageRequest, nested(1, nested(3, b"\x12\x00" * MANY)), id="keys"),
        pytest.param(pb.SendMessageRequest, nested(1, b"\x12\x00" * MANY) + b"\x0a", id="broken end"),
        pytest.param(pb.QueryRouteRequest, b"\x0a\x00" * MANY, id="one field again and again"),
        pytest.param(pb.QueryRouteRequest, b"\x78\x00" * MANY, id="unknown fields"),
        pytest.param(pb.QueryRouteRequest, b"\x7b" * MANY, id="unknown groups"),
        pytest.param(pb.TelemetryCommand, nested(2, nested(5, b"\x0a\x00" * MANY)), id="settings"),
    ],
)
def test_request_with_more_fields_than_its_size_allows_is_not_parsed(kind: Any, data: bytes) -> None:
    class Unparsed:
        DESCRIPTOR = kind.DESCRIPTOR

        def ParseFromString(self, _data: bytes) -> None:  # noqa: N802
            raise AssertionError("it was parsed")

    with pytest.raises(GrpcError) as refused:
        _parsed(cast(Any, Unparsed), data)
    assert refused.value.status in (GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.INTERNAL)


def many_acks() -> pb.AckMessageRequest:
    request = pb.AckMessageRequest(group=pb.Resource(name="G"), topic=pb.Resource(name="T"))
    for number in range(2048):
        request.entries.add(
            message_id=f"01{number:032}", receipt_handle=f"0 1795056760001 60000 0 0 b 0 {number} 0"
        )
    return request


def large_batch() -> pb.SendMessageRequest:
    request = pb.SendMessageRequest()
    for number in range(1024):
        message = request.messages.add(topic=pb.Resource(name="T"), body=b"x" * 2000)
        message.system_properties.message_id = f"01{number:032}"
        message.system_properties.keys.extend(["one", "two"])
        message.user_properties.update({"colour": "red", "size": "large", "shop": "north"})
    return request


@pytest.mark.parametrize("request_", [many_acks(), large_batch()])
def test_large_requests_of_clients_are_parsed(request_: Any) -> None:
    data = request_.SerializeToString()
    assert len(data) > UNCOUNTED_BYTES
    assert _parsed(type(request_), data) == request_


def test_fields_are_counted_through_all_messages() -> None:
    request = pb.SendMessageRequest()
    message = request.messages.add(topic=pb.Resource(name="T"), body=b"\x0a\x00" * 50)
    message.system_properties.keys.extend(["k"] * 200)
    message.system_properties.born_timestamp.seconds = 2**40
    message.user_properties["a"] = "b"
    data = request.SerializeToString()
    # The message, its topic with a name, body, properties with keys and a time, a pair of name and value.
    count = 1 + 2 + 1 + 1 + 200 + 2 + 3
    assert has_more_fields(pb.SendMessageRequest.DESCRIPTOR, data, count - 1)
    assert not has_more_fields(pb.SendMessageRequest.DESCRIPTOR, data, count)


@pytest.mark.parametrize("end", [b"\x0a", b"\x0a\x05x", b"\x0d\x00", b"\x80" * 12, b"\x0a\x02\x0a\x01"])
def test_broken_request_is_told_from_a_large_one(end: bytes) -> None:
    with pytest.raises(IndexError):
        has_more_fields(pb.QueryRouteRequest.DESCRIPTOR, b"\x0a\x00" + end, 100)


def test_count_allowed_grows_with_the_size() -> None:
    assert fields_max(0) == 12_000
    assert fields_max(1 << 20) == 12_000 + 10_485
