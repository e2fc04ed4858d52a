"""Sends the same requests about clients, offsets, locks, topics and groups to Apache's broker and to ours.

Valid and invalid bare requests go over one connection each. The responses must have the same code, the same header
fields and the same body, and notifications must arrive at the same points. Where ours differs on purpose, the table
says why.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from tests.apache.fixtures import ApacheCluster
from tests.apache.ours import OrbitCluster

TIMEOUT_S = 60.0
VERSION = 513
Fields = dict[str, str]


class Case(NamedTuple):
    name: str
    code: int
    fields: Fields
    body: bytes = b""


class Outcome(NamedTuple):
    code: int
    fields: Fields
    body: Any
    """Parsed where it is JSON."""
    notices: list[tuple[int, Fields]]
    """Requests of the broker that came before the answer."""


ON_PURPOSE = {
    "topic with -1 queues": "Apache stores it; every send to it then fails inside the broker",
    "topic with a reserve time": "Apache stores it and keeps the messages no longer",
    "show Res": "the topic with a reserve time, which is refused here",
    "topic with permission 9": "Apache stores it; its own tools refuse it",
    "commit of a negative offset": "Apache stores it and then treats it as not committed",
    "commit for a negative queue": "Apache stores it; no such queue can exist",
    "goodbye without a client id": "Apache does not look; the field is required by its own header class",
    "lock without a group": "Apache fails only once there is a queue to lock",
}


class Bare:
    """A connection that speaks the JSON form and nothing else."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.settimeout(TIMEOUT_S)
        self._opaque = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, case: Case) -> Outcome:
        opaque = next(self._opaque)
        header = {"code": case.code, "language": "JAVA", "version": VERSION, "opaque": opaque, "flag": 0}
        encoded = json.dumps(header | {"extFields": case.fields}).encode()
        size = 4 + len(encoded) + len(case.body)
        self._socket.sendall(struct.pack(">ii", size, len(encoded)) + encoded + case.body)
        notices: list[tuple[int, Fields]] = []
        while True:
            answer, body = self._frame()
            fields = answer.get("extFields") or {}
            if answer["flag"] & 1 and answer["opaque"] == opaque:
                return Outcome(answer["code"], fields, _parsed(body), notices)
            notices.append((answer["code"], fields))

    def _frame(self) -> tuple[dict[str, Any], bytes]:
        (size,) = struct.unpack(">i", self._read(4))
        content = self._read(size)
        end = 4 + (struct.unpack_from(">i", content)[0] & 0xFFFFFF)
        return json.loads(content[4:end]), content[end:]

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


def topic_cases(own: Callable[[str], str]) -> Iterable[Case]:
    def create(name: str, topic: str = "T", /, **changes: str | None) -> Case:
        fields: dict[str, str | None] = {
            "topic": own(topic),
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": "",
            "force": "false",
            **changes,
        }
        return Case(name, 17, {key: value for key, value in fields.items() if value is not None})

    def show(topic: str) -> Case:
        return Case(f"show {topic}", 351, {"topic": own(topic)})

    def create_all(name: str, *topics: dict[str, Any]) -> Case:
        return Case(name, 18, {}, _json(topicConfigList=topics))

    yield create("new topic")
    yield create("same topic")
    yield create("topic with a type", "Fifo", attributes="+message.type=FIFO")
    yield create("topic with a priority", "Prio", attributes="+message.type=PRIORITY")
    yield create("topic with a reserve time", "Res", attributes="+reserve.time=100")
    for text in ("+message.type=NO", "+foo=1", "message.type", "message.type=FIFO", "-message.type"):
        yield create(f"attributes {text}", attributes=text)
    yield create("attribute given twice", attributes="+message.type=FIFO,+message.type=FIFO")
    yield create("attribute that cannot change", attributes="+queue.type=SimpleCQ")
    yield create("type mixed", attributes="+message.type=MIXED")
    yield create("attribute dropped at creation", "Drop", attributes="-message.type")
    for bad in (" ", "a b", "x" * 128, "TBW102", "DefaultCluster", "broker-a", "rmq_sys_q"):
        yield Case(f"topic named {bad[:20]}", 17, create("").fields | {"topic": bad})
    for missing in ("topicFilterType", "order", "perm", "topic"):
        yield create(f"topic without {missing}", "Part", **{missing: None})
    yield create("unknown filter type", topicFilterType="ODD")
    yield create("queues that are not a number", readQueueNums="many")
    yield create("topic with -1 queues", "Minus", readQueueNums="-1")
    yield create("topic with permission 9", "Nine", perm="9")
    for topic in ("T", "Fifo", "Res", "Part", "Missing"):
        yield show(topic)
    yield create_all(
        "list", {"topicName": own("L1"), "attributes": {"+message.type": "FIFO"}}, {"topicName": own("L2")}
    )
    yield create_all("list with a bad name", {"topicName": own("L3")}, {"topicName": "a b"})
    yield Case("list that is broken", 18, {}, b"{")
    for topic in ("L1", "L2", "L3"):
        yield show(topic)


def group_cases(own: Callable[[str], str]) -> Iterable[Case]:
    def update(name: str, **members: Any) -> Case:
        return Case(name, 200, {}, _json(**members))

    def show(group: str) -> Case:
        return Case(f"show group {group}", 352, {"group": own(group)})

    def bars(name: str, **more: str) -> Case:
        return Case(name, 353, {"group": own("g1"), "topic": own("T"), **more})

    yield update("group", groupName=own("g1"), retryMaxTimes=3)
    yield update("group with a bad name", groupName="a b")
    yield update("group without a name", retryMaxTimes=3)
    yield update("group with attributes", groupName=own("g2"), attributes={"+priority.factor": "50"})
    yield update("group with bad attributes", groupName=own("g2"), attributes={"+foo": "50"})
    yield Case("group without a body", 200, {})
    yield Case("group that is broken", 200, {}, b"{")
    for group in ("g1", "g2", "by-asking"):
        yield show(group)
    yield Case("show group with a bad name", 352, {"group": "a b"})
    both = [{"groupName": own("g3")}, {"groupName": own("g4"), "consumeEnable": False}]
    yield Case("group list", 225, {}, _json(groupConfigList=both))
    yield Case("group list with a bad name", 225, {}, _json(groupConfigList=[{"groupName": "a b"}]))
    yield show("g4")
    yield bars("bars asked")
    yield bars("bars set", readable="false")
    yield bars("bars lifted", readable="true")


def client_cases(own: Callable[[str], str]) -> Iterable[Case]:
    def beat(name: str, topics: Iterable[str], version: int, **more: Any) -> Case:
        wanted = [{"topic": own(topic), "subString": "*", "subVersion": version} for topic in topics]
        consumer = {
            "groupName": own("hg"),
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": wanted,
            "unitMode": False,
        }
        producers = [{"groupName": own("p")}]
        return Case(
            name,
            34,
            {},
            _json(clientID="c1", producerDataSet=producers, consumerDataSet=[consumer], **more),
        )

    members = {"consumerGroup": own("hg")}
    yield Case("members of nobody", 38, {"consumerGroup": own("nobody")})
    yield beat("first heartbeat", ["T"], 5)
    yield Case("members", 38, members)
    yield beat("newer subscription", ["T"], 6)
    yield beat(
        "another topic, with a fingerprint", ["T", "Fifo"], 6, heartbeatFingerprint=77, withoutSub=False
    )
    yield beat("subscriptions left out", [], 6, heartbeatFingerprint=77, withoutSub=True)
    yield beat("another fingerprint", ["T"], 7, heartbeatFingerprint=78, withoutSub=False)
    yield Case("heartbeat that is broken", 34, {}, b"{")
    yield Case("heartbeat without a body", 34, {})
    yield Case("retry topic", 351, {"topic": "%RETRY%" + own("hg")})
    yield Case("goodbye", 35, {"clientID": "c1", **members})
    yield Case("goodbye of a stranger", 35, {"clientID": "c1", "consumerGroup": own("stranger")})
    yield Case("goodbye without a client id", 35, {})
    yield Case("members after the goodbye", 38, members)
    tags = {"topic": "T", "subString": "a || b", "expressionType": "TAG"}
    yield Case("check of tags", 46, {}, _json(clientId="c", subscriptionData=tags))
    yield Case("check of nothing", 46, {}, b"{}")


def offset_cases(own: Callable[[str], str]) -> Iterable[Case]:
    place = {"consumerGroup": own("g1"), "topic": own("T"), "queueId": "0"}
    commit = place | {"commitOffset": "5"}
    yield Case("commit of an unknown group", 15, commit | {"consumerGroup": own("unknown")})
    yield Case("commit for an unknown topic", 15, commit | {"topic": own("Unknown")})
    yield Case("commit", 15, commit)
    yield Case("commit of a negative offset", 15, commit | {"queueId": "2", "commitOffset": "-5"})
    yield Case("commit for a negative queue", 15, commit | {"queueId": "-2"})
    yield Case("commit without an offset", 15, place)
    yield Case("query", 14, place)
    yield Case("query of nothing", 14, place | {"queueId": "1"})
    yield Case("query of nothing, no zero", 14, place | {"queueId": "1", "setZeroIfNotFound": "false"})
    for topic in ("T", "Unknown"):
        queue = {"topic": own(topic), "queueId": "0"}
        for code in (30, 31, 32):
            yield Case(f"bound {code} of {topic}", code, queue)
        for boundary in ("LOWER", "UPPER", "ODD"):
            yield Case(
                f"search {boundary} in {topic}", 29, queue | {"timestamp": "5", "boundaryType": boundary}
            )

    def lock(name: str, code: int, client: str, *queues: int, group: str | None = "lg") -> Case:
        wanted = [{"brokerName": "broker-a", "queueId": number, "topic": own("T")} for number in queues]
        owner = {} if group is None else {"consumerGroup": own(group)}
        return Case(name, code, {}, _json(clientId=client, mqSet=wanted, **owner))

    yield lock("lock", 41, "c1", 0)
    yield lock("lock of another", 41, "c2", 0, 1)
    yield lock("unlock", 42, "c1", 0)
    yield lock("lock without a group", 41, "c1", group=None)
    yield Case("lock that is broken", 41, {}, b"{")
    yield Case("lock without a body", 41, {})


def last_cases(own: Callable[[str], str]) -> Iterable[Case]:
    yield Case("delete group", 207, {"groupName": own("g1"), "cleanOffset": "true"})
    yield Case("delete group again", 207, {"groupName": own("g1"), "cleanOffset": "true"})
    yield Case(
        "query of a deleted group", 14, {"consumerGroup": own("g1"), "topic": own("T"), "queueId": "0"}
    )
    for name in ("T", "T", "Fifo"):
        yield Case(f"delete {name}", 215, {"topic": own(name)})
    for name in ("TBW102", " ", "rmq_sys_x"):
        yield Case(f"delete {name}", 215, {"topic": name})
    yield Case("show a deleted topic", 351, {"topic": own("T")})


def differences(cases: list[Case], ours: list[Outcome], theirs: list[Outcome]) -> list[str]:
    found = []
    for case, mine, real in zip(cases, ours, theirs, strict=True):
        if (mine != real) is not (case.name in ON_PURPOSE):
            found.append(f"{case.name} ({case.code}):\n  ours   {mine}\n  Apache {real}")
    return found


def test_every_request_is_answered_alike(
    ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Callable[[str], str]
) -> None:
    prefix = unique("tables")

    def own(name: str) -> str:
        return f"{prefix}-{name}"

    parts = (topic_cases, group_cases, client_cases, offset_cases, last_cases)
    cases = [case for part in parts for case in part(own)]
    assert len({case.name for case in cases}) >= len(cases) - 1, "names tell them apart"
    outcomes = []
    for address in (ours.broker.address, apache_cluster.broker.address):
        with Bare(address) as connection:
            outcomes.append([connection.call(case) for case in cases])
    found = differences(cases, *outcomes)
    assert not found, "\n".join([f"{len(found)} of {len(cases)} differ", *found])


def test_whole_tables_have_the_same_entries(
    ours: OrbitCluster, apache_cluster: ApacheCluster, unique: Callable[[str], str]
) -> None:
    """Codes 21 and 201: the entries sent to both brokers, and their built-in ones."""
    prefix = unique("whole")
    tables = []
    for address in (ours.broker.address, apache_cluster.broker.address):
        with Bare(address) as connection:
            group = {"groupName": f"{prefix}-g", "retryMaxTimes": 7}
            topic = {"topicName": f"{prefix}-T", "readQueueNums": 3, "order": True}
            assert connection.call(Case("", 200, {}, _json(**group))).code == 0
            assert connection.call(Case("", 18, {}, _json(topicConfigList=[topic]))).code == 0
            topics, groups = (connection.call(Case("", code, {})).body for code in (21, 201))
        assert topics["dataVersion"]["counter"] > 0
        tables.append((topics, groups))
    (our_topics, our_groups), (their_topics, their_groups) = tables
    assert list(our_topics) == list(their_topics)
    assert list(our_groups) == list(their_groups)

    def kept(table: dict[str, Any]) -> dict[str, Any]:
        """Drops entries that other tests created on one of the brokers."""
        return {
            name: entry
            for name, entry in table.items()
            if name.startswith((prefix, "rmq_sys_", "RMQ_SYS_", "TBW", "Default", "CID_", "TOOLS_"))
            and not name.startswith("CID_RMQ_SYS_REVIVE")
        }

    assert kept(our_topics["topicConfigTable"]) == kept(their_topics["topicConfigTable"])
    assert kept(our_groups["subscriptionGroupTable"]) == kept(their_groups["subscriptionGroupTable"])
