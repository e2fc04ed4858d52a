"""Eve, a user with almost no rights, and other users' objects that she must not reach.

Attacks are generated from the declarations of requests: every field of a header takes every name, id, key and offset
of the victims, so a new request is attacked without anyone adding it here. The verdict depends on the data she was
served and the changes in the store, and then on the response codes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.integration.test_access_control import ROOT, SECURED, SEND, Asker, allow, create_user, running
from tests.unit.auth.test_needs import BODIES

from orbitmq.auth.stored import is_internal, place_of
from orbitmq.broker.broker import Broker
from orbitmq.codes import Property
from orbitmq.errors import RequestTimeoutError
from orbitmq.record.batch import encode_batch
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import offset_message_id
from orbitmq.record.properties import encode_properties
from orbitmq.requests import BY_CODE, Request, RequestCode
from orbitmq.requests.declare import Server
from orbitmq.transport.client import RpcClient
from orbitmq.transport.router import Call, Reply, Route, Router
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import Empty


def _policies() -> bytes:
    entry = {"resource": "*", "actions": ["All"], "decision": "Allow"}
    return json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()


SALARY = b"salary-of-bob"
FORGED = b"forged-by-eve"
TOPIC, GROUP, PRODUCERS = "payroll", "pay", "payers"
KEY, COLLIDING_KEY = "bob", "(<<;@)B"
"""``eve#(<<;@)B`` and ``payroll#bob`` have the same hash in the index."""
TIMED_KEY = "0A0000010000000000000000000000AA"
EVE = ("eve-user", "eve-secret")
ALICE = ("alice-user", "alice-secret")
OWN = frozenset({"eve", "%RETRY%eve", "%RETRY%eve_eve", "%DLQ%eve", "DefaultCluster_REPLY_TOPIC"})
"""Where Eve may have messages stored."""
LISTS = f"""
accounts:
- {{accessKey: root-account, secretKey: root-secret-1, admin: true}}
- {{accessKey: {ALICE[0]}, secretKey: {ALICE[1]}, topicPerms: [{TOPIC}=PUB|SUB], groupPerms: [{GROUP}=SUB]}}
- {{accessKey: {EVE[0]}, secretKey: {EVE[1]}, topicPerms: [eve=PUB|SUB, "%DLQ%eve=SUB"], groupPerms: [eve=SUB]}}
"""
EXAMPLES: dict[int, bytes] = {
    RequestCode.UPDATE_BROKER_CONFIG: b"recallMessageEnable=true",
    RequestCode.SEND_BATCH_MESSAGE: encode_batch([(0, FORGED, b"")]),
    RequestCode.AUTH_CREATE_USER: b'{"username":"eve2","password":"eve2-secret"}',
    RequestCode.AUTH_UPDATE_USER: b'{"password":"known-to-eve"}',
    RequestCode.AUTH_CREATE_ACL: _policies(),
    RequestCode.AUTH_UPDATE_ACL: _policies(),
}
"""Bodies that name no topic or group."""
PUSHES = [request for request in BY_CODE.values() if Server.CLIENT in request.served_by]

TOPIC_FIELDS = frozenset({"topic", "b", "topicList", "originTopic"})
GROUP_FIELDS = frozenset(
    {"consumerGroup", "group", "groupName", "srcGroup", "destGroup", "compareGroup", "filterGroups"}
)
PATIENT_FIELDS = frozenset({"pollTime", "suspendTimeoutMillis", "bornTime"})
"""A large number here parks the request."""
ALLOWED = frozenset(
    {
        *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
        *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.QUERY_MESSAGE),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.HEART_BEAT),
        *(RequestCode.UNREGISTER_CLIENT, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.LOCK_BATCH_MQ),
        *(RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG, RequestCode.QUERY_ASSIGNMENT),
        *(RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.POP_MESSAGE),
        *(RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
        *(RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.END_TRANSACTION),
        *(RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.SEND_REPLY_MESSAGE),
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
"""What may succeed for Eve, on objects of her own."""
LOOKS_OF_4X = frozenset(
    {
        *(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET),
        *(RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.GET_TOPIC_STATS_INFO),
        *(
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            RequestCode.GET_TOPIC_CONFIG,
            RequestCode.GET_CONSUME_STATS,
        ),
        *(RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_CONSUMER_RUNNING_INFO),
        *(RequestCode.QUERY_TOPICS_BY_CONSUMER, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG),
        *(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.QUERY_CONSUME_TIME_SPAN),
        *(RequestCode.QUERY_CORRECTION_OFFSET, RequestCode.QUERY_CONSUME_QUEUE, RequestCode.POLLING_INFO),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    }
)
"""Permissions of 4.x lists do not tell consuming from looking."""


@dataclass
class Attack:
    """One request by Eve."""

    code: int
    fields: dict[str, str]
    body: bytes

    @property
    def names_victim(self) -> bool:
        named = {value for name, value in self.fields.items() if name in TOPIC_FIELDS | GROUP_FIELDS}
        return not named.isdisjoint({TOPIC, GROUP, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"})


@dataclass
class Scene:
    """A broker with the victims' messages, and Eve's connection."""

    broker: Broker
    root: Asker
    alice: Asker
    eve: Asker
    is_4x: bool
    pushed: list[Frame] = field(default_factory=list)
    pushed_to_alice: list[Frame] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    """Log offsets of the victims' records, by what they are."""
    receipt: str = ""
    recall_handle: str = ""
    attempts: int = 0

    def message_id(self, log_offset: int) -> str:
        host, _, port = self.broker.address.rpartition(":")
        return offset_message_id(bytes(map(int, host.split("."))) + int(port).to_bytes(4, "big"), log_offset)

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yields all records of the log from an offset on."""
        while start < self.broker.store.max_log_offset:
            raw = self.broker.store.record_at(start)
            assert raw is not None
            yield decode_record(bytes(raw))
            start += len(raw)

    # -- attacks -------------------------------------------------------------------------------------------

    def _strings(self) -> list[str]:
        ids = [self.message_id(offset) for offset in self.offsets.values()]
        names = [
            TOPIC,
            GROUP,
            f"%RETRY%{GROUP}",
            f"%DLQ%{GROUP}",
            "SCHEDULE_TOPIC_XXXX",
            "rmq_sys_wheel_timer",
        ]
        return [*names, PRODUCERS, KEY, COLLIDING_KEY, "alice@1", self.receipt, *ids]

    def _known(self, topic: str, group: str) -> dict[str, str]:
        """Returns the values an informed attacker would write into fields of these names."""
        known = dict.fromkeys(TOPIC_FIELDS, topic) | dict.fromkeys(GROUP_FIELDS, group)
        return known | {
            "producerGroup": PRODUCERS,
            "a": PRODUCERS,
            "clientId": "eve@1",
            "clientID": "eve@1",
            "key": KEY,
            "maxNum": "32",
            "maxMsgNums": "32",
            "endTimestamp": str(2**62),
            "commitLogOffset": str(self.offsets["half"]),
            "commitOrRollback": "8",
            "msgId": self.message_id(self.offsets["plain"]),
            "offset": str(self.offsets["plain"]),
            "extraInfo": self.receipt,
            "maxReconsumeTimes": "16",
            "topicFilterType": "SINGLE_TAG",
            "attributes": "",
            "exp": "*",
            "expType": "TAG",
            "invisibleTime": "60000",
            "perm": "6",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "statsName": "TOPIC_PUT_NUMS",
            "statsKey": TOPIC,
            "filterServerAddr": "127.0.0.1:1",
            "recallHandle": self.recall_handle,
            "accessKey": ALICE[0],
            "secretKey": "known-to-eve",
            "globalWhiteAddrs": "10.99.99.1",
            "i": f"REPLY_TO_CLIENT\x01eve@1\x02{KEY}\x01x\x02",
            "properties": f"REPLY_TO_CLIENT\x01eve@1\x02{KEY}\x01x\x02",
        }

    def attacks_with(self, request: Request) -> Iterator[Attack]:
        """Yields every attack that Eve tries with one request."""
        if request in BODIES:
            for topic, group in itertools.product((TOPIC, "eve"), (GROUP, "eve")):
                body = _renamed(BODIES[request], topic, group)
                yield from (Attack(request, fields, body) for fields in self._fields(request))
            return
        body = EXAMPLES.get(request, FORGED)
        yield from (Attack(request, fields, body) for fields in self._fields(request))

    def _fields(self, request: Request) -> Iterator[dict[str, str]]:
        if request.header is Empty:
            for name in ("eve2", ALICE[0]):
                yield {"username": name, "subject": f"User:{name}"}
            return
        described = msgspec.json.schema(request.header)["$defs"][request.header.__name__]
        required = set(described.get("required", ()))
        kinds = {name: str(value) for name, value in described["properties"].items()}
        for topic, group in itertools.product(("eve", TOPIC, f"%RETRY%{GROUP}"), ("eve", GROUP)):
            known = self._known(topic, group)
            whole = {name: known.get(name, _filler(kind)) for name, kind in kinds.items()}
            for base in (whole, {name: value for name, value in whole.items() if name in required}):
                yield base
                for name, kind in kinds.items():
                    if name in PATIENT_FIELDS:
                        continue
                    if "integer" in kind:
                        for offset in self.offsets.values():
                            yield base | {name: str(offset)}
                    elif "string" in kind:
                        for text in self._strings():
                            yield base | {name: text}

    def attacks(self, codes: Collection[int]) -> Iterator[Attack]:
        for code in codes:
            seen = set()
            for attack in self.attacks_with(BY_CODE[code]):
                mark = (tuple(sorted(attack.fields.items())), attack.body)
                if mark not in seen:
                    seen.add(mark)
                    yield attack

    async def attack(self, codes: Collection[int], *, only_first: bool = False) -> list[str]:
        """Tries everything with these codes; returns the violations."""
        before, log_end = self.state(), self.broker.store.max_log_offset
        self.pushed.clear()
        wrong: dict[str, None] = {}
        await self.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve"))
        attacks = self.attacks(codes)
        while portion := list(itertools.islice(attacks, 64)):
            for told in await asyncio.gather(*(self._try(attack) for attack in portion)):
                wrong |= dict.fromkeys(told)
            if wrong and only_first:
                return list(wrong)
            await self.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve"))
        wrong |= dict.fromkeys(self._changes(before, log_end))
        await self._check_transactions()
        if any(SALARY in frame.body for frame in self.pushed):
            wrong["the broker pushed a record of others to Eve"] = None
        return list(wrong)

    async def _check_transactions(self) -> None:
        await self.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve", PRODUCERS))
        await self.broker.transactions.check()
        await self.eve.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "eve"})

    async def _try(self, attack: Attack) -> list[str]:
        self.attempts += 1
        try:
            answer = await self.eve.ask(attack.code, attack.fields, attack.body)
        except RequestTimeoutError:
            return []
        name = BY_CODE[attack.code].name
        served = answer.body + "".join(answer.ext_fields.values()).encode()
        wrong = []
        if SALARY in served or TOPIC.encode() in served:
            wrong.append(f"{name} served what belongs to others")
        if answer.code == 0:
            if attack.code not in (ALLOWED | LOOKS_OF_4X if self.is_4x else ALLOWED):
                wrong.append(f"{name} succeeded")
            if attack.names_victim and attack.code not in (
                RequestCode.END_TRANSACTION,
                RequestCode.CONSUMER_SEND_MSG_BACK,
            ):
                wrong.append(f"{name} succeeded on a topic or group of others: {attack.fields}")
            if any(b'"%s"' % victim.encode() in attack.body for victim in (TOPIC, GROUP)):
                wrong.append(f"{name} succeeded on a topic or group of others: {attack.body!r}")
            if attack.code == RequestCode.END_TRANSACTION and attack.fields.get("commitOrRollback") == "8":
                wrong.append("END_TRANSACTION succeeded")
        return wrong

    # -- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns the state that Eve must not change."""
        broker = self.broker
        offsets = json.loads(broker.offsets.encode())["offsetTable"]
        members = broker.tables.consumers.group(GROUP)
        return {
            "topics": {name: config for name, config in broker.topics.configs.items() if name not in OWN},
            "groups": {name: config for name, config in broker.groups.configs.items() if name != "eve"},
            "offsets": {name: value for name, value in offsets.items() if not name.endswith("@eve")},
            "members": members and members.client_ids,
            "replies": broker.tables.producers.channel_of("alice@1"),
            "options": broker.config,
            "users": (broker.security.table.users, broker.security.table.policies),
            "accounts": broker.security.acl_files and broker.security.acl_files.accounts,
            "modes": broker.tables.modes.encode(),
        }

    def _changes(self, before: Mapping[str, Any], log_end: int) -> Iterator[str]:
        after = self.state()
        for name, value in before.items():
            if after[name] != value:
                yield f"changed: {name}"
        for record in self.records(log_end):
            topic = place_of(record).topic
            if SALARY in record.body:
                yield f"a record of others was stored in {record.topic} for {topic}"
            elif is_internal(topic):
                if TOPIC.encode() in record.body or GROUP.encode() in record.body:
                    yield f"state of others was stored in {record.topic}"
            elif topic not in OWN:
                yield f"a message was stored in {topic}"


def _filler(kind: str) -> str:
    if "boolean" in kind:
        return "false"
    return "0" if "integer" in kind else "x"


def _renamed(body: object, topic: str, group: str) -> bytes:
    text = json.dumps(body)
    for old, new in (('"t"', topic), ('"g"', group)):
        text = text.replace(f": {old}", f': "{new}"')
    return text.replace("%RETRY%g", f"%RETRY%{group}").encode()


def heartbeat(group: str, producers: str = "", client: str = "eve@1", topic: str = "eve") -> dict[str, Any]:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
        "unitMode": False,
    }
    return {
        "clientID": client,
        "consumerDataSet": [consumer] if group else [],
        "producerDataSet": [{"groupName": producers}] if producers else [],
    }


def _message(topic: str, **properties: str) -> dict[str, str]:
    return {**SEND, "a": PRODUCERS, "b": topic, "d": "1", "i": encode_properties(properties).decode()}


async def _make_victims(scene: Scene) -> None:
    """Stores other users' records of every kind, and registers their members."""
    root, alice, broker = scene.root, scene.alice, scene.broker
    for topic in (TOPIC, "eve"):
        made = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
        made |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert (await root.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, made)).code == 0
    for group in (GROUP, "eve"):
        body = {"groupName": group, "retryQueueNums": 1, "retryMaxTimes": 16}
        assert (await root.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    client = heartbeat(GROUP, PRODUCERS, "alice@1", TOPIC)
    assert (await alice.ask(RequestCode.HEART_BEAT, {}, client)).code == 0
    due = str(broker._clock.now_ms() + 3_600_000)
    kinds: tuple[dict[str, str], ...] = (
        {"KEYS": KEY},
        {Property.TRANSACTION_PREPARED: "true", Property.PRODUCER_GROUP: PRODUCERS},
        {Property.TIMER_DELIVER_MS: due, Property.UNIQUE_KEY: TIMED_KEY},
    )
    for properties in kinds:
        message = _message(TOPIC, **properties) | {"g": str(broker._clock.now_ms())}
        answer = await alice.ask(RequestCode.SEND_MESSAGE_V2, message, SALARY)
        assert answer.code == 0, answer.remark
    scene.recall_handle = answer.ext_fields["recallHandle"]
    retry = _message(f"%RETRY%{GROUP}", **{Property.RETRY_TOPIC: TOPIC})
    assert (await alice.ask(RequestCode.SEND_MESSAGE_V2, retry, SALARY)).code == 0
    scene.offsets = {"plain": next(scene.records()).log_offset}
    for level in ("18", "-1"):  # 18: it waits for two hours
        back = {"offset": str(scene.offsets["plain"]), "group": GROUP, "delayLevel": level}
        assert (await alice.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    pop = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": "1", "initMode": "0"}
    pop |= {"invisibleTime": "600000", "pollTime": "0", "bornTime": due, "exp": "*", "expType": "TAG"}
    popped = await alice.ask(RequestCode.POP_MESSAGE, pop)
    assert popped.code == 0, popped.remark
    scene.receipt = f"0 {popped.ext_fields['popTime']} 600000 0 0 {broker.config.broker_name} 0 0"
    names = {
        "RMQ_SYS_TRANS_HALF_TOPIC": "half",
        "rmq_sys_wheel_timer": "timed",
        "SCHEDULE_TOPIC_XXXX": "delayed",
    }
    names |= {
        f"%RETRY%{GROUP}": "retry",
        f"%DLQ%{GROUP}": "dead",
        "rmq_sys_REVIVE_LOG_DefaultCluster": "popped",
    }
    for record in scene.records():
        if record.topic in names:
            scene.offsets.setdefault(names[record.topic], record.log_offset)
    assert len(scene.offsets) == 7, scene.offsets


@asynccontextmanager
async def scene(folder: Path, *, is_4x: bool) -> AsyncIterator[Scene]:
    """A broker under attack, with users of 5.x or accounts of 4.x."""
    options: tuple[str, ...] = SECURED
    root_user = ROOT
    if is_4x:
        (folder / "home" / "conf").mkdir(parents=True)
        (folder / "home" / "conf" / "plain_acl.yml").write_text(LISTS)
        options = ("aclEnable=true", f"rocketmqHome={folder / 'home'}")
        root_user = ("root-account", "root-secret-1")
    options += ("transactionTimeOut=1", "transactionCheckInterval=3600000", "recallMessageEnable=true")
    options += ("filterServerNums=2",)
    options += ("appendCkAsync=false", "enablePopBufferMerge=false")
    async with running(folder, *options) as broker, Asker(broker.address, root_user) as root:
        if not is_4x:
            for name, secret in (ALICE, EVE):
                await create_user(root, name, secret)
            for user, resource, *actions in (
                (ALICE[0], f"Topic:{TOPIC}", "Pub", "Sub"),
                (ALICE[0], f"Group:{GROUP}", "Sub"),
                (EVE[0], "Topic:eve", "Pub", "Sub"),
                (EVE[0], "Group:eve", "Sub"),
                (EVE[0], "Topic:%DLQ%eve", "Sub"),
            ):
                assert (await allow(root, user, resource, *actions)).code == 0
        async with Asker(broker.address, ALICE) as alice, Asker(broker.address, EVE) as eve:
            made = Scene(broker, root, alice, eve, is_4x)

            _listen(eve, made.pushed)
            _listen(alice, made.pushed_to_alice)
            await _make_victims(made)
            yield made


def _listen(asker: Asker, frames: list[Frame]) -> None:
    """Answers and records the requests that the broker sends to a client."""

    def pushed(call: Call[Any]) -> Reply:
        if call.body or call.frame.code == RequestCode.GET_CONSUMER_RUNNING_INFO:  # others are notifications
            frames.append(call.frame)
        return Reply()

    sign = asker._client.sign
    asker._client = RpcClient(router=Router([Route(request, pushed, Empty) for request in PUSHES]))
    asker._client.sign = sign
