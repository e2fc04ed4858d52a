"""Checks that the codes in tests/integration/bad_requests.json are those of a real Apache 5.5.0 broker.

Run this module as a program to record them again: ``python -m tests.apache.test_broker_bad_input``.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping

from tests.apache.fixtures import ApacheCluster
from tests.apache.harness import LATEST, Addressed, ApacheBroker, ApacheNamesrv, create_topic, wait_until
from tests.integration import bad_requests

SEND_MESSAGE_V2 = 310
HEART_BEAT = 34
GET_MAX_OFFSET = 30


class RawClient:
    """One connection with JSON headers that uses none of our code."""

    def __init__(self, server: Addressed) -> None:
        host, _, port = server.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 5.0)
        self._socket.settimeout(2.0)
        self._opaque = 0

    def close(self) -> None:
        self._socket.close()

    def ask(self, code: int, fields: Mapping[str, str], body: bytes) -> int | None:
        """Returns the code of the response, or None without one."""
        self._opaque += 1
        header = {
            "code": code,
            "language": "JAVA",
            "version": 503,
            "opaque": self._opaque,
            "flag": 0,
            "extFields": dict(fields),
            "serializeTypeCurrentRPC": "JSON",
        }
        encoded = json.dumps(header).encode()
        self._socket.sendall(struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        while True:
            try:
                (size,) = struct.unpack(">i", self._read(4))
                answer = self._read(size)
            except TimeoutError:
                return None
            header_bytes = struct.unpack_from(">i", answer)[0] & 0xFFFFFF
            parsed = json.loads(answer[4 : 4 + header_bytes])
            if parsed["flag"] & 1 and parsed["opaque"] == self._opaque:
                return int(parsed["code"])

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data


def record(namesrv: Addressed, broker: Addressed) -> dict[str, int | None]:
    """Sends every case to a fresh broker and returns the response codes."""
    for topic in (bad_requests.SEND_TOPIC, bad_requests.READ_TOPIC):
        create_topic(namesrv, broker, topic)
    client = RawClient(broker)
    for number in range(bad_requests.STORED_COUNT):
        fields = {
            **bad_requests.SEND_V2,
            "b": bad_requests.READ_TOPIC,
            "i": f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02",
        }
        assert client.ask(SEND_MESSAGE_V2, fields, b"body") == 0

    def pull_finds() -> bool:
        pull = {**bad_requests.PULL, "queueOffset": str(bad_requests.STORED_COUNT - 1)}
        return client.ask(11, pull, b"") == 0

    wait_until(pull_finds, timeout_s=5, what="the stored messages")
    answers: dict[str, int | None] = {}
    for case in bad_requests.cases():
        # Every case finds the group online.
        assert client.ask(HEART_BEAT, {}, bad_requests.HEARTBEAT) == 0
        answers[case.name] = client.ask(case.code, case.fields, case.body)
    client.close()
    return answers


def test_recorded_codes_are_those_of_apache(apache_tools: None) -> None:
    with ApacheNamesrv(LATEST) as namesrv, ApacheBroker(LATEST, namesrv) as broker:
        answers = record(ApacheCluster(namesrv, broker).namesrv, broker)
    assert answers == bad_requests.recorded_codes()


if __name__ == "__main__":
    with ApacheNamesrv(LATEST) as namesrv, ApacheBroker(LATEST, namesrv) as broker:
        lines = [f"  {json.dumps(n)}: {json.dumps(c)}" for n, c in record(namesrv, broker).items()]
    bad_requests.RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
