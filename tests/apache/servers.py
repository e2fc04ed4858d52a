"""Apache's own name server and broker as context managers."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from tests.apache.process import SMALL_JVM, ChildProcess, free_ports, java_command, wait_until

__all__ = [
    "PATIENCE_MS",
    "Addressed",
    "ApacheBroker",
    "ApacheNamesrv",
    "address_of",
    "cluster_info",
    "create_group",
    "create_topic",
    "remoting_call",
    "wait_known",
]

START_TIMEOUT_S: Final = 60.0
PATIENCE_MS: Final = 10_000
"""For `waitTimeMillsInSendQueue`: after 200 ms Apache's broker refuses a send, which a busy machine is enough for."""
UPDATE_AND_CREATE_TOPIC: Final = 17
GET_ROUTE: Final = 105
GET_BROKER_CLUSTER_INFO: Final = 106
GET_CONSUMER_CONNECTIONS: Final = 203
GET_PRODUCER_CONNECTIONS: Final = 204
READ_AND_WRITE: Final = 6
LANGUAGE: Final = "PYTHON"
VERSION_CODE: Final = 497

_opaque = itertools.count(1)


def remoting_call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    version: int = VERSION_CODE,
    timeout_s: float = 3.0,
) -> tuple[int, dict[str, str], bytes]:
    """Sends one request over a new connection and returns (response code, fields, body). Deliberately independent of
    the code under test. `version` is the client release it claims. Raises OSError when there is no answer.
    """
    host, _, port = address.rpartition(":")
    header = {"code": code, "language": LANGUAGE, "version": version, "opaque": next(_opaque), "flag": 0}
    encoded = json.dumps(header | {"extFields": dict(fields or {})}).encode()
    frame = struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(frame)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    header_bytes = struct.unpack_from(">i", answer)[0] & 0xFFFFFF
    parsed = json.loads(answer[4 : 4 + header_bytes])
    return int(parsed["code"]), dict(parsed.get("extFields") or {}), answer[4 + header_bytes :]


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (piece := connection.recv(count - len(data))):
            raise ConnectionError("closed in the middle of an answer")
        data += piece
    return data


class Addressed(Protocol):
    """Anything clients can connect to: Apache's servers here, ours in other tests."""

    @property
    def address(self) -> str: ...


class ApacheServer(ChildProcess):
    """Shared by name server and broker: started by `with`, in a directory that is removed with them."""

    def __init__(self, name: str, workdir: Path | None) -> None:
        self._removed_at_close = workdir is None
        super().__init__(name, [], workdir or Path(tempfile.mkdtemp(prefix=f"orbitmq-{name}-")))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the server, and removes the directory unless the caller named it. Call `stop()` first where a clean
        store matters.
        """
        self.kill()
        if self._removed_at_close:
            shutil.rmtree(self.workdir, ignore_errors=True)


class ApacheNamesrv(ApacheServer):
    """A real name server. `stop()`, `kill()` and a second `start()` keep the port."""

    def __init__(
        self,
        version: str,
        port: int = 0,
        *,
        workdir: Path | None = None,
        jvm_args: Sequence[str] = SMALL_JVM,
        properties: Mapping[str, str] | None = None,
        **conf: str | int | bool,
    ) -> None:
        super().__init__(f"namesrv-{version}", workdir)
        self.version = version
        self.port = port or free_ports()[0]
        self.address = f"127.0.0.1:{self.port}"
        self._jvm_args = jvm_args
        self._properties = server_properties(properties)
        self._conf = {
            "listenPort": self.port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.workdir / "namesrv" / "kvConfig.json"),
            "configStorePath": str(self.workdir / "namesrv" / "namesrv.properties"),
            **conf,
        }

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and waits until it answers requests."""
        config = self.workdir / "namesrv.conf"
        write_properties(config, self._conf)
        self._command = java_command(
            self.version,
            self.workdir,
            "orbitmq.driver.Guard",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "-c",
            str(config),
            jvm_args=self._jvm_args,
            properties=self._properties,
        )
        super().start()
        self.wait_ready(lambda: cluster_info(self.address) is not None, timeout_s=timeout_s)


class ApacheBroker(ApacheServer):
    """A real broker. Keyword arguments are Apache's own option names: `ApacheBroker("5.5.0", namesrv,
    brokerRole="SLAVE", brokerId=1)`. A `store_dir` given by the caller is kept when the broker is closed.
    """

    def __init__(
        self,
        version: str,
        namesrv: Addressed | str,
        store_dir: Path | None = None,
        *,
        workdir: Path | None = None,
        jvm_args: Sequence[str] = SMALL_JVM,
        properties: Mapping[str, str] | None = None,
        **conf: str | int | bool,
    ) -> None:
        super().__init__(f"broker-{version}", workdir)
        self.version = version
        self.namesrv_address = address_of(namesrv)
        self.store_dir = store_dir if store_dir is not None else self.workdir / "store"
        # The broker also listens on port - 2, and on a separate port for its slaves.
        port, _, ha_port = free_ports(-2, 1)
        self._jvm_args = jvm_args
        self._properties = server_properties(properties)
        self.conf: dict[str, str | int | bool] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": port,
            "haListenPort": ha_port,
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": str(self.store_dir),
            "storePathCommitLog": str(self.store_dir / "commitlog"),
            "diskMaxUsedSpaceRatio": 95,
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            "maxHashSlotNum": 50_000,
            "maxIndexNum": 200_000,
            # 5.5.0 spins on one core from its start until the first of these intervals is over (default 10 s).
            "transactionMetricFlushInterval": 500,
            # An idle 5.5.0 broker spends a fifth of a core on this at the default of one second.
            "timerFlushIntervalMs": 5_000,
            # With a short interval a 5.5.0 broker spins on one core after its first transaction: it asks for a
            # wake-up one interval after its last write, which has long passed. Write each outcome immediately.
            "transactionOpBatchInterval": 3_600_000,
            "transactionOpMsgMaxSize": 1,
            # The default refuses sends that waited for 200 ms, as they do on a busy machine.
            "waitTimeMillsInSendQueue": PATIENCE_MS,
            **conf,
        }
        self.port = int(self.conf["listenPort"])
        self.ha_port = int(self.conf["haListenPort"])
        self.broker_name = str(self.conf["brokerName"])
        self.address = f"127.0.0.1:{self.port}"
        self.ha_address = f"127.0.0.1:{self.ha_port}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the broker and waits until the port is open and it is registered with every name server."""
        config = self.workdir / "broker.conf"
        write_properties(config, self.conf)
        self._command = java_command(
            self.version,
            self.workdir,
            "orbitmq.driver.Guard",
            "org.apache.rocketmq.broker.BrokerStartup",
            "-c",
            str(config),
            jvm_args=self._jvm_args,
            properties=self._properties,
        )
        super().start()
        self.wait_ready(self._serves, timeout_s=timeout_s)

    def _serves(self) -> bool:
        if not accepts(self.address):
            return False
        quoted = f'"{self.address}"'
        return all(quoted in (cluster_info(server) or "") for server in self.namesrv_address.split(";"))


def create_topic(
    namesrv: Addressed | str,
    broker: Addressed | str,
    topic: str,
    *,
    queue_count: int = 4,
    perm: int = READ_AND_WRITE,
    order: bool = False,
    attributes: str = "",
    timeout_s: float = 10.0,
) -> None:
    """Creates a topic and waits until the name server routes it. A consumer started before its topic exists finds it
    only at its next route round, 30 s later.
    """
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": str(order).lower(),
        "attributes": attributes,
    }
    code, _, body = remoting_call(address_of(broker), UPDATE_AND_CREATE_TOPIC, fields)
    if code != 0:
        raise RuntimeError(f"topic {topic} refused with code {code}: {body!r}")

    routed = functools.partial(_accepted, address_of(namesrv), GET_ROUTE, {"topic": topic})
    wait_until(routed, timeout_s=timeout_s, what=f"a route of {topic}")


def create_group(namesrv: Addressed | str, broker: Addressed | str, group: str) -> None:
    """Creates the retry topic of a consumer group before its first member. Otherwise a Java consumer learns of that
    topic only at its next route and rebalance rounds, and a first retry arrives up to 50 s late.
    """
    create_topic(namesrv, broker, f"%RETRY%{group}", queue_count=1)


def wait_known(
    broker: Addressed | str, *, producer_group: str = "", consumer_group: str = "", timeout_s: float = 10.0
) -> None:
    """Waits until a heartbeat has registered a member of these groups with the broker. Clients start without waiting
    for that, and replies and transaction checks go only to a registered producer.
    """
    groups = {
        (GET_PRODUCER_CONNECTIONS, "producerGroup"): producer_group,
        (GET_CONSUMER_CONNECTIONS, "consumerGroup"): consumer_group,
    }
    for (code, field), group in groups.items():
        if group:
            known = functools.partial(_accepted, address_of(broker), code, {field: group})
            wait_until(known, timeout_s=timeout_s, what=f"{group} at the broker")


def _accepted(address: str, code: int, fields: Mapping[str, str]) -> bool:
    return remoting_call(address, code, fields)[0] == 0


def address_of(server: Addressed | str) -> str:
    return server if isinstance(server, str) else server.address


def server_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the system properties of a server, the caller's last. TLS is off unless those mention it: a server in
    the default mode creates a certificate at each start, which takes up to ten seconds of CPU.
    """
    given = dict(properties or {})
    settings = {"rocketmq.broker.diskSpaceWarningLevelRatio": "0.99"}
    if not any(name.startswith("tls.") for name in given):
        settings["tls.server.mode"] = "disabled"
    return settings | given


def accepts(address: str) -> bool:
    """Returns whether a server listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1.0):
            return True
    except OSError:
        return False


def cluster_info(namesrv_address: str) -> str | None:
    """Returns the name server's view of the cluster as sent (not strict JSON: broker ids are unquoted), or None when
    it does not answer.
    """
    try:
        code, _, body = remoting_call(namesrv_address, GET_BROKER_CLUSTER_INFO)
    except OSError:
        return None
    return body.decode() if code == 0 else None


def write_properties(path: Path, conf: Mapping[str, str | int | bool]) -> None:
    """Writes Java's properties format, with backslashes and non-ASCII escaped as it requires."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, value in conf.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        escaped = "".join(c if " " <= c <= "~" and c != "\\" else f"\\u{ord(c):04x}" for c in text)
        lines.append(f"{name}={escaped}\n")
    path.write_text("".join(lines))
