"""Plays the recorded calls of Apache's proxy (tests/golden/grpc.json) to another one and compares the answers.

Names, ids and order are those of the recording. What differs from run to run is replaced on both sides: times, ports,
receipt and recall handles, offsets, hosts. Of a status the code counts; its text is only informative.
"""

from __future__ import annotations

import base64
import datetime
import json
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import json_format

from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

__all__ = ["GOLDEN", "QUICK", "SERVICE", "GoldenPlayer", "TelemetryStream", "differences", "metadata"]

GOLDEN: Final = json.loads((Path(__file__).parent.parent / "golden" / "grpc.json").read_text())
TIMER_SLACK_S: Final = 2.5
"""Apache delivers a delayed message up to a second late, and more on a busy machine."""
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
RECORDED_PORT: Final = 36081
SCALE: Final = 5
"""Long polls, but one, are so much shorter than the recorded ones."""
QUICK: Final[dict[str, Any]] = {"grpcClientConsumerMinLongPollingTimeoutMillis": 5000 // SCALE}
_TIME: Final = re.compile(r"20\d\d-\d\d-\d\dT[\d:.]+Z")
_HANDLE: Final = re.compile(r"\d+ \d+ \d+ \d+ [012] \S+ -?\d+ \d+( \d+)?")
_UNCERTAIN: Final = {
    "offset",
    "queue_offset",
    "store_host",
    "recall_handle",
    "tookMs",
    "queue_id",
    "TRANSACTION_CHECK_TIMES",
}
"""Depend on what else a broker stored, in which turn queues were used, and whether it asked about a transaction
before the end came."""


class TelemetryStream:
    """A telemetry stream of a client: commands out, commands in."""

    def __init__(self, channel: grpc.Channel, client_id: str) -> None:
        self._out: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
        call = channel.stream_stream(
            SERVICE + "Telemetry", pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString
        )
        self._answers = call(self._commands(), metadata=metadata(client_id), timeout=120)

    def _commands(self) -> Iterator[pb.TelemetryCommand]:
        while (command := self._out.get()) is not None:
            yield command

    def send(self, command: pb.TelemetryCommand) -> None:
        self._out.put(command)

    def receive(self) -> pb.TelemetryCommand:
        command = next(self._answers)
        assert isinstance(command, pb.TelemetryCommand)
        return command

    def close(self) -> None:
        self._out.put(None)


def metadata(client_id: str | None) -> list[tuple[str, str]]:
    if client_id is None:
        return []
    return [("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"), ("x-mq-client-id", client_id)]


class GoldenPlayer:
    """Sends recorded requests to one proxy whose settings are ``QUICK``."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.port = int(address.rpartition(":")[2])
        self._shift_ms: int | None = None
        self._due_s = 0.0
        """When the last message that is delayed by seconds comes."""
        self._replaced: dict[str, str] = {}
        self.streams: dict[str, TelemetryStream] = {}

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()
        self.channel.close()

    def play(self, exchange: dict[str, Any]) -> Any:
        """The answer in the form of the recording: an object, a list, or ``{"grpcError": code}``."""
        rpc = exchange["rpc"]
        request_type = getattr(pb, "TelemetryCommand" if rpc == "Telemetry" else f"{rpc}Request", None)
        if request_type is None:  # not in our description: any bytes do
            return self._unknown(rpc)
        request = json_format.ParseDict(self._adapted(_whole_request(exchange)), request_type())
        client_id = _client_of(exchange)
        try:
            if rpc == "Telemetry":
                return self._telemetry(client_id or "", request)
            return self._call(rpc, request, client_id, exchange)
        except grpc.RpcError as error:
            return {"grpcError": error.code().name}

    def _unknown(self, rpc: str) -> Any:
        call = self.channel.unary_unary(SERVICE + rpc, lambda data: data, lambda data: data)
        try:
            call(b"", timeout=5)
        except grpc.RpcError as error:
            return {"grpcError": error.code().name}
        return {}

    def _call(self, rpc: str, request: Any, client_id: str | None, exchange: dict[str, Any]) -> Any:
        given = metadata(client_id)
        if "only client id" in exchange["label"]:
            given = given[-1:]
        if rpc == "ReceiveMessage":
            stream = self.channel.unary_stream(
                SERVICE + rpc,
                pb.ReceiveMessageRequest.SerializeToString,
                pb.ReceiveMessageResponse.FromString,
            )
            timeout_s = 3 / SCALE if "deadline 3 s" in exchange["label"] else 30
            if "long polling 5 s" not in exchange["label"]:  # the message delayed by 5 s is received after it
                asked_s = request.long_polling_timeout.ToTimedelta() / SCALE
                request.long_polling_timeout.FromTimedelta(asked_s)
            if exchange["label"] == "receive the delayed message":
                time.sleep(max(0.0, self._due_s + TIMER_SLACK_S - time.time()))
            answers = [_as_dict(part) for part in stream(request, metadata=given, timeout=timeout_s)]
            self._learn(exchange["response"], answers)
            return answers
        if rpc == "SendMessage":
            now_s = time.time()
            due = [
                one.system_properties.delivery_timestamp.ToMilliseconds() / 1000 for one in request.messages
            ]
            self._due_s = max([self._due_s, *(at_s for at_s in due if now_s < at_s < now_s + 30)])
        call = self.channel.unary_unary(
            SERVICE + rpc, type(request).SerializeToString, getattr(pb, f"{rpc}Response").FromString
        )
        answer = _as_dict(call(request, metadata=given, timeout=10))
        self._learn(exchange["response"], answer)
        return answer

    def _telemetry(self, client_id: str, command: pb.TelemetryCommand) -> Any:
        stream = TelemetryStream(self.channel, client_id)
        stream.send(command)
        try:
            answer = _as_dict(stream.receive())
        except grpc.RpcError:
            stream.close()
            raise
        self.streams[client_id] = stream
        return answer

    def _adapted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: self.port if name == "port" and part == RECORDED_PORT else self._adapted(part)
                for name, part in value.items()
            }
        if isinstance(value, list):
            return [self._adapted(part) for part in value]
        if isinstance(value, str):
            if _TIME.fullmatch(value):
                return self._shifted(value)
            return self._replaced.get(value, value)
        return value

    def _shifted(self, text: str) -> str:
        recorded = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        if self._shift_ms is None:
            self._shift_ms = int(time.time() * 1000 - recorded.timestamp() * 1000)
        moved = recorded + datetime.timedelta(milliseconds=self._shift_ms)
        return moved.isoformat().replace("+00:00", "Z")

    def _learn(self, recorded: Any, actual: Any) -> None:
        """Which of our handles stands for which recorded one."""
        for was, now in zip(_handles(recorded), _handles(actual), strict=False):
            if was[0] == now[0]:
                self._replaced[was[1]] = now[1]
        ours = dict(_handles(actual))
        for key, handle in _handles(recorded):
            if key in ours:
                self._replaced[handle] = ours[key]


def _client_of(exchange: dict[str, Any]) -> str | None:
    label = exchange["label"]
    if "no metadata" in label:
        return None
    if "before telemetry" in label or "unknown client id" in label:
        return "nobody"
    if exchange["rpc"] == "Telemetry":
        kind = exchange["request"].get("settings", {}).get("client_type", "")
        if label in ("settings of a producer", "settings of a simple consumer, group exists"):
            return str(kind)
        return "FIFO" if "orderly" in label else f"{kind}-{label}"
    if exchange["rpc"] in ("ReceiveMessage", "AckMessage") and "FIFO" in label:
        return "FIFO"
    if "auto renew" in label:
        return "PUSH_CONSUMER-settings of a push consumer"
    if "producer" in label or exchange["rpc"] == "SendMessage" or "after termination" in label:
        return "PRODUCER"
    return "SIMPLE_CONSUMER"


def _whole_request(exchange: dict[str, Any]) -> Any:
    """Three requests are too long to be recorded as they were."""
    label = exchange["label"]
    message: dict[str, Any] = {
        "topic": {"name": "GNormalC"},
        "system_properties": {
            "message_id": "01" + "0" * 32,
            "body_encoding": "IDENTITY",
            "message_type": "NORMAL",
        },
        "body": "eA==",
    }
    if label == "send, body 4 MiB + 1":
        message["body"] = base64.b64encode(bytes(4 * 1024 * 1024 + 1)).decode()
    elif label == "send, 129 properties":
        message["user_properties"] = {f"p{number}": "v" for number in range(129)}
    elif label == "send, 16385 bytes of properties":
        message["user_properties"] = {"p": "v" * 16_384}
    else:
        return exchange["request"]
    return {"messages": [message]}


def _as_dict(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _handles(value: Any) -> Iterator[tuple[str, str]]:
    """Message ids with their receipt or recall handles."""
    if isinstance(value, list):
        for part in value:
            yield from _handles(part)
    elif isinstance(value, dict):
        for name in ("receipt_handle", "recall_handle"):
            if name in value:
                yield f"{name} {value.get('message_id', '')}", value[name]
        for part in value.values():
            yield from _handles(part)


def differences(recorded: dict[str, Any], actual: Any) -> list[str]:
    """What is not the same, apart from what cannot be."""
    expected = recorded.get("response", recorded.get("grpcError"))
    if isinstance(expected, dict) and "details" in expected:
        expected = {"grpcError": expected["code"]}
    found: list[str] = []
    _compare("", _plain(expected), _plain(actual), found)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        parts = [_plain(part) for part in value]
        # The order of messages of different queues is open.
        return (
            sorted(parts, key=lambda part: json.dumps(part.get("message", part), sort_keys=True))
            if parts and all(isinstance(part, dict) for part in parts)
            else parts
        )
    if isinstance(value, dict):
        plain = {name: _plain(part) for name, part in value.items() if name not in _UNCERTAIN}
        if "code" in plain and "message" in plain:
            del plain["message"]
        return plain
    if isinstance(value, str) and (_TIME.fullmatch(value) or _HANDLE.fullmatch(value)):
        return "..."
    return value


def _compare(path: str, expected: Any, actual: Any, found: list[str]) -> None:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in sorted(expected.keys() | actual.keys()):
            if name == "port":
                continue
            _compare(f"{path}.{name}", expected.get(name), actual.get(name), found)
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            _compare(f"{path}[{index}]", one, other, found)
    elif expected != actual:
        found.append(f"{path}: recorded {expected!r}, got {actual!r}")
