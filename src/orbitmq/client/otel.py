"""OpenTelemetry spans around sends and handlers, joined through message properties.

Needs the package ``opentelemetry-api`` (extra ``otel``). ``producer.add_hook(telemetry)`` and
``consumer.add_hook(telemetry)`` with ``telemetry = OpenTelemetryHook()``.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from orbitmq.client.handlers import ConsumeContext
from orbitmq.client.sender import SendContext
from orbitmq.errors import ConfigError

__all__ = ["OpenTelemetryHook"]

_SYSTEM = "rocketmq"


class OpenTelemetryHook:
    """A hook of producers and of consumers. The span of a handler is a child of the span of the send.

    ``api`` is what the hook needs of OpenTelemetry; without it the installed package is used.
    """

    def __init__(self, tracer: Any = None, api: OpenTelemetryApi | None = None) -> None:
        self._api = api or OpenTelemetryApi.installed()
        self._tracer = tracer or self._api.tracer("orbitmq")

    def before_send(self, context: SendContext) -> None:
        topic = context.messages[0].topic
        span = self._tracer.start_span(
            f"{topic} publish",
            kind=self._api.producer_kind,
            attributes={
                "messaging.system": _SYSTEM,
                "messaging.operation": "publish",
                "messaging.destination.name": topic,
                "messaging.rocketmq.client_group": context.group,
                "messaging.batch.message_count": len(context.messages),
            },
        )
        context.extra["span"] = span
        for message in context.messages:
            self._api.inject(message.properties, self._api.with_span(span))

    def after_send(self, context: SendContext) -> None:
        span = context.extra.pop("span", None)
        if span is None:
            return
        if context.result is not None:
            span.set_attribute("messaging.message.id", context.result.message_id)
        if context.error is not None:
            span.record_exception(context.error)
            span.set_status(self._api.error_status(str(context.error)))
        span.end()

    def before_consume(self, context: ConsumeContext) -> None:
        message = context.messages[0]
        span = self._tracer.start_span(
            f"{message.topic} process",
            context=self._api.extract(message.properties),
            kind=self._api.consumer_kind,
            attributes={
                "messaging.system": _SYSTEM,
                "messaging.operation": "process",
                "messaging.destination.name": message.topic,
                "messaging.message.id": message.message_id,
                "messaging.rocketmq.client_group": context.group,
                "messaging.batch.message_count": len(context.messages),
            },
        )
        context.extra["span"] = span
        context.extra["token"] = self._api.attach(self._api.with_span(span))

    def after_consume(self, context: ConsumeContext) -> None:
        span = context.extra.pop("span", None)
        if span is None:
            return
        self._api.detach(context.extra.pop("token"))
        if context.error is not None:
            span.record_exception(context.error)
        if not context.success:
            span.set_status(self._api.error_status(context.status))
        span.end()


class OpenTelemetryApi:
    """The dozen names of OpenTelemetry this module uses."""

    def __init__(
        self,
        *,
        tracer: Callable[[str], Any],
        inject: Callable[[MutableMapping[str, str], Any], None],
        extract: Callable[[MutableMapping[str, str]], Any],
        scope: tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], None]],
        kinds: tuple[Any, Any],
        error_status: Callable[[str], Any],
    ) -> None:
        self.tracer = tracer
        self.inject = inject
        self.extract = extract
        self.with_span, self.attach, self.detach = scope
        self.producer_kind, self.consumer_kind = kinds
        self.error_status = error_status

    @classmethod
    def installed(cls) -> OpenTelemetryApi:
        """From the package. Raises ``ConfigError`` when it is not installed."""
        import importlib

        try:
            trace = importlib.import_module("opentelemetry.trace")
            context = importlib.import_module("opentelemetry.context")
            propagate = importlib.import_module("opentelemetry.propagate")
        except ImportError:
            raise ConfigError("OpenTelemetry is not installed: pip install 'orbitmq[otel]'") from None
        return cls(
            tracer=trace.get_tracer,
            inject=lambda carrier, ctx: propagate.inject(carrier, context=ctx),
            extract=propagate.extract,
            scope=(trace.set_span_in_context, context.attach, context.detach),
            kinds=(trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER),
            error_status=lambda text: trace.Status(trace.StatusCode.ERROR, text),
        )
