"""Runs the files of ``orbitmq init failover`` unchanged with a real etcd."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apache.etcd import Etcd, require_etcd
from tests.integration.config_files import started, wait_for_brokers, written

from orbitmq import Message
from orbitmq.sync import Producer

pytestmark = [pytest.mark.apache, pytest.mark.slow]


def test_files_of_failover_start_and_elect_a_master(tmp_path: Path) -> None:
    require_etcd()
    conf = tmp_path / "conf"
    name_server = written("failover", conf, 3)
    etcd = Etcd()
    etcd.start()
    try:
        for path in conf.glob("broker-*.conf"):
            path.write_text(path.read_text().replace("http://127.0.0.1:2379", etcd.url))
        with started(conf):
            wait_for_brokers(name_server, 3)
            with Producer("shop", name_server, retries=10) as producer:
                assert producer.send(Message("Orders", "1")).queue.broker_name == "broker-a"
    finally:
        etcd.close()
