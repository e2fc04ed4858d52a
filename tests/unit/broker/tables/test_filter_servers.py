"""Filter servers register with a broker that allows them: 301."""

from __future__ import annotations

from tests.unit.broker.kit import Asker, peer

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.filter_servers import SILENCE_MS_MAX, FilterServers
from orbitmq.codes import ResponseCode
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.connection import Connection


class Kit:
    def __init__(self, limit: int) -> None:
        self.clock = ManualClock()
        self.changes: list[list[str]] = []
        events = BrokerEvents()
        events.announcement_changed.append(lambda: self.changes.append(self.servers.addresses()))
        self.servers: FilterServers = FilterServers(
            BrokerConfig(broker_name="b", filter_servers_max=limit),
            self.clock,
            events,
        )

    def register(self, address: str, connection: Connection | None = None) -> int:
        asker = Asker(self.servers.routes(), connection or peer())
        return asker.ask_raw(RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": address}).code


def test_none_may_register_by_default() -> None:
    kit = Kit(BrokerConfig().filter_servers_max)
    assert kit.register("127.0.0.1:1") == ResponseCode.NO_PERMISSION
    assert kit.servers.addresses() == []


def test_servers_are_listed_once_up_to_the_limit() -> None:
    kit = Kit(2)
    assert kit.register("127.0.0.1:2") == 0
    assert kit.register("127.0.0.1:1") == 0
    assert kit.register("127.0.0.1:2") == 0
    assert kit.register("127.0.0.1:3") == ResponseCode.NO_PERMISSION
    assert kit.changes == [["127.0.0.1:2"], ["127.0.0.1:1", "127.0.0.1:2"]]


def test_address_that_is_none_is_refused() -> None:
    kit = Kit(1)
    assert kit.register("nowhere") == ResponseCode.INVALID_PARAMETER
    assert kit.changes == []


def test_silent_server_is_forgotten() -> None:
    kit = Kit(2)
    kit.register("127.0.0.1:1")
    kit.clock.advance(SILENCE_MS_MAX)
    kit.register("127.0.0.1:2")
    kit.servers.expire()
    assert kit.servers.addresses() == ["127.0.0.1:1", "127.0.0.1:2"]
    kit.clock.advance(1)
    kit.servers.expire()
    assert kit.changes[-1] == ["127.0.0.1:2"]


def test_server_whose_connection_closes_is_forgotten_at_once() -> None:
    kit = Kit(2)
    first, second = peer(1), peer(2)
    kit.register("127.0.0.1:1", first)
    kit.register("127.0.0.1:2", second)
    kit.servers.connection_closed(first)
    assert kit.changes[-1] == ["127.0.0.1:2"]
