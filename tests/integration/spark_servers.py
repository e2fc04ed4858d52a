"""A name server and several brokers, each on its own loop, so that one can stop, hang or return alone."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from tests.apache.harness import remoting_call
from tests.support.ports import free_ports

from orbitmq.broker.broker import Broker
from orbitmq.cli.servers import read_broker_settings
from orbitmq.client import Message
from orbitmq.client.sync import LoopThread, Producer
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer

CREATE_TOPIC, DELETE_TOPIC, DELETE_TOPIC_IN_NAMESRV, GET_TOPIC_CONFIG = 17, 215, 216, 351


T = TypeVar("T", bound=Broker | NameServer)


class Server(Generic[T]):
    """One server on its own thread."""

    def __init__(self, server: T) -> None:
        self.server = server
        self._loop = LoopThread()
        self._hang = threading.Event()
        self.running = True
        self._loop.run(server.__aenter__())

    @property
    def address(self) -> str:
        return self.server.address

    def stop(self) -> None:
        if self.running:
            self.running = False
            self.resume()
            self._loop.run(self.server.__aexit__(None, None, None))
            self._loop.close()

    def pause(self) -> None:
        """Pauses the server as if the process were stopped: sockets stay open, and no request is answered."""
        self._hang.clear()

        async def hang() -> None:
            self._hang.wait(60)

        self._loop.submit(hang())

    def resume(self) -> None:
        self._hang.set()


class Servers:
    """``with Servers(tmp_path) as servers: servers.broker("broker-a")``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._port = free_ports()[0]
        self.names = self._name_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _name_server(self) -> Server[NameServer]:
        config = NameServerConfig(
            bind_address="127.0.0.1", listen_port=self._port, kv_config_path=str(self._directory / "kv.json")
        )
        server = Server(NameServer(config))
        self._stack.callback(server.stop)
        return server

    def restart_names(self) -> None:
        self.names = self._name_server()

    def broker(self, name: str, broker_id: int = 0, **more: str) -> Server[Broker]:
        settings = {
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            "listenPort": "0",
            "haListenPort": "0",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(self._directory / f"{name}-{broker_id}"),
            "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
            "slaveSyncInterval": "100",
            "haSendHeartbeatInterval": "100",
            **more,
        }
        read = read_broker_settings(None, [f"{key}={value}" for key, value in settings.items()])
        server = Server(Broker(read.config, read.store_config, more=read.more))
        self._stack.callback(server.stop)
        return server

    @staticmethod
    def create_topic(topic: str, *brokers: Server[Broker], queue_count: int = 1) -> None:
        for broker in brokers:
            fields = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queue_count),
                "writeQueueNums": str(queue_count),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            assert remoting_call(broker.address, CREATE_TOPIC, fields)[0] == 0

    def delete_topic(self, topic: str, *brokers: Server[Broker]) -> None:
        """Deletes a topic like the admin tool: at the brokers, then at the name server."""
        for broker in brokers:
            assert remoting_call(broker.address, DELETE_TOPIC, {"topic": topic})[0] == 0
        assert remoting_call(self.name_server, DELETE_TOPIC_IN_NAMESRV, {"topic": topic})[0] == 0

    def producer(self) -> Producer:
        """Returns a producer that already knows its route, to keep sending while name servers are down."""
        producer = Producer("servers", self.name_server)
        producer.start()
        self._stack.callback(producer.stop)
        return producer

    def send(self, topic: str, numbers: range, broker: str = "") -> None:
        """Sends one message each, to the queues in turn, or all to queue 0 of a broker."""
        with Producer("servers", self.name_server) as producer:
            self.send_with(producer, topic, numbers, broker)

    @staticmethod
    def send_with(producer: Producer, topic: str, numbers: range, broker: str = "") -> None:
        queue = None
        if broker:
            queues = producer.queues(topic)
            [queue] = [one for one in queues if one.broker_name == broker and one.queue_id == 0]
        for number in numbers:
            producer.send(Message(topic=topic, body=b"%d" % number), queue=queue, timeout_s=20)

    @staticmethod
    def until_copied(
        topic: str, master: Server[Broker], slave: Server[Broker], timeout_s: float = 20.0
    ) -> None:
        """Waits until the slave has everything its master has, and knows the topic."""
        deadline = time.monotonic() + timeout_s

        def copied() -> bool:
            if slave.server.store.max_log_offset < master.server.store.max_log_offset:
                return False
            return bool(remoting_call(slave.address, GET_TOPIC_CONFIG, {"topic": topic})[0] == 0)

        while not copied():
            assert time.monotonic() < deadline, "the slave does not follow"
            threading.Event().wait(0.02)
