"""Spans of real clients, seen by OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode
from tests.conformance.waiting import until

from orbitmq.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendFailed,
)
from orbitmq.client.otel import OpenTelemetryHook
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow
FIRST = ConsumeFromWhere.FIRST_OFFSET


class Telemetry:
    """A tracer whose finished spans can be looked at."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.hook = OpenTelemetryHook(self._provider.get_tracer("test"))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


@pytest.mark.parametrize("kind", ["coroutine", "function", "orderly function"])
def test_span_of_the_handler_is_current_and_a_child_of_the_span_of_the_send(
    broker: RunningBroker, telemetry: Telemetry, kind: str
) -> None:
    topic = f"spans-{kind.replace(' ', '-')}"
    current: list[SpanContext] = []

    async def coroutine(message: ReceivedMessage) -> None:
        current.append(trace.get_current_span().get_span_context())

    def function(message: ReceivedMessage) -> None:
        current.append(trace.get_current_span().get_span_context())

    async def run() -> None:
        async with Producer("p", broker.name_server) as producer:
            producer.add_hook(telemetry.hook)
            result = await producer.send(Message(topic, "x"))
        consumer = PushConsumer(
            f"readers-{topic}", broker.name_server, from_where=FIRST, orderly=kind.startswith("orderly")
        )
        consumer.add_hook(telemetry.hook)
        consumer.subscribe(topic, handler=coroutine if kind == "coroutine" else function)
        async with consumer:
            await until(lambda: telemetry.spans(f"process {topic}"), "the span of the handler")
        [publish] = telemetry.spans(f"send {topic}")
        assert publish.attributes is not None
        assert publish.attributes["messaging.message.id"] == result.message_id

    asyncio.run(run())
    [publish], [process] = telemetry.spans(f"send {topic}"), telemetry.spans(f"process {topic}")
    assert process.parent is not None
    assert process.parent.span_id == context_of(publish).span_id
    assert context_of(process).trace_id == context_of(publish).trace_id
    assert current == [context_of(process)]
    assert process.status.status_code is StatusCode.UNSET


def test_batch_is_linked_with_every_send_and_failures_are_told(
    broker: RunningBroker, telemetry: Telemetry
) -> None:
    async def run() -> None:
        async with Producer("p", broker.name_server) as producer:
            producer.add_hook(telemetry.hook)
            queue = (await producer.queues("linked"))[0]
            for number in range(3):
                await producer.send(Message("linked", str(number)), queue=queue)
        consumer = PushConsumer("linked-readers", broker.name_server, from_where=FIRST)
        consumer.add_hook(telemetry.hook)

        @consumer.listen("linked", batch_size=10)
        async def handle(messages: list[ReceivedMessage]) -> None:
            raise RetryLater(delay_level=18)

        async with consumer:
            await until(lambda: telemetry.spans("process linked"), "the span of the handler")

    asyncio.run(run())
    sent = {context_of(span).span_id for span in telemetry.spans("send linked")}
    process = telemetry.spans("process linked")[0]
    assert len(sent) == 3
    assert {link.context.span_id for link in process.links} == sent
    assert process.status.status_code is StatusCode.UNSET, "the handler chose to try later"
    assert [event.name for event in process.events] == ["retry later"]
    attributes = {
        name.removeprefix("messaging."): value for name, value in (process.attributes or {}).items()
    }
    assert attributes == {
        "system": "rocketmq",
        "operation.name": "process",
        "operation.type": "process",
        "destination.name": "linked",
        "consumer.group.name": "linked-readers",
        "batch.message_count": 3,
    }


def test_failed_send_ends_its_span_with_the_error(telemetry: Telemetry) -> None:
    async def run() -> None:
        with run_broker() as broker:
            producer = Producer("p", broker.name_server, retries=0, send_timeout_s=0.5)
            producer.add_hook(telemetry.hook)
            await producer.start()
            await producer.send(Message("failing", "x"))
        with pytest.raises(SendFailed):
            await producer.send(Message("failing", "y"))
        await producer.stop()

    asyncio.run(run())
    codes = [span.status.status_code for span in telemetry.spans("send failing")]
    assert codes == [StatusCode.UNSET, StatusCode.ERROR]


def test_missing_package_is_named() -> None:
    script = "import sys; sys.modules['opentelemetry'] = None; import orbitmq.client.otel"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'orbitmq[otel]'" in ended.stderr
