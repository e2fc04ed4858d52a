from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from tests.conformance.waiting import until
from tests.unit.client.messages import received

from orbitmq.client.handlers import ConsumeContext
from orbitmq.client.message import Message, SendResult, SendStatus
from orbitmq.client.otel import OpenTelemetryApi, OpenTelemetryHook
from orbitmq.client.sender import SendContext
from orbitmq.model.route import MessageQueue


class Span:
    """A span that remembers what was said of it."""

    def __init__(self, name: str, parent: object, attributes: dict[str, object]) -> None:
        self.name, self.parent, self.attributes = name, parent, attributes
        self.ended = False
        self.status: Any = None
        self.errors: list[BaseException] = []

    def set_attribute(self, name: str, value: object) -> None:
        self.attributes[name] = value

    def record_exception(self, error: BaseException) -> None:
        self.errors.append(error)

    def set_status(self, status: Any) -> None:
        self.status = status

    def end(self) -> None:
        self.ended = True


class Telemetry:
    """The few functions of OpenTelemetry the hook needs."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.current: list[object] = []

    def start_span(
        self, name: str, *, kind: str, attributes: dict[str, object], context: object = None
    ) -> Span:
        span = Span(name, context, attributes | {"kind": kind})
        self.spans.append(span)
        return span

    def inject(self, carrier: MutableMapping[str, str], context: object) -> None:
        carrier["traceparent"] = f"span-{self.spans.index(context)}"  # type: ignore[arg-type]

    def api(self) -> OpenTelemetryApi:
        return OpenTelemetryApi(
            tracer=lambda name: self,
            inject=self.inject,
            extract=lambda carrier: carrier.get("traceparent"),
            scope=(lambda span: span, self.attach, self.detach),
            kinds=("producer", "consumer"),
            error_status=lambda text: f"error: {text}",
        )

    def attach(self, span: object) -> int:
        self.current.append(span)
        return len(self.current)

    def detach(self, token: int) -> None:
        assert len(self.current) == token
        self.current.pop()


def test_span_of_the_handler_is_a_child_of_the_span_of_the_send() -> None:
    telemetry = Telemetry()
    hook = OpenTelemetryHook(api=telemetry.api())
    message = Message("T", "x", properties={})
    sent = SendContext("g", [message])
    hook.before_send(sent)
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    sent.result = SendResult(SendStatus.OK, "ID", queue, 0, "")
    hook.after_send(sent)
    got = ConsumeContext("readers", [received(0, traceparent=message.properties["traceparent"])])
    hook.before_consume(got)
    assert telemetry.current == [telemetry.spans[1]], "the handler runs inside the span"
    got.success = False
    got.error = ValueError("no")
    got.status = "EXCEPTION"
    hook.after_consume(got)
    publish, process = telemetry.spans
    assert (publish.name, process.name, process.parent) == ("T publish", "T process", "span-0")
    assert publish.attributes["messaging.message.id"] == "ID"
    assert (publish.ended, process.ended, process.status) == (True, True, "error: EXCEPTION")
    assert telemetry.current == []


@pytest.mark.slow
def test_hooks_of_real_clients_carry_the_context() -> None:
    from orbitmq.client import ConsumeFromWhere, Producer, PushConsumer
    from orbitmq.testing import run_broker

    telemetry = Telemetry()
    hook = OpenTelemetryHook(api=telemetry.api())

    async def run(name_server: str) -> None:
        async with Producer("p", name_server) as producer:
            producer.add_hook(hook)
            await producer.send(Message("T", "x"))
        consumer = PushConsumer("c", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.add_hook(hook)
        consumer.subscribe("T", handler=lambda message: None)
        consumer.on_message(lambda message: None)
        async with consumer:
            await until(
                lambda: len(telemetry.spans) == 2 and telemetry.spans[1].ended, "the span of the handler"
            )

    with run_broker() as broker:
        asyncio.run(run(broker.name_server))
    assert [span.parent for span in telemetry.spans] == [None, "span-0"]
