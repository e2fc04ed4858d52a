"""Our proxy and Apache's as child processes, and the topics and groups of the gRPC tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.apache.artifacts import LATEST, driver_classes, jars
from tests.apache.process import free_ports, java_command
from tests.apache.servers import (
    PATIENCE_MS,
    Addressed,
    ApacheServer,
    accepts,
    address_of,
    create_topic,
    remoting_call,
)

__all__ = [
    "BROKER_OPTIONS",
    "ApacheProxy",
    "OurProxy",
    "create_consumer_group",
    "create_golden_names",
    "create_typed_topics",
]

START_TIMEOUT_S: Final = 60.0
UPDATE_GROUP: Final = 200
BROKER_OPTIONS: Final[dict[str, Any]] = {
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "enableMixedMessageType": True,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "waitTimeMillsInSendQueue": PATIENCE_MS,
}
_KINDS: Final = {
    "Normal": "NORMAL",
    "Fifo": "FIFO",
    "Delay": "DELAY",
    "Trans": "TRANSACTION",
    "Mixed": "MIXED",
    "Priority": "PRIORITY",
}


def create_typed_topics(
    namesrv: Addressed | str, broker: Addressed | str, prefix: str, suffix: str = ""
) -> None:
    """Creates one topic of each type: prefix, ``Normal`` and so on, suffix."""
    for name, kind in _KINDS.items():
        create_topic(
            namesrv, broker, f"{prefix}{name}{suffix}", queue_count=2, attributes=f"+message.type={kind}"
        )


def create_golden_names(namesrv: Addressed | str, broker: Addressed | str) -> None:
    """Creates the topics and groups of tests/golden/grpc.json."""
    create_typed_topics(namesrv, broker, "G", "C")
    create_topic(namesrv, broker, "GPlainC", queue_count=2)
    create_topic(namesrv, broker, "GROC", queue_count=2, perm=4)
    create_topic(namesrv, broker, "GWOC", queue_count=2, perm=2)
    create_consumer_group(broker, "GGC")
    create_consumer_group(broker, "GFC", consumeMessageOrderly=True)


def create_consumer_group(broker: Addressed | str, group: str, **settings: Any) -> None:
    """Creates a group; ``settings`` use Apache's names."""
    body = {
        "groupName": group,
        "consumeEnable": True,
        "consumeMessageOrderly": False,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        **settings,
    }
    code, _, answer = remoting_call(address_of(broker), UPDATE_GROUP, {}, json.dumps(body).encode())
    assert code == 0, answer


class OurProxy(ApacheServer):
    """``orbitmq proxy`` as a process, used like the harness's own servers."""

    def __init__(
        self,
        namesrv: Addressed | str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        **settings: str | int | bool,
    ) -> None:
        super().__init__("orbitmq-proxy", None)
        self.port = port or free_ports()[0]
        self.address = f"{host}:{self.port}"
        self._settings = {
            "grpcServerPort": self.port,
            "bindAddress": host,
            "namesrvAddr": address_of(namesrv),
            **settings,
        }

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        file = self.workdir / "proxy.json"
        file.write_text(json.dumps(self._settings))
        self._command = [sys.executable, "-m", "orbitmq.cli.main", "proxy", "-c", str(file)]
        super().start()
        self.wait_ready(lambda: accepts(self.address), timeout_s=timeout_s)


class ApacheProxy(ApacheServer):
    """Apache's own proxy in cluster mode. Its broker must be registered before it starts."""

    def __init__(
        self,
        namesrv: Addressed | str,
        *,
        jvm_args: tuple[str, ...] = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        **settings: str | int | bool,
    ) -> None:
        super().__init__("apache-proxy", None)
        self.port, remoting_port = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self._namesrv = address_of(namesrv)
        self._jvm_args = jvm_args
        self._settings = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": self.port,
            "remotingListenPort": remoting_port,
            "localServeAddr": "127.0.0.1",
            **settings,
        }

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        file = self.workdir / "rmq-proxy.json"
        file.write_text(json.dumps(self._settings))
        self._command = java_command(
            LATEST,
            self.workdir,
            "orbitmq.driver.Guard",
            "org.apache.rocketmq.proxy.ProxyStartup",
            "-pc",
            str(file),
            "-n",
            self._namesrv,
            jvm_args=self._jvm_args,
            classes=f"{driver_classes(LATEST)}:{apache_proxy_jars()}/*",
        )
        super().start()
        self.wait_ready(lambda: accepts(self.address), timeout_s=timeout_s)


def apache_proxy_jars() -> Path:
    return jars("proxy-5.5.0")
