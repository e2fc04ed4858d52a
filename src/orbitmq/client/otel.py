"""Creates OpenTelemetry spans around sends and handlers, linked through message properties.

Names and attributes follow the semantic conventions for messaging 1.38. Needs the package ``opentelemetry-api``
(extra ``otel``). Create ``telemetry = OpenTelemetryHook()`` and add it with ``producer.add_hook(telemetry)`` and
``consumer.add_hook(telemetry)``.
"""

from __future__ import annotations

from orbitmq.client.consume.handlers import ConsumeContext
from orbitmq.client.errors import RetryLater
from orbitmq.client.produce.sender import SendContext
from orbitmq.errors import ConfigError

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
except ImportError:
    raise ConfigError("OpenTelemetry is not installed: pip install 'orbitmq[otel]'") from None

__all__ = ["OpenTelemetryHook"]

_SYSTEM = "rocketmq"


class OpenTelemetryHook:
    """Creates spans for producers and consumers.

    The span of a handler is a child of the send's span. If a handler gets several messages, its span is linked with
    the spans of all of them. While the handler runs, its span is the current one.
    """

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("orbitmq")

    def before_send(self, context: SendContext) -> None:
        topic = context.messages[0].topic
        span = self._tracer.start_span(
            f"send {topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes=_attributes("send", topic, len(context.messages)),
        )
        context.extra["span"] = span
        for message in context.messages:
            propagate.inject(message.properties, context=trace.set_span_in_context(span))

    def after_send(self, context: SendContext) -> None:
        span: trace.Span | None = context.extra.pop("span", None)
        if span is None:
            return
        if context.result is not None:
            span.set_attribute("messaging.message.id", context.result.message_id)
        if context.error is not None:
            _fail(span, context.error, str(context.error))
        span.end()

    def before_consume(self, context: ConsumeContext) -> None:
        messages = context.messages
        parents = [propagate.extract(message.properties) for message in messages]
        alone = len(messages) == 1
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            context=parents[0] if alone else None,
            links=[] if alone else _links(parents),
            kind=trace.SpanKind.CONSUMER,
            attributes={
                **_attributes("process", messages[0].topic, len(messages)),
                "messaging.consumer.group.name": context.group,
                **({"messaging.message.id": messages[0].message_id} if alone else {}),
            },
        )
        context.extra["span"] = span
        context.extra["token"] = otel_context.attach(trace.set_span_in_context(span))

    def after_consume(self, context: ConsumeContext) -> None:
        span: trace.Span | None = context.extra.pop("span", None)
        if span is None:
            return
        otel_context.detach(context.extra.pop("token"))
        if isinstance(context.error, RetryLater):
            span.add_event(
                "retry later", {"reason": str(context.error)}
            )  # chosen by the handler: not a failure
        elif not context.success:
            _fail(span, context.error, context.status)
        span.end()


def _attributes(operation: str, topic: str, count: int) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    return attributes


def _fail(span: trace.Span, error: BaseException | None, text: str) -> None:
    if error is not None:
        span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__ if error is not None else text)
    span.set_status(trace.Status(trace.StatusCode.ERROR, text))


def _links(parents: list[otel_context.Context]) -> list[trace.Link]:
    spans = [trace.get_current_span(parent).get_span_context() for parent in parents]
    return [trace.Link(span) for span in spans if span.is_valid]
