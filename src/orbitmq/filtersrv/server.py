"""A filter server: forwards consumers' pulls to the broker and filters the answers with a class (filtersrv in Apache
up to 4.2).

A consumer with a class filter finds this server in the route of its topic and pulls from it as if from a broker. The
pull is forwarded to the broker without a filter, and only the messages that the group's class selects are returned.
Offsets are the broker's, so nothing is lost if this server ends, because consumers can pull elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

import msgspec

from orbitmq.auth.signature import SIGNATURE, sign_fields
from orbitmq.codes import PullFlag, ResponseCode
from orbitmq.errors import BodyError, OrbitError, RemoteProtocolError, ServerError
from orbitmq.filtersrv.classes import FilterClasses
from orbitmq.filtersrv.config import FilterServerConfig
from orbitmq.filtersrv.sandbox import FilterFailed, FilterProcess
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.transport.client import RpcClient
from orbitmq.transport.router import Call, Reply, Route, Router
from orbitmq.transport.server import Listener, Server
from orbitmq.transport.tls import client_tls, server_tls
from orbitmq.wire.bodies import ConsumerConnection
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import GetConsumerConnectionListRequest
from orbitmq.wire.headers.consume import PullMessageRequest
from orbitmq.wire.headers.filtersrv import RegisterFilterServerRequest, RegisterMessageFilterClassRequest

__all__ = ["FilterServer"]

logger = logging.getLogger(__name__)

REGISTER_S: Final = 3.0
NAME_KEPT_S: Final = 5.0
"""How long the class name of a group is cached before the broker is queried again."""
PULL_EXTRA_S: Final = 10.0
_NAMES_MAX: Final = 10_000
_RECORD_BYTES_MIN: Final = 8


class FilterServer:
    """A filter server. Use it with ``async with``, which starts and stops it."""

    def __init__(self, config: FilterServerConfig) -> None:
        self.config = config
        self.classes = FilterClasses(config)
        tls = client_tls(config)
        self._rpc = RpcClient(tls=tls)
        own = config.credentials
        if own is not None:
            self._rpc.sign = lambda fields, body: sign_fields(fields, body, own.name, own.secret)
        self._passing = RpcClient(tls=tls)
        """For requests that carry a consumer's signature."""
        self._tasks = TaskOwner("filtersrv")
        self._names: dict[tuple[str, str], tuple[float, str]] = {}
        self._registered = False
        routes = [
            Route(RequestCode.PULL_MESSAGE, self.pull, PullMessageRequest),
            Route(
                RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
                self.register_class,
                RegisterMessageFilterClassRequest,
            ),
        ]
        self._server = Server(
            [Listener(config.bind_address, config.listen_port, Router(routes))], tls=server_tls(config)
        )

    @property
    def address(self) -> str:
        """The address that consumers receive, as ``host:port``."""
        return f"{self.config.public_host or self.config.bind_address}:{self._server.ports[0]}"

    async def start(self) -> None:
        await self._server.start()
        await self._register()
        self._tasks.start(every(REGISTER_S, self._register), "register")
        logger.info("filter server started address=%s broker=%s", self.address, self.config.broker_address)

    async def stop(self) -> None:
        await self._tasks.close()
        await self._server.stop(wait_s=2.0)
        await self.classes.close()
        await self._rpc.close()
        await self._passing.close()
        logger.info("filter server stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _register(self) -> None:
        """Register this server with the broker. A failure is only logged, because the registration is repeated
        periodically."""
        header = RegisterFilterServerRequest(filter_server_addr=self.address)
        try:
            answer = await self._rpc.call(
                self.config.broker_address, RequestCode.REGISTER_FILTER_SERVER, header
            )
            problem = "" if answer.code == ResponseCode.SUCCESS else f"{answer.remark} (code {answer.code})"
        except OrbitError as error:
            problem = str(error)
        if bool(problem) == self._registered:
            self._registered = not problem
            if problem:
                logger.warning("registration lost broker=%s error=%s", self.config.broker_address, problem)
            else:
                logger.info("registered broker=%s", self.config.broker_address)
        elif problem:
            logger.warning("not registered broker=%s error=%s", self.config.broker_address, problem)

    # -- requests --------------------------------------------------------------------------------------

    async def register_class(self, call: Call[RegisterMessageFilterClassRequest]) -> Reply:
        """Handle REGISTER_MESSAGE_FILTER_CLASS (302): accept an uploaded class."""
        header = call.header
        await self.classes.upload(
            header.topic, header.consumer_group, header.class_name, call.body, header.class_crc
        )
        return Reply()

    async def pull(self, call: Call[PullMessageRequest]) -> Reply:
        """Handle PULL_MESSAGE (11): forward the pull and return the messages that the class selects."""
        request = call.header
        process = await self._class_of(request.topic, request.consumer_group)
        try:
            answer = await self._ask_broker(request, call.frame)
        except OrbitError as error:
            raise ServerError(f"the broker of this filter server cannot be reached: {error}") from None
        if answer.code != ResponseCode.SUCCESS:
            return _passed_on(answer, answer.code, b"")
        records = _split(answer.body)
        try:
            selected = await process.select(records)
        except FilterFailed as error:
            raise ServerError(str(error)) from None
        body = b"".join(record for record, wanted in zip(records, selected, strict=True) if wanted)
        # Nothing was selected: the consumer continues immediately after the messages examined.
        return _passed_on(answer, ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY, body)

    async def _ask_broker(self, request: PullMessageRequest, frame: Frame) -> Frame:
        """Send the pull to the broker without the filter.

        A signed pull is forwarded unchanged, because its signature covers exactly these fields and the broker decides
        what that user may read. Heartbeats announce the subscription as a class filter.
        """
        timeout_s = max(0, min(request.suspend_timeout_millis, 3_600_000)) / 1000 + PULL_EXTRA_S
        address, code = self.config.broker_address, RequestCode.PULL_MESSAGE
        fields = frame.ext_fields
        if SIGNATURE in fields:
            return await self._passing.call(address, code, ext=dict(fields), timeout_s=timeout_s)
        forwarded = msgspec.structs.replace(
            request,
            sys_flag=(request.sys_flag & PullFlag.SUSPEND) | PullFlag.SUBSCRIPTION,
            subscription="*",
            expression_type=None,
            sub_version=0,
        )
        return await self._passing.call(address, code, forwarded, timeout_s=timeout_s)

    async def _class_of(self, topic: str, group: str) -> FilterProcess:
        uploaded = self.classes.uploaded(topic, group)
        if uploaded is not None:
            return uploaded
        return await self.classes.from_directory(topic, group, await self._class_name(topic, group))

    async def _class_name(self, topic: str, group: str) -> str:
        """Returns the class name that the group's heartbeats announce, as the text of a subscription in class filter
        mode."""
        now = asyncio.get_running_loop().time()
        known = self._names.get((topic, group))
        if known is not None and known[0] > now:
            return known[1]
        header = GetConsumerConnectionListRequest(consumer_group=group)
        try:
            answer = await self._rpc.call(
                self.config.broker_address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header
            )
            if answer.code != ResponseCode.SUCCESS:
                raise ServerError(f"group {group} is not known to the broker: {answer.remark}")
            subscription = ConsumerConnection.decode(answer.body).subscription_table.get(topic)
        except (BodyError, RemoteProtocolError) as error:
            raise ServerError(f"the subscriptions of group {group} cannot be read: {error}") from None
        if subscription is None or not subscription.class_filter_mode:
            raise ServerError(f"group {group} has no class filter for topic {topic}")
        if len(self._names) >= _NAMES_MAX:
            self._names.clear()
        self._names[topic, group] = (now + NAME_KEPT_S, subscription.sub_string)
        return subscription.sub_string


def _passed_on(answer: Frame, code: int, body: bytes) -> Reply:
    """Returns the reply for the consumer: the broker's answer and offsets with another code and body."""
    return Reply(code=code, remark=answer.remark, ext=dict(answer.ext_fields), body=body)


def _split(records: bytes) -> list[bytes]:
    """Returns the records of a pull, each of which starts with its size. Raises ``ServerError`` for malformed
    bytes."""
    parts: list[bytes] = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "big")
        if size < _RECORD_BYTES_MIN or at + size > len(records):
            raise ServerError("the broker sent an invalid message")
        parts.append(records[at : at + size])
        at += size
    return parts
