"""Filters by class: a filter server next to the broker runs a Java class for the group (Apache: part of
MQClientInstance).

The class is installed by the operator of the filter server, or uploaded by the consumer as source. The topic's route
lists the filter servers, and pulls go to one of them instead of the broker.
"""

from __future__ import annotations

import logging
import random
import zlib
from dataclasses import dataclass

from orbitmq.client.net.instance import ClientInstance
from orbitmq.errors import ConnectionLostError, OrbitError
from orbitmq.requests import RequestCode
from orbitmq.wire.headers.filtersrv import RegisterMessageFilterClassRequest

__all__ = ["ClassFilter", "ClassUploads", "filter_server"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClassFilter:
    """Selects the messages for which ``match`` of this class returns true: ``subscribe("orders",
    ClassFilter("shop.Expensive"))``."""

    class_name: str
    source: str = ""
    """Uploaded if given; filter servers refuse uploads unless ``clientUploadFilterClassEnable=true``."""


def filter_server(instance: ClientInstance, topic: str, broker_address: str) -> str:
    """Returns the address of one of a broker's filter servers. Raises ``ConnectionLostError`` if the route lists
    none."""
    route = instance.book.route(topic)
    servers = [] if route is None else route.filter_server_table.get(broker_address, [])
    if not servers:
        raise ConnectionLostError(
            f"no filter server of broker {broker_address} is in the route of topic {topic}: start "
            "`orbitmq filtersrv`, and set filterServerNums on the broker"
        )
    return random.choice(servers)


class ClassUploads:
    """Uploads the classes of one consumer to filter servers."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._filters: dict[str, ClassFilter] = {}

    def add(self, topic: str, wanted: ClassFilter) -> None:
        if wanted.source:
            self._filters[topic] = wanted

    def remove(self, topic: str) -> None:
        self._filters.pop(topic, None)

    async def upload(self) -> None:
        """Upload each class to every filter server; a server that already has the class ignores it. Failures are
        logged."""
        for topic, wanted in list(self._filters.items()):
            route = self._instance.book.route(topic)
            body = wanted.source.encode()
            header = RegisterMessageFilterClassRequest(
                consumer_group=self._group,
                topic=topic,
                class_name=wanted.class_name,
                class_crc=zlib.crc32(body) & 0x7FFFFFFF,
            )
            for servers in [] if route is None else route.filter_server_table.values():
                for address in servers:
                    try:
                        await self._instance.ask(
                            address, RequestCode.REGISTER_MESSAGE_FILTER_CLASS, header, body
                        )
                    except OrbitError as error:
                        logger.warning(
                            "filter class not uploaded class=%s server=%s error=%s",
                            wanted.class_name,
                            address,
                            error,
                        )
