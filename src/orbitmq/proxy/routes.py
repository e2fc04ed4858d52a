"""Answers to QueryRoute and QueryAssignment (Apache: RouteActivity)."""

from __future__ import annotations

import ipaddress
from typing import Final

from orbitmq.model.route import MASTER_ID, BrokerData, QueueData
from orbitmq.model.topic import is_readable, is_writable
from orbitmq.proxy.brokers import TopicFacts
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.messages import ANY_TYPE
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import OK, Refused

__all__ = ["RouteAnswers"]

_ANY_QUEUE: Final = -1
_ADDRESSES_MAX: Final = 64
_ECHOED_BYTES_MAX: Final = 4096
_KINDS: Final[dict[str, pb.MessageType]] = {
    "NORMAL": pb.NORMAL,
    "FIFO": pb.FIFO,
    "DELAY": pb.DELAY,
    "TRANSACTION": pb.TRANSACTION,
    "LITE": pb.LITE,
    "PRIORITY": pb.PRIORITY,
}


class RouteAnswers:
    """Builds routes with the endpoints that clients should use."""

    def __init__(self, config: ProxyConfig, *, local: bool) -> None:
        self._config = config
        self._local = local
        self.port = config.port
        """The listening port; the configured one until the server runs."""

    def listens_on(self, port: int) -> None:
        """Record the port on which the server listens."""
        self.port = port

    def route(self, facts: TopicFacts, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        _check_echoed(request)
        kinds = _accepted(facts.kind)
        queues: list[pb.MessageQueue] = []
        for data in facts.route.queue_datas:
            broker = facts.route.broker(data.broker_name)
            if broker is None:
                continue
            for broker_id, address in sorted(broker.broker_addrs.items()):
                named = pb.Broker(
                    name=data.broker_name,
                    id=broker_id,
                    endpoints=self._endpoints(address, request.endpoints),
                )
                queues += (
                    pb.MessageQueue(
                        topic=request.topic,
                        id=queue_id,
                        permission=permission,
                        broker=named,
                        accept_message_types=kinds,
                    )
                    for queue_id, permission in enumerate(_permissions(data))
                )
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    def assignment(
        self, facts: TopicFacts, request: pb.QueryAssignmentRequest, *, fifo: bool
    ) -> pb.QueryAssignmentResponse:
        """Returns an assignment of all readable queues. Every member of a group gets the same; the brokers distribute
        the messages.
        """
        _check_echoed(request)
        assignments: list[pb.Assignment] = []
        for data in facts.route.queue_datas:
            broker = facts.route.broker(data.broker_name)
            if broker is None or not is_readable(data.perm) or not data.read_queue_nums:
                continue
            address = _any_address(broker)
            named = pb.Broker(name=data.broker_name, endpoints=self._endpoints(address, request.endpoints))
            assignments += (
                pb.Assignment(
                    message_queue=pb.MessageQueue(
                        topic=request.topic, id=queue_id, permission=_permission(data.perm), broker=named
                    )
                )
                for queue_id in (range(data.read_queue_nums) if fifo else (_ANY_QUEUE,))
            )
        if not assignments:
            raise Refused(pb.FORBIDDEN, "no readable queue")
        return pb.QueryAssignmentResponse(status=OK, assignments=assignments)

    def _endpoints(self, broker_address: str, asked: pb.Endpoints) -> pb.Endpoints:
        """Returns the endpoints for clients.

        In front of a cluster, they are the address to which the client connected; in local mode, that of the broker.
        """
        if self._local:
            host = self._config.local_address or broker_address.rpartition(":")[0].strip("[]")
            return pb.Endpoints(scheme=_scheme(host), addresses=[pb.Address(host=host, port=self.port)])
        if not asked.addresses:
            return pb.Endpoints(scheme=pb.IPv4)
        keep_port = self._config.endpoint_port_from_request
        return pb.Endpoints(
            scheme=asked.scheme,
            addresses=[
                pb.Address(host=address.host, port=address.port if keep_port else self.port)
                for address in asked.addresses
            ],
        )


def _check_echoed(request: pb.QueryRouteRequest | pb.QueryAssignmentRequest) -> None:
    """Refuse too many addresses and long names, because the answer repeats them for each queue. Raises
    ``Refused``.
    """
    if len(request.endpoints.addresses) > _ADDRESSES_MAX:
        raise Refused(pb.ILLEGAL_ACCESS_POINT, f"more than {_ADDRESSES_MAX} addresses in endpoints")
    if request.endpoints.ByteSize() > _ECHOED_BYTES_MAX or request.topic.ByteSize() > _ECHOED_BYTES_MAX:
        raise Refused(pb.ILLEGAL_ACCESS_POINT, "endpoints or namespace are too long")


def _any_address(broker: BrokerData) -> str:
    return broker.broker_addrs.get(MASTER_ID) or next(iter(broker.broker_addrs.values()), "")


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv4 if ipaddress.ip_address(host).version == 4 else pb.IPv6
    except ValueError:
        return pb.DOMAIN_NAME


def _permission(perm: int) -> pb.Permission:
    if is_readable(perm):
        return pb.READ_WRITE if is_writable(perm) else pb.READ
    return pb.WRITE if is_writable(perm) else pb.NONE


def _permissions(data: QueueData) -> list[pb.Permission]:
    """Returns one permission per queue: first those that are only readable, then only writable, then both."""
    read = data.read_queue_nums if is_readable(data.perm) else 0
    write = data.write_queue_nums if is_writable(data.perm) else 0
    if not read and not write:
        return [pb.NONE] * max(1, data.write_queue_nums)
    both = min(read, write)
    return [pb.READ] * (read - both) + [pb.WRITE] * (write - both) + [pb.READ_WRITE] * both


def _accepted(kind: str) -> list[pb.MessageType]:
    if kind == "MIXED":
        return list(ANY_TYPE)
    return [_KINDS.get(kind, pb.MESSAGE_TYPE_UNSPECIFIED)]
