"""Message traces: which records of the trace topic belong to a message, and what is read from them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.admin.scripted import Scripted

from orbitmq.admin import trace
from orbitmq.admin.errors import AdminError
from orbitmq.admin.trace import Traces
from orbitmq.errors import NoMessage

OLD_PUB = "Pub 100 r shop T id tag key host 5 12 0 false"
PUB = "Pub 100 r shop T id tag key host 5 12 0 offset-id true"
SUB = "SubAfter req id 7 true key 0 200 billing"
OLD_SUB = "SubAfter req id 7 false key"


def traced(monkeypatch: pytest.MonkeyPatch, *records: str) -> Traces:
    async def by_key(_: object, query: Any) -> list[Any]:
        assert (query.topic, query.key) == ("RMQ_SYS_TRACE_TOPIC", "id")
        bodies = ["\x02".join(record.replace(" ", "\x01") for record in one.split("|")) for one in records]
        return [SimpleNamespace(body=body, born_host="192.0.2.1:5000") for body in bodies]

    monkeypatch.setattr(trace, "messages_by_key", by_key)
    return asyncio.run(trace.message_trace(Scripted(), "id"))


@pytest.mark.parametrize(("record", "success"), [(PUB, True), (OLD_PUB, False)])
def test_send_is_read_from_old_and_new_clients(
    monkeypatch: pytest.MonkeyPatch, record: str, success: bool
) -> None:
    found = traced(monkeypatch, record)
    [row] = found.produced
    assert (row.group, row.client_host, row.timestamp, row.cost_ms) == ("shop", "192.0.2.1", 100, 12)
    assert (row.success, found.consumed) == (success, [])


def test_delivery_without_a_group_comes_from_an_old_client(monkeypatch: pytest.MonkeyPatch) -> None:
    found = traced(monkeypatch, f"{SUB}|{OLD_SUB}")
    assert [(one.group, one.timestamp, one.success) for one in found.consumed] == [
        ("billing", 200, True),
        ("", 0, False),
    ]


def test_records_of_other_messages_and_other_kinds_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = traced(
        monkeypatch, PUB.replace(" id ", " other ") + "|" + SUB.replace(" id ", " other "), "SubBefore x"
    )
    assert (found.produced, found.consumed) == ([], [])


def test_message_without_a_trace_says_to_enable_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoMessage, match="enable tracing in the clients"):
        traced(monkeypatch)


def test_damaged_trace_is_an_error_of_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdminError, match="a trace of id cannot be read"):
        traced(monkeypatch, SUB.replace("200", "noon"))
