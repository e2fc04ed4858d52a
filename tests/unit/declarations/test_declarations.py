"""Every request is declared once, and every server serves the requests declared for it or gives the reason
why not.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from scripts.build_docs import requests_page
from tests.unit.broker.kit import FakeConnection

from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import User
from orbitmq.auth.stored import BrokerFacts
from orbitmq.auth.table import AuthTable
from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.cli.admin import AREAS
from orbitmq.codes import ResponseCode
from orbitmq.errors import NoPermission
from orbitmq.requests import BY_CODE, Request, RequestCode, Server, UnservedRequest, code_name, refusals
from orbitmq.store.config import StoreConfig
from orbitmq.transport.connection import Connection
from orbitmq.wire.frame import Frame, FrameDecoder


def config() -> BrokerConfig:
    return BrokerConfig(public_host="127.0.0.1", bind_host="127.0.0.1", listen_port=0)


def test_a_declaration_is_its_code() -> None:
    request = RequestCode.UPDATE_CONSUMER_OFFSET
    assert (request, request.name, f"{request}") == (15, "UPDATE_CONSUMER_OFFSET", "15")
    assert BY_CODE[15] is request
    assert {15: "found"}[request] == "found"


def test_reasons_are_sentences_for_people() -> None:
    for request in BY_CODE.values():
        for server in Server:
            reason = request.refusal(server)
            assert not reason or (len(reason) > 20 and not reason.endswith(".")), request.name


def test_a_request_that_nobody_serves_has_a_reason() -> None:
    assert [one.name for one in BY_CODE.values() if not one.served_by and not one.unless] == []


def test_the_reason_names_who_serves_it() -> None:
    assert RequestCode.REGISTER_BROKER.refusal(Server.BROKER) == "this is for a name server, not for a broker"
    assert (
        RequestCode.SEND_MESSAGE.refusal(Server.NAME_SERVER) == "this is for a broker, not for a name server"
    )
    assert "clients" in RequestCode.CHECK_TRANSACTION_STATE.refusal(Server.BROKER)


def test_admin_commands_exist_and_each_belongs_to_a_request() -> None:
    named = {command for request in BY_CODE.values() for command in request.admin}
    assert named == {command for commands in AREAS.values() for command in commands}


class Fake:
    PING = Request(990)


def test_a_broker_with_an_unserved_and_unexplained_request_refuses_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Broker(config(), StoreConfig(root=str(tmp_path / "store"))):
            raise AssertionError("it started")

    monkeypatch.setitem(BY_CODE, 990, Fake.PING)
    with pytest.raises(UnservedRequest, match=r"PING \(990\) has neither a handler nor a reason in a broker"):
        asyncio.run(run())


def test_a_handler_of_a_request_declared_for_another_server_is_refused() -> None:
    with pytest.raises(UnservedRequest, match="REGISTER_BROKER"):
        refusals(Server.BROKER, {RequestCode.REGISTER_BROKER})


def test_a_new_declaration_is_seen_wherever_requests_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "a test declares this"
    monkeypatch.setitem(BY_CODE, 990, declared := Request(990, unless=reason))
    monkeypatch.setattr(declared, "name", "PING")

    async def refusal() -> str | None:
        async with Broker(config(), StoreConfig(root=str(tmp_path / "store"))) as broker:
            connection = cast(Connection, FakeConnection(1))
            answer = broker.main_router.dispatch(Frame(990, 1), connection)
        assert answer is not None
        [decoded] = FrameDecoder().feed(answer)
        assert decoded.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return decoded.remark

    assert reason in (asyncio.run(refusal()) or "")
    assert f"| 990 | `PING` |  | {reason} |" in requests_page()
    assert code_name(990) == "PING"
    control = AccessControl(AuthTable(), BrokerFacts("C"))
    with pytest.raises(NoPermission, match="990 is not in the table of rights"):
        control.authorize(User("someone", "secret"), 990, {}, b"", "127.0.0.1")
