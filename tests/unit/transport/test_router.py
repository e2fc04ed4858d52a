"""Dispatch: from a frame to a response, whatever the handler does."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import BrokerError, TopicNotFound
from orbitmq.requests import RequestCode, code_name
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import PARKED, Call, RawRoute, Reply, Route, Router, encode_reply
from orbitmq.wire.frame import Frame, FrameDecoder, encode_oneway, encode_request
from orbitmq.wire.header import Header, Int32


class TopicRequest(Header):
    topic: str
    queue_id: Int32


class TopicResponse(Header):
    queue_offset: int
    note: str | None = None


class FakePeer:
    """The parts of a connection that a handler may use."""

    remote_text = "127.0.0.1:1"

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)


FORMS = pytest.mark.parametrize("form", list(SerializeType))


def read(data: bytes | None) -> Frame:
    assert data is not None
    (frame,) = FrameDecoder().feed(data)
    return frame


def request(
    code: int = 17, ext: dict[str, str] | None = None, form: int = 0, *, oneway: bool = False
) -> Frame:
    encode = encode_oneway if oneway else encode_request
    return read(encode(code, 7, ext, b"", form))


def dispatch(router: Router, frame: Frame, peer: FakePeer | None = None) -> bytes | None:
    return router.dispatch(frame, cast(Connection, peer or FakePeer()))


def topic_route(handler: Any) -> Router:
    return Router([Route(17, handler, TopicRequest)])


@FORMS
def test_typed_handler_gets_its_header_and_answers_in_the_form_of_the_request(form: int) -> None:
    def handler(call: Call[TopicRequest]) -> Reply:
        assert (call.header.topic, call.header.queue_id) == ("T", 3)
        return Reply(header=TopicResponse(queue_offset=2**40), ext={"more": "1"}, remark="done", body=b"body")

    answer = read(dispatch(topic_route(handler), request(17, {"topic": "T", "queueId": "3"}, form)))
    assert (answer.code, answer.opaque, answer.is_response) == (ResponseCode.SUCCESS, 7, True)
    assert answer.ext_fields == {"queueOffset": str(2**40), "more": "1"}
    assert (answer.remark, answer.body, answer.serialize_type) == ("done", b"body", form)


@FORMS
@pytest.mark.parametrize(
    ("ext", "named"),
    [
        ({"queueId": "1"}, "topic"),
        ({"topic": "T"}, "queueId"),
        ({"topic": "T", "queueId": "one"}, "queueId"),
        ({"topic": "T", "queueId": str(2**31)}, "queueId"),
        (None, "topic"),
    ],
)
def test_bad_field_is_answered_with_a_remark_that_names_it(
    form: int, ext: dict[str, str] | None, named: str
) -> None:
    def handler(call: Call[TopicRequest]) -> Reply:
        raise AssertionError("must not be called")

    answer = read(dispatch(topic_route(handler), request(17, ext, form)))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert named in answer.remark
    assert "\n" not in answer.remark


@FORMS
def test_unknown_code_is_answered_as_not_supported(form: int) -> None:
    answer = read(dispatch(Router(()), request(4242, None, form)))
    assert answer.code == 3
    assert answer.remark is not None
    assert "4242" in answer.remark


def test_code_listed_as_unsupported_is_answered_with_its_reason() -> None:
    answer = read(dispatch(Router((), unsupported={50: "no ACL 1.0"}), request(50)))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark is not None
    assert "no ACL 1.0" in answer.remark


def test_refusal_is_answered_with_its_own_code() -> None:
    def handler(call: Call[Header]) -> Reply:
        raise TopicNotFound("topic[T] does not exist")

    answer = read(dispatch(Router([Route(17, handler)]), request()))
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[T] does not exist")


def test_refusal_may_carry_a_code_of_its_own() -> None:
    def handler(call: Call[Header]) -> Reply:
        raise BrokerError("odd", code=9999)

    assert read(dispatch(Router([Route(17, handler)]), request())).code == 9999


def test_refusal_whose_remark_is_no_utf8_is_still_answered() -> None:
    def handler(call: Call[Header]) -> Reply:
        raise TopicNotFound("file \udcff")

    assert read(dispatch(Router([Route(17, handler)]), request())).remark == "file ?"


def test_internal_error_is_one_line_to_the_peer_and_one_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler(call: Call[Header]) -> Reply:
        raise ValueError("secret\nsecond line")

    answer = read(dispatch(Router([Route(17, handler)]), request()))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "internal error: ValueError"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "code=17 opaque=7 peer=127.0.0.1:1" in record.getMessage()


def test_handler_that_returns_nonsense_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    router = Router([Route(17, cast(Any, lambda call: "nonsense"))])
    assert read(dispatch(router, request())).code == ResponseCode.SYSTEM_ERROR
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "route",
    [
        Route(17, lambda call: Reply()),
        Route(17, cast(Any, lambda call: 1 // 0)),
        Route(17, lambda call: Reply(), TopicRequest),
        Route(18, lambda call: Reply()),
        RawRoute(17, lambda frame, peer: b"answer"),
    ],
    ids=["reply", "internal error", "bad field", "unknown code", "raw"],
)
def test_oneway_request_is_never_answered(route: Route | RawRoute) -> None:
    assert dispatch(Router([route]), request(oneway=True)) is None


def test_parked_request_is_answered_later_by_its_call() -> None:
    parked: list[Call[Header]] = []

    def handler(call: Call[Header]) -> Any:
        parked.append(call)
        return PARKED

    peer = FakePeer()
    assert dispatch(Router([Route(17, handler)]), request(), peer) is None
    parked[0].reply(Reply(remark="late"))
    assert read(peer.sent[0]).remark == "late"


def test_parked_oneway_request_is_not_answered_later_either() -> None:
    peer = FakePeer()
    call = Call(Header(), request(oneway=True), cast(Connection, peer))
    call.reply(Reply())
    assert peer.sent == []


def test_router_refuses_a_code_that_is_routed_twice() -> None:
    with pytest.raises(ValueError, match="17 is routed twice"):
        Router([Route(17, lambda call: Reply()), RawRoute(17, lambda frame, peer: None)])
    with pytest.raises(ValueError, match="17 is routed twice"):
        Router([Route(17, lambda call: Reply())], unsupported={17: "no"})


def test_reply_leaves_out_fields_that_are_absent() -> None:
    answer = read(encode_reply(request(), Reply(header=TopicResponse(queue_offset=1))))
    assert answer.ext_fields == {"queueOffset": "1"}


def test_code_name_of_a_known_and_of_an_unknown_code() -> None:
    assert code_name(RequestCode.SEND_MESSAGE) == "SEND_MESSAGE"
    assert code_name(4242) == "4242"


def test_sends_are_dispatched_one_by_one_where_a_guard_checks_requests() -> None:
    def accept(_sends: object, _connection: object) -> bool:
        raise AssertionError

    assert Router([], sends=accept).sends is accept
    assert Router([], guard=lambda frame, peer: None, sends=accept).sends is None
