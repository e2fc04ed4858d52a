"""Producers and consumers that speak gRPC to proxies, go to the next proxy when one fails, and keep count.

A message that is sent again has another body: two stored messages are never taken for one that was delivered twice.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from tests.proxy.golden import SERVICE, TelemetryStream, metadata
from tests.support.waiting import until

from orbitmq.proxy.handles import parse_handle
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

__all__ = ["Load"]

INVISIBLE_S: Final = 3
_BATCH: Final = 16
_OPTIONS: Final = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]


class _Client:
    """A client that uses one proxy at a time."""

    def __init__(self, endpoints: Sequence[str], client_id: str, settings: pb.Settings) -> None:
        self._endpoints = itertools.cycle(endpoints)
        self._client_id = client_id
        self._settings = settings
        self._channel: grpc.Channel | None = None
        self._stream: TelemetryStream | None = None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._channel is not None:
            self._channel.close()
        self._stream = self._channel = None

    def _open(self) -> grpc.Channel:
        """Raises ``grpc.RpcError``."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(next(self._endpoints), options=_OPTIONS)
            self._stream = TelemetryStream(self._channel, self._client_id)
            self._stream.send(pb.TelemetryCommand(settings=self._settings))
            assert self._stream.receive().status.code == pb.OK
        return self._channel

    def call(self, name: str, request: Any) -> Any:
        """The answer; None when the proxy failed."""
        answer = getattr(pb, f"{name}Response").FromString
        try:
            channel = self._open()
            call = channel.unary_unary(SERVICE + name, type(request).SerializeToString, answer)
            return call(request, metadata=metadata(self._client_id), timeout=10)
        except grpc.RpcError:
            self._failed()
            return None

    def receive(self, request: pb.ReceiveMessageRequest) -> list[pb.Message]:
        """What came; nothing of an answer that was cut off."""
        found: list[pb.Message] = []
        try:
            call = self._open().unary_stream(
                SERVICE + "ReceiveMessage",
                pb.ReceiveMessageRequest.SerializeToString,
                pb.ReceiveMessageResponse.FromString,
            )
            for answer in call(request, metadata=metadata(self._client_id), timeout=20):
                if answer.HasField("message"):
                    found.append(answer.message)
        except grpc.RpcError:
            self._failed()
            return []
        return found

    def _failed(self) -> None:
        self.close()
        time.sleep(0.02)  # until a proxy is there again


class Load:
    """Sends to and receives from one topic until stopped.

    Consumers begin with the first proxy, producers with the last.
    """

    def __init__(self, endpoints: Sequence[str], topic: str, group: str, broker_names: Sequence[str]) -> None:
        self._endpoints = list(endpoints)
        self._topic = topic
        self._group = group
        self._sending = True
        self._receiving = True
        self._lock = threading.Lock()
        self.acknowledged: set[str] = set()
        """Bodies a producer got OK for."""
        self.delivered: collections.Counter[str] = collections.Counter()
        self.again = 0
        """Deliveries that were not the first attempt."""
        self.done: dict[str, float] = {}
        """Bodies whose acknowledgement was answered with OK while the message was still hidden, and when that was."""
        self.after_done: list[str] = []
        """Delivered all the same. Nothing explains that."""
        self.failures: list[BaseException] = []
        self._producers = [threading.Thread(target=self._guard, args=(self._produce, i)) for i in range(2)]
        self._consumers = [
            threading.Thread(target=self._guard, args=(self._consume, name)) for name in broker_names
        ]

    @property
    def missing(self) -> set[str]:
        """Acknowledged to a producer and never delivered."""
        return self.acknowledged - self.delivered.keys()

    def all_done(self) -> bool:
        """Whether everything acknowledged to a producer was acknowledged by a consumer, or nobody works any more."""
        return self.acknowledged <= self.done.keys() or bool(self.failures)

    def done_since(self, moment: float) -> int:
        """How many acknowledgements were answered since that moment of the monotonic clock."""
        with self._lock:
            return sum(when >= moment for when in self.done.values())

    def start(self) -> None:
        for thread in self._producers + self._consumers:
            thread.start()

    def stop_sending(self) -> None:
        self._sending = False
        for thread in self._producers:
            thread.join(60)

    def stop(self) -> None:
        self.stop_sending()
        self._receiving = False
        for thread in self._consumers:
            thread.join(60)

    def wait_sent(self, count: int) -> None:
        """Until so many more were acknowledged to producers."""
        wanted = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= wanted or bool(self.failures), lambda: "sends stand still")

    def wait_delivered(self) -> None:
        until(lambda: not self.missing or bool(self.failures), lambda: f"lost: {sorted(self.missing)[:20]}")

    def _guard(self, work: Callable[[Any], None], argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:  # noqa: BLE001  # whatever ends a thread must fail the test
            self.failures.append(error)

    def _produce(self, number: int) -> None:
        settings = pb.Settings(client_type=pb.PRODUCER)
        settings.publishing.topics.add().name = self._topic
        client = _Client(self._endpoints[::-1], f"producer-{number}", settings)
        for sequence in itertools.count():
            if not self._sending:
                break
            body = f"{number}-{sequence}"
            message = pb.Message(topic=pb.Resource(name=self._topic), body=body.encode())
            message.system_properties.message_id = f"01{body}"
            answer = client.call("SendMessage", pb.SendMessageRequest(messages=[message]))
            if answer is not None and answer.status.code == pb.OK:
                self.acknowledged.add(body)
        client.close()

    def _consume(self, broker_name: str) -> None:
        settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER)
        settings.subscription.group.name = self._group
        settings.subscription.subscriptions.add().topic.name = self._topic
        client = _Client(self._endpoints, f"consumer-{broker_name}", settings)
        request = pb.ReceiveMessageRequest(batch_size=_BATCH)
        request.group.name, request.message_queue.topic.name = self._group, self._topic
        request.message_queue.broker.name = broker_name
        request.long_polling_timeout.seconds, request.invisible_duration.seconds = 1, INVISIBLE_S
        while self._receiving:
            for message in client.receive(request):
                if not self._take(client, message):
                    break  # the proxy failed: the rest is redelivered
        client.close()

    def _take(self, client: _Client, message: pb.Message) -> bool:
        body = message.body.decode()
        with self._lock:
            self.delivered[body] += 1
            self.again += message.system_properties.delivery_attempt > 1
            if body in self.done:
                self.after_done.append(body)
        system = message.system_properties
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = self._group, self._topic
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        answer = client.call("AckMessage", request)
        hidden_until_ms = parse_handle(system.receipt_handle).visible_ms
        if answer is not None and answer.status.code == pb.OK and time.time() * 1000 < hidden_until_ms:
            with self._lock:
                self.done[body] = time.monotonic()
        return answer is not None
