"""The calls of the protocol, with their permissions and handlers (Apache: GrpcMessagingApplication)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from orbitmq.errors import OrbitError
from orbitmq.proxy.access import Access, Right
from orbitmq.proxy.acking import Acking
from orbitmq.proxy.brokers import Brokers
from orbitmq.proxy.checks import check_group, check_topic
from orbitmq.proxy.clients import Client, ClientKey, Clients, client_type_name, merged_settings
from orbitmq.proxy.commands import Commands
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.field_count import UNCOUNTED_BYTES, fields_max, has_more_fields
from orbitmq.proxy.http2.call import Call, GrpcError, GrpcStatus, Kind, Method
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.receiving import Receiving
from orbitmq.proxy.routes import RouteAnswers
from orbitmq.proxy.sending import Sending
from orbitmq.proxy.statuses import OK, Refused, refused_by
from orbitmq.proxy.transactions import Transactions
from orbitmq.runtime.clock import Clock

__all__ = ["Parts", "Service"]

logger = logging.getLogger(__name__)

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
Q = TypeVar("Q", bound=Message)
_CONSUMER_TYPES: Final = frozenset(
    {pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER}
)
_TOPICS_MAX: Final = 2000
"""Limit in bytes for one client's settings."""
_TRANSACTIONAL: Final = frozenset({"TRANSACTION", "MIXED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that serve the calls."""

    brokers: Brokers
    clients: Clients
    routes: RouteAnswers
    sending: Sending
    receiving: Receiving
    acking: Acking
    transactions: Transactions
    commands: Commands


class Service:
    """Dispatches calls to their handlers. ``methods`` returns them for the server."""

    def __init__(self, config: ProxyConfig, parts: Parts, *, access: Access | None, clock: Clock) -> None:
        self._config = config
        self._brokers = parts.brokers
        self._clients = parts.clients
        self._routes = parts.routes
        self._sending = parts.sending
        self._receiving = parts.receiving
        self._acking = parts.acking
        self._transactions = parts.transactions
        self._commands = parts.commands
        self._access = access
        self._clock = clock
        self.calls: dict[tuple[str, str], int] = {}
        """Number of calls, by name and result code."""

    def methods(self) -> list[Method]:
        return [
            self._unary("QueryRoute", pb.QueryRouteRequest, pb.QueryRouteResponse, self._query_route),
            self._unary("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse, self._heartbeat),
            self._unary(
                "QueryAssignment", pb.QueryAssignmentRequest, pb.QueryAssignmentResponse, self._assignment
            ),
            self._unary("AckMessage", pb.AckMessageRequest, pb.AckMessageResponse, self._ack),
            self._unary(
                "ForwardMessageToDeadLetterQueue",
                pb.ForwardMessageToDeadLetterQueueRequest,
                pb.ForwardMessageToDeadLetterQueueResponse,
                self._forward,
            ),
            self._unary(
                "EndTransaction", pb.EndTransactionRequest, pb.EndTransactionResponse, self._end_transaction
            ),
            self._unary(
                "NotifyClientTermination",
                pb.NotifyClientTerminationRequest,
                pb.NotifyClientTerminationResponse,
                self._termination,
            ),
            self._unary(
                "ChangeInvisibleDuration",
                pb.ChangeInvisibleDurationRequest,
                pb.ChangeInvisibleDurationResponse,
                self._change,
            ),
            self._unary("RecallMessage", pb.RecallMessageRequest, pb.RecallMessageResponse, self._recall),
            self._unary(
                "SyncLiteSubscription",
                pb.SyncLiteSubscriptionRequest,
                pb.SyncLiteSubscriptionResponse,
                self._sync_lite,
            ),
            Method(_SERVICE + "SendMessage", Kind.UNARY, self._start_send),
            Method(_SERVICE + "ReceiveMessage", Kind.SERVER_STREAM, self._receive),
            Method(_SERVICE + "Telemetry", Kind.BOTH_STREAM, self._telemetry),
        ]

    # -- shared by all calls ---------------------------------------------------------------------------

    def _unary(
        self,
        name: str,
        request_type: type[Q],
        response_type: type[Any],
        handler: Callable[[Call, Q], Awaitable[Message]],
    ) -> Method:
        async def run(call: Call, data: bytes) -> None:
            request = _parsed(request_type, data)
            try:
                response = await handler(call, request)
            except Refused as refused:
                response = response_type(status=refused.status)
            except OrbitError as error:
                response = response_type(status=refused_by(error).status)
            self._count(name, response.status.code)  # type: ignore[attr-defined]  # every answer has one
            call.answer(response.SerializeToString())

        return Method(_SERVICE + name, Kind.UNARY, run)

    def _count(self, name: str, code: int) -> None:
        key = (name, str(code))
        self.calls[key] = self.calls.get(key, 0) + 1

    def _client_id(self, call: Call) -> str:
        client_id = call.header("x-mq-client-id")
        if not client_id.strip():
            raise Refused(pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
        return client_id

    async def _allow(self, call: Call, *rights: Right) -> ClientKey:
        """Check that a call is permitted. Returns the key of its client. Raises ``Refused``."""
        client_id = self._client_id(call)
        if self._access is None:
            return ClientKey(client_id)
        return ClientKey(client_id, await self._access.check(call, rights))

    @property
    def _rights_version(self) -> int:
        return 0 if self._access is None else self._access.version

    # -- routes ----------------------------------------------------------------------------------------

    async def _query_route(self, call: Call, request: pb.QueryRouteRequest) -> Message:
        topic = request.topic.name
        await self._allow(call, Right.any_of_topic(topic))
        check_topic(topic)
        facts = await self._brokers.facts(topic)
        return self._routes.route(facts, request)

    async def _assignment(self, call: Call, request: pb.QueryAssignmentRequest) -> Message:
        topic, group = request.topic.name, request.group.name
        await self._allow(call, Right.sub_group(group), Right.sub_topic(topic))
        check_topic(topic)
        check_group(group)
        facts = await self._brokers.facts(topic)
        config = await self._brokers.group(group)
        fifo = config is not None and config.consume_message_orderly
        return self._routes.assignment(facts, request, fifo=fifo)

    # -- clients ---------------------------------------------------------------------------------------

    async def _heartbeat(self, call: Call, request: pb.HeartbeatRequest) -> Message:
        client = self._clients.known(await self._allow(call))
        if client.is_consumer:
            await self._allow(call, *_groups(client, request.group.name))
            check_group(request.group.name)
        else:  # brokers check back with it on these topics
            await self._allow(call, *(Right.pub_topic(topic) for topic in client.topics))
        self._clients.mark_seen(client)
        return pb.HeartbeatResponse(status=OK)

    async def _termination(self, call: Call, request: pb.NotifyClientTerminationRequest) -> Message:
        client = self._clients.known(await self._allow(call))
        if client.is_consumer:
            check_group(request.group.name or client.group)
            await self._allow(call, *_groups(client, request.group.name))
        stream = client.stream
        if self._access is None and stream is not None and stream.connection is not call.connection:
            # Without users, only this distinguishes a client from others that know its id.
            raise Refused(pb.FORBIDDEN, "the client is connected over another connection")
        self._clients.unregister(client.key)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def _telemetry(self, call: Call, _: bytes) -> None:
        key: ClientKey | None = None
        try:
            while (data := await call.receive()) is not None:
                command = _parsed(pb.TelemetryCommand, data)
                if not call.header("x-mq-client-id").strip():
                    refusal = Refused(pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
                    call.write(pb.TelemetryCommand(status=refusal.status).SerializeToString())
                    return
                key = await self._allow(call)
                kind = command.WhichOneof("command")
                if kind == "settings":
                    await self._settings(call, key, command.settings)
                elif kind is not None:
                    self._commands.answered(self._clients.find(key), command)
        except Refused as refused:
            invalid = 40_000 <= refused.code < 50_000
            status = GrpcStatus.INVALID_ARGUMENT if invalid else GrpcStatus.INTERNAL
            raise GrpcError(status, f"process client telemetryCommand failed. {refused.message}") from None
        except OrbitError as error:
            raise GrpcError(GrpcStatus.INTERNAL, f"process client telemetryCommand failed. {error}") from None
        finally:
            if key is not None:
                self._clients.stream_ended(key, call)

    async def _settings(self, call: Call, key: ClientKey, asked: pb.Settings) -> None:
        """Register a client by its settings and answer with the effective ones."""
        case = asked.WhichOneof("pub_sub")
        group = None
        if max(len(asked.publishing.topics), len(asked.subscription.subscriptions)) > _TOPICS_MAX:
            raise Refused(pb.BAD_REQUEST, f"more than {_TOPICS_MAX} topics in settings")
        if case == "publishing":
            topics = [check_topic(topic.name) for topic in asked.publishing.topics]
            await self._allow(call, *(Right.pub_topic(topic) for topic in topics))
            for topic in topics:
                await self._serve_transactions(topic)
        elif case == "subscription":
            name = check_group(asked.subscription.group.name)
            topics = [check_topic(entry.topic.name) for entry in asked.subscription.subscriptions]
            await self._allow(call, Right.sub_group(name), *(Right.sub_topic(topic) for topic in topics))
            if asked.client_type not in _CONSUMER_TYPES:
                kind = client_type_name(asked.client_type)
                raise Refused(pb.INTERNAL_SERVER_ERROR, f"Client type is not consumer, type: {kind}")
            group = await self._brokers.group(name)
        else:
            raise GrpcError(
                GrpcStatus.INVALID_ARGUMENT, "there is no publishing or subscription data in settings"
            )
        settings = merged_settings(self._config, asked, group)
        self._clients.register(key, settings, call)
        call.write(pb.TelemetryCommand(status=OK, settings=settings).SerializeToString())

    async def _serve_transactions(self, topic: str) -> None:
        try:
            facts = await self._brokers.facts(topic)
        except OrbitError:
            return  # a nonexistent topic is accepted
        if facts.kind in _TRANSACTIONAL:
            self._transactions.serve(topic)

    # -- messages --------------------------------------------------------------------------------------

    def _start_send(self, call: Call, data: bytes) -> Coroutine[Any, Any, None] | None:
        request = _parsed(pb.SendMessageRequest, data)
        try:
            self._client_id(call)
            if self._access is None and self._sending.start(call, request, self._count_send):
                return None
        except Refused as refused:
            self._answer_send(call, pb.SendMessageResponse(status=refused.status))
            return None
        except OrbitError as error:
            self._answer_send(call, pb.SendMessageResponse(status=refused_by(error).status))
            return None
        return self._send(call, request)

    async def _send(self, call: Call, request: pb.SendMessageRequest) -> None:
        try:
            # The other messages must have the same topic as the first; otherwise the call is refused.
            await self._allow(call, *(Right.pub_topic(one.topic.name) for one in request.messages[:1]))
            response = await self._sending.send(call, request)
        except Refused as refused:
            response = pb.SendMessageResponse(status=refused.status)
        except OrbitError as error:
            response = pb.SendMessageResponse(status=refused_by(error).status)
        self._answer_send(call, response)

    def _answer_send(self, call: Call, response: pb.SendMessageResponse) -> None:
        if response.status.code != pb.OK:
            self._count_send(response.status.code)
        call.answer(response.SerializeToString())

    def _count_send(self, code: int) -> None:
        self._count("SendMessage", code)

    async def _receive(self, call: Call, data: bytes) -> None:
        request = _parsed(pb.ReceiveMessageRequest, data)
        try:
            topic = request.message_queue.topic.name
            rights = Right.sub_group(request.group.name), Right.sub_topic(topic)
            version = self._rights_version
            key = await self._allow(call, *rights)
            client = await self._clients.wait_known(key)
            if client is None:
                client = await self._adopted(call, key, request)

            async def recheck() -> None:
                if self._rights_version != version:
                    await self._allow(call, *rights)

            await self._receiving.receive(call, request, client, recheck)
        except Refused as refused:
            self._refuse_receive(call, refused)
        except OrbitError as error:
            self._refuse_receive(call, refused_by(error))
        end = pb.ReceiveMessageResponse()
        now_ms = self._clock.now_ms()
        end.delivery_timestamp.seconds = now_ms // 1000
        end.delivery_timestamp.nanos = now_ms % 1000 * 1_000_000
        call.write(end.SerializeToString())

    async def _adopted(self, call: Call, key: ClientKey, request: pb.ReceiveMessageRequest) -> Client:
        """Returns a consumer registered without settings. Raises ``Refused``.

        Some clients (Python 5.1.2) do not resend their settings when they move to another proxy, and would stall for
        minutes. The group's settings are all that a receive needs.
        """
        asked = pb.Settings(client_type=pb.PUSH_CONSUMER if request.auto_renew else pb.SIMPLE_CONSUMER)
        asked.subscription.group.name = check_group(request.group.name)
        check_topic(request.message_queue.topic.name)
        settings = merged_settings(self._config, asked, await self._brokers.group(request.group.name))
        return self._clients.find(key) or self._clients.adopt(key, settings, call)

    def _refuse_receive(self, call: Call, refused: Refused) -> None:
        self._count("ReceiveMessage", refused.code)
        call.write(pb.ReceiveMessageResponse(status=refused.status).SerializeToString())

    async def _ack(self, call: Call, request: pb.AckMessageRequest) -> Message:
        key = await self._allow(
            call, Right.sub_group(request.group.name), Right.sub_topic(request.topic.name)
        )
        return await self._acking.ack(request, self._clients.find(key))

    async def _change(self, call: Call, request: pb.ChangeInvisibleDurationRequest) -> Message:
        key = await self._allow(
            call, Right.sub_group(request.group.name), Right.sub_topic(request.topic.name)
        )
        return await self._acking.change(request, self._clients.find(key))

    async def _forward(self, call: Call, request: pb.ForwardMessageToDeadLetterQueueRequest) -> Message:
        key = await self._allow(
            call, Right.sub_group(request.group.name), Right.sub_topic(request.topic.name)
        )
        return await self._acking.forward(request, self._clients.find(key))

    async def _end_transaction(self, call: Call, request: pb.EndTransactionRequest) -> Message:
        await self._allow(call, Right.pub_topic(request.topic.name))
        check_topic(request.topic.name)
        if not request.transaction_id.strip():
            raise Refused(pb.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        await self._transactions.end(request)
        return pb.EndTransactionResponse(status=OK)

    async def _recall(self, call: Call, request: pb.RecallMessageRequest) -> Message:
        await self._allow(call, Right.pub_topic(request.topic.name))
        return await self._sending.recall(request)

    async def _sync_lite(self, call: Call, request: pb.SyncLiteSubscriptionRequest) -> Message:
        topic, group = request.topic.name, request.group.name
        await self._allow(call, Right.sub_group(group), Right.sub_topic(topic))
        check_topic(topic)
        check_group(group)
        raise Refused(
            pb.ILLEGAL_TOPIC, f"lite group {group} is expected to bind topic null, but actual is {topic}"
        )


def _groups(client: Client, named: str) -> set[Right]:
    """Returns the rights required to act for a consumer: on its own group, and on the group named in the call."""
    return {Right.sub_group(group) for group in (client.group, named) if group}


def _parsed(kind: type[Q], data: bytes) -> Q:
    try:
        if len(data) > UNCOUNTED_BYTES and has_more_fields(kind.DESCRIPTOR, data, fields_max(len(data))):
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "the request has too many fields for its size")
        message = kind()
        message.ParseFromString(data)
    except (DecodeError, IndexError, ValueError):
        raise GrpcError(GrpcStatus.INTERNAL, "Invalid protobuf byte sequence") from None
    return message
