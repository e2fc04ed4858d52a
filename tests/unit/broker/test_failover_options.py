"""Options of failover, the gate of acknowledgements under a lease, the greeting, and a start without the extra."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest

from orbitmq.broker.config import FAILOVER_ID_MAX, BrokerConfig, BrokerRole
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.failover.etcd import EtcdClient
from orbitmq.broker.replication.stream import ReportReader, encode_greeting, encode_report
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConfigError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode


def test_every_member_starts_as_a_slave_whatever_role_its_file_names() -> None:
    for role in BrokerRole:
        config = BrokerConfig(failover_enabled=True, broker_id=3, role=role)
        assert (config.role, config.broker_id) == (BrokerRole.SLAVE, 3)
        assert config.with_ports(1, 2).broker_id == 3


@pytest.mark.parametrize(
    "options",
    [{}, {"broker_id": FAILOVER_ID_MAX + 1}, {"broker_id": 1, "fixed_ha_address": "10.0.0.1:10912"}],
)
def test_options_that_do_not_go_with_failover_stop_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="enableFailover"):
        BrokerConfig(failover_enabled=True, **options)


@pytest.mark.parametrize("endpoints", [[], ["ftp://host:1"]])
def test_endpoints_nobody_can_ask_stop_the_start(endpoints: list[str]) -> None:
    with pytest.raises(ConfigError, match="etcdEndpoints"):
        EtcdClient(endpoints, timeout_s=1)


def test_certificates_that_cannot_be_read_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="certificates"):
        EtcdClient(["https://127.0.0.1:1"], timeout_s=1, ca_file="/nowhere/ca.pem")


class Store:
    flush_mode = FlushMode.ASYNC


def test_send_is_acknowledged_only_while_the_lease_holds() -> None:
    gate = AckGate(cast(MessageStore, Store()))
    codes: list[int] = []
    assert gate.immediate
    for held in (True, False):
        gate.is_master = iter([held]).__next__
        gate.wait(1, codes.append)
    assert codes == [ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT]


@pytest.mark.parametrize("step", [1, 3, 8, 100])
def test_greeting_is_read_in_any_pieces_and_only_at_the_beginning(step: int) -> None:
    data = encode_greeting(7, 2**32 - 1) + encode_report(5) + encode_report(9)
    reader = ReportReader()
    ends = [reader.feed(data[start : start + step]) for start in range(0, len(data), step)]
    assert reader.greeting == (7, 2**32 - 1)
    assert [end for end in ends if end is not None][-1] == 9
    plain = ReportReader()
    plain.feed(encode_report(5))
    assert plain.greeting is None


@pytest.mark.slow
def test_broker_without_failover_needs_no_package_for_it() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import orbitmq.broker.broker, orbitmq.broker.failover.etcd as etcd\n"
        "try: etcd.EtcdClient(['http://127.0.0.1:1'], timeout_s=1)\n"
        "except etcd.ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'orbitmq[failover]'" in done.stdout
