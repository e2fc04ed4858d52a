"""Apache's mqadmin sends the same queries about the same data to our broker and Apache's, and prints the same.

Two clusters go through the same steps of the same Java clients. Every command then runs on both, and what it prints
is compared line by line, in any order, after replacing what must differ: addresses, times, ids, texts of errors.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from tests.apache.harness import (
    LATEST,
    LEGACY,
    Admin,
    AdminResult,
    AdminShell,
    ApacheBroker,
    ApacheNamesrv,
    JavaClients,
    Message,
    PushConsumer,
    Queue,
    SendResult,
    create_group,
    create_topic,
    remoting_call,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv

UPDATE_CONSUMER_OFFSET: Final = 15
QUERY_CONSUMER_OFFSET: Final = 14
UPDATE_GROUP: Final = 200
TOPIC: Final = "orders"
MESSAGES: Final = 20
WAIT_S: Final = 90.0
SETTLE_S: Final = 5.0
# Settings of the harness's Apache broker, and defaults of 5.5.0 we do not share, so that options can be compared.
SAME_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "diskMaxUsedSpaceRatio": 95,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "transactionMetricFlushInterval": 500,
    "timerFlushIntervalMs": 5_000,
    # For these options our defaults are those of 4.x.
    "inSyncReplicas": 1,
    "slaveReadEnable": False,
    "syncFromLastFile": False,
}


@dataclass(slots=True)
class Side:
    """One of the two clusters, with the data both have."""

    name: str
    namesrv: ApacheNamesrv | OrbitNamesrv
    broker: ApacheBroker | OrbitBroker
    directory: Path
    sent: list[SendResult] = field(default_factory=list)
    consumers: dict[str, PushConsumer] = field(default_factory=dict)
    admin: Admin | None = None

    def facts(self) -> dict[str, str]:
        """Returns the values that replace {braces} in commands."""
        return {
            "broker": self.broker.address,
            "namesrv": self.namesrv.address,
            "client": str(self.consumers["readers"].client_id),
            "unique": self.sent[0].msg_id,
            "offset": str(self.sent[0].offset_msg_id),
            "dir": str(self.directory),
        }


@dataclass(frozen=True, slots=True)
class Sides:
    theirs: Side
    ours: Side

    def __iter__(self) -> Iterator[Side]:
        return iter((self.theirs, self.ours))


@pytest.fixture(scope="module")
def sides(apache_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with (
        ApacheNamesrv(LATEST) as their_namesrv,
        OrbitNamesrv() as our_namesrv,
        ApacheBroker(LATEST, their_namesrv) as their_broker,
        OrbitBroker(our_namesrv, None, workdir=None, **SAME_SETTINGS) as our_broker,
        JavaClients(LATEST) as java,
    ):
        both = Sides(
            Side("apache", their_namesrv, their_broker, tmp_path_factory.mktemp("apache")),
            Side("ours", our_namesrv, our_broker, tmp_path_factory.mktemp("ours")),
        )
        for side in both:
            fill(side, java)
        yield both


@pytest.fixture(scope="module")
def shell(apache_tools: None) -> Iterator[AdminShell]:
    with AdminShell(LATEST) as shell:
        yield shell


@pytest.fixture(scope="module")
def legacy_shell(apache_tools: None) -> Iterator[AdminShell]:
    with AdminShell(LEGACY) as shell:
        yield shell


def fill(side: Side, java: JavaClients) -> None:
    """Creates topics, messages with tags and keys, and three groups: one finished, one that filters, one
    that lags.
    """
    namesrv, broker = side.namesrv, side.broker
    create_topic(namesrv, broker, TOPIC, queue_count=4)
    create_topic(namesrv, broker, "other", queue_count=2)
    create_topic(namesrv, broker, "ordered", queue_count=2, order=True)
    for group in ("readers", "pickers", "lagging"):
        create_group(namesrv, broker, group)
    side.admin = java.admin(namesrv)
    producer = java.producer("makers", namesrv)
    for number in range(MESSAGES):
        message = Message(
            topic=TOPIC,
            body=b"body-%d" % number,
            tags="red" if number % 2 else "blue",
            keys=f"key-{number}",
            properties={"number": str(number)},
        )
        side.sent.append(producer.send(message, queue=Queue(TOPIC, "broker-a", number % 4)))
    for number in range(4):
        message = Message(topic="other", body=b"other", tags="green", keys="same")
        side.sent.append(producer.send(message, queue=Queue("other", "broker-a", number % 2)))
    subscriptions = {"readers": {TOPIC: "*"}, "pickers": {TOPIC: "red", "other": "*"}}
    for group, topics in subscriptions.items():
        consumer = java.push_consumer(group, namesrv, topics, from_first=True)
        side.consumers[group] = consumer
        consumer.wait(MESSAGES if group == "readers" else MESSAGES // 2 + 4)
    code, _, _ = remoting_call(broker.address, UPDATE_GROUP, body=b'{"groupName":"lagging"}')
    assert code == 0
    for queue_id in range(4):
        commit(side, "lagging", TOPIC, queue_id, 2)
    # A consumer commits this by itself, but only after its next rebalance, which is up to 20 s away.
    for group in subscriptions:
        commit(side, group, f"%RETRY%{group}", 0, 0)
    for group, topics in subscriptions.items():
        side.consumers[group].persist()
        for topic in topics:
            condition = functools.partial(all_consumed, side, group, topic)
            wait_until(condition, timeout_s=WAIT_S, what=f"offsets of {group} in {topic} on {side.name}")


def commit(side: Side, group: str, topic: str, queue_id: int, offset: int) -> None:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    assert remoting_call(side.broker.address, UPDATE_CONSUMER_OFFSET, fields)[0] == 0


def all_consumed(side: Side, group: str, topic: str) -> bool:
    """Returns whether the group is at the end of every queue on the broker."""
    queues, end = (4, MESSAGES // 4) if topic == TOPIC else (2, 2)
    for queue_id in range(queues):
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "setZeroIfNotFound": "false",
        }
        code, answer, _ = remoting_call(side.broker.address, QUERY_CONSUMER_OFFSET, fields)
        if code != 0 or int(answer["offset"]) != end:
            side.consumers[group].persist()
            return False
    return True


# -- comparing ---------------------------------------------------------------------------------------------

_MASKS: Final = (
    (r"\S+@\d+#\d+", "CLIENT"),
    (r"/?127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d[ T#]\d\d:\d\d:\d\d(?:[,.:]\d{1,3})?", "TIME"),
    (r"\b1[6-9]\d{11}\b", "MS"),
    (r"\b20\d{12}\b", "TIME"),
    (r"@[0-9a-f]{6,8}\b", "@OBJECT"),
    (r"(CODE: \d+ ).*", r"\1..."),
    (r"(CODE:\d+ DESC:).*?\](?=MessageTrack|$)", r"\1...]"),
)
_TABLE: Final = re.compile(r"\{([^{}]*)\}")
_TRACE: Final = re.compile(r"^\s+at |^\s*\.\.\. \d+ more|^See https?:|^For more information")
# The transaction check commits its own progress when it first runs, independently of the test.
_OWN_PROGRESS: Final = re.compile(r"RMQ_SYS_\w*TRANS_\w*HALF_TOPIC")


def plain(side: Side, text: str, masks: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Returns the sorted lines of an output without the parts specific to one side."""
    text = text.replace(str(side.directory), "DIR").replace(str(side.broker.workdir), "WORK")
    text = text.replace(side.broker.address, "BROKER").replace(side.namesrv.address, "NAMESRV")
    for number, sent in enumerate(side.sent):
        text = text.replace(sent.msg_id, f"MESSAGE-{number}").replace(
            str(sent.offset_msg_id), f"PLACE-{number}"
        )
    lines = []
    for line in text.splitlines():
        if not line.strip() or _TRACE.match(line) or _OWN_PROGRESS.search(line):
            continue
        line = " ".join(line.split())
        for pattern, mask in (*_MASKS, *masks):
            line = re.sub(pattern, mask, line)
        if line:  # a mask may take the whole of it
            lines.append(_TABLE.sub(_sorted_table, line))
    return sorted(lines)


def _sorted_table(table: re.Match[str]) -> str:
    """Java prints maps in the order of their hashes and of insertion."""
    return "{" + ", ".join(sorted(table[1].split(", "))) + "}"


def difference(outputs: Sequence[list[str]]) -> str:
    theirs, ours = outputs
    return "\n".join(difflib.unified_diff(theirs, ours, "apache", "ours", lineterm="", n=0))


def wait_for(sides: Sides, condition: Callable[[Side], bool], what: str) -> None:
    """Waits until a condition holds on both."""
    for side in sides:
        wait_until(functools.partial(condition, side), timeout_s=WAIT_S, what=f"{what} of {side.name}")


@dataclass(frozen=True, slots=True)
class Case:
    """A command, a text it must print (so that two failures do not count as equal results), and what else to mask in
    its output. A case that `settles` may have to be repeated until a change has reached the name server.
    """

    command: str
    shows: str
    masks: tuple[tuple[str, str], ...] = ()
    settles: bool = False

    def __str__(self) -> str:
        return self.command


def run(case: Case, side: Side, shell: AdminShell) -> AdminResult:
    args = [part.format(**side.facts()) for part in case.command.split()]
    return shell.run(*args, namesrv=side.namesrv)


def shows(case: Case, side: Side, shell: AdminShell) -> bool:
    return case.shows in run(case, side, shell).output


def compare(case: Case, sides: Sides, shell: AdminShell) -> None:
    outputs = []
    for side in sides:
        output = run(case, side, shell).output
        if case.settles and case.shows not in output:
            settled = functools.partial(shows, case, side, shell)
            wait_until(settled, timeout_s=SETTLE_S, what=f"{case.shows} of {case.command} on {side.name}")
            output = run(case, side, shell).output
        assert case.shows in output, f"{side.name}: {case.command}\n{output}"
        outputs.append(plain(side, output, case.masks))
    assert outputs[1] == outputs[0], f"{case.command}\n{difference(outputs)}"


_RATES: Final = ((r"\d+\.\d\d\b", "RATE"), (r"TPS: [\d.E-]+", "TPS: RATE"))
_CONSUME_RATE: Final = ((r"(PUSH \S+ )\d+ ", r"\1RATE "), *_RATES)
_OWN_GROUP: Final = (r"^TOOLS_CONSUMER .*", "")
"""mqadmin's own group, online as long as a broker has not noticed that the last command's connection is closed."""
_BODY_PATH: Final = ((r"(Message Body Path:).*", r"\1"),)

# Commands that only look, known to both releases of mqadmin.
LOOKS: Final = (
    Case("clusterList -m", "broker-a"),
    Case("topicList", TOPIC),
    Case("topicList -c", "readers"),
    Case("topicRoute -t orders", "readQueueNums"),
    Case("topicStatus -t orders", "broker-a", _RATES),
    Case("topicStatus -t other", "broker-a", _RATES),
    Case("topicStatus -t nothing", "CODE: 17"),
    Case("topicClusterList -t orders", "DefaultCluster"),
    Case("consumerProgress", "lagging", (*_CONSUME_RATE, _OWN_GROUP)),
    Case("consumerProgress -g readers", TOPIC, _RATES),
    Case("consumerProgress -g readers -s true", TOPIC, _RATES),
    Case("consumerProgress -g lagging", "Diff Total: 12", _RATES),
    Case("consumerProgress -g nobody", "CODE: 17"),
    Case("consumerConnection -g readers", "#SubExpression"),
    Case("consumerConnection -g pickers", "red"),
    Case("consumerConnection -g lagging", "CODE: 206"),
    Case("producerConnection -g makers -t orders", "JAVA"),
    Case("producerConnection -g nobody -t orders", "CODE: 1 "),
    Case("consumerStatus -g readers", "V5_5_0"),
    Case("brokerConsumeStats -b {broker}", "Diff Total: 12"),
    Case("brokerConsumeStats -b {broker} -o true", "Diff Total: 0"),
    Case("brokerConsumeStats -b {broker} -l 3", "lagging"),
    Case("queryMsgByKey -t orders -k key-3", " 3  "),
    Case("queryMsgByUniqueKey -t orders -i {unique}", "TAGS=blue", _BODY_PATH),
    Case("queryMsgByOffset -t orders -b broker-a -i 1 -o 2", "number=9", _BODY_PATH),
    Case("queryCq -t orders -q 0 -i 0 -c 3 -b {broker}", "tagsCode"),
    Case("queryCq -t orders -q 1 -i 0 -c 9 -b {broker} -g pickers", "red"),
    Case("queryCq -t orders -q 9 -i 0 -b {broker}", "CODE: 1 "),
    Case("printMsg -t orders -d true", "body-19"),
    Case("printMsgByQueue -t orders -a broker-a -i 0 -p true -d true -f true", "body-16"),
    Case("allocateMQ -t orders -i 10.0.0.1,10.0.0.2", "10.0.0.2"),
    Case("getConsumerConfig -g lagging", "lagging"),
    Case(
        "sendMsgStatus -b broker-a -c 2",
        "SEND_OK",
        ((r"rt=\d+ms", "rt=T"), (r"[0-9A-F]{32}", "ID"), (r"queueOffset=\d+", "queueOffset=N")),
    ),
    Case("cleanExpiredCQ -b {broker}", "success"),
    Case("cleanUnusedTopic -b {broker}", "success"),
)
# Those of 5.5.0 alone, or with options or answers 4.9.7 does not have.
LATEST_LOOKS: Final = (
    Case("queryMsgById -t orders -i {offset}", "key-0", _BODY_PATH),
    Case("clusterList", "V5_5_0", ((r"(V5_5_0 ).*", r"\1..."),)),
    Case("topicRoute -t orders -l", "Total:"),
    Case("consumerProgress -g pickers -t orders", TOPIC, _RATES),
    Case("producer -b {broker}", "makers"),
    Case("queryMsgByKey -t other -k same -m 2", "#Message ID"),
    Case("queryMsgByKey -t orders -k nothing", "CODE: 208"),
    Case(
        "queryMsgById -t orders -i {offset} -g readers -d {client}",
        "CR_SUCCESS",
        ((r"spentTimeMills=\d+", "spent"),),
    ),
    Case(
        "queryMsgByUniqueKey -t orders -i {unique} -g readers -d {client}",
        "CR_SUCCESS",
        ((r"spentTimeMills=\d+", "spent"),),
    ),
    Case("deleteExpiredCommitLog -b {broker}", "success"),
    Case("haStatus -b {broker}", "#SlaveNum"),
    Case("consumeMessage -t orders -b broker-a -i 0 -o 0 -c 2", "body-0"),
)


def test_stats_all_counts_the_same(sides: Sides, shell: AdminShell) -> None:
    """Counters appear with the next sample, which both brokers take every ten seconds. First in this file: one minute
    after the last message its count drops out of the sum of the minute, and that of the hour includes it only ten
    minutes later.
    """

    def counted(side: Side) -> bool:
        rows = shell.run("statsAll", "-t", TOPIC, namesrv=side.namesrv).rows()
        return any(row[1:2] == ["readers"] and row[-2:] == ["20", "20"] for row in rows)

    wait_for(sides, counted, "counters")
    compare(Case("statsAll -t orders", "pickers", _RATES), sides, shell)
    compare(Case("statsAll", "NO_CONSUMER", (*_RATES, (r"^broker-a .*", "broker-a"))), sides, shell)


@pytest.mark.parametrize("case", [*LOOKS, *LATEST_LOOKS], ids=str)
def test_mqadmin_prints_the_same(case: Case, sides: Sides, shell: AdminShell) -> None:
    compare(case, sides, shell)


LEGACY_LOOKS: Final = (Case("queryMsgById -i {offset}", "key-0", _BODY_PATH),)


@pytest.mark.parametrize("case", [*LOOKS, *LEGACY_LOOKS], ids=str)
def test_old_mqadmin_prints_the_same(case: Case, sides: Sides, legacy_shell: AdminShell) -> None:
    compare(case, sides, legacy_shell)


# -- commands whose output needs more than masks -----------------------------------------------------------


# Values that depend on the time, the machine or the location of the store. All others must be equal, keys included.
_MOMENTARY: Final = (
    r"^(bootTimestamp|runtime|earliestMessageTimeStamp|commitLogDirCapacity|commitLogDiskRatio\S*|"
    r"consumeQueueDiskRatio|get\w+Tps|putTps|getMessageEntireTimeMax|putMessageEntireTimeMax|putLatency\w+|"
    r"putMessageDistributeTime|remainHowManyDataToFlush|pageCacheLockTimeMills|timer\w+)\s*:.*"
)


def test_broker_status_has_the_same_keys_and_values(sides: Sides, shell: AdminShell) -> None:
    masks = ((_MOMENTARY, r"\1"), (r"^orbitmq(?:Damage|Kernel|Release) .*", ""))
    compare(Case("brokerStatus -b {broker}", "msgPutTotalTodayNow", masks), sides, shell)
    outputs = [
        shell.run("brokerStatus", "-c", "DefaultCluster", namesrv=side.namesrv).rows() for side in sides
    ]
    assert all(row[0] == sides.ours.broker.address for row in outputs[1])
    ours = [row for row in outputs[1] if not {"orbitmqDamage", "orbitmqKernel", "orbitmqRelease"} & set(row)]
    assert len(outputs[0]) == len(ours)


LOCAL_OPTIONS: Final = {
    "allAckInSyncStateSet",  # our failover by default acknowledges only what the whole in-sync set has
    "bindAddress",
    "bitMapLengthConsumeQueueExt",  # Apache works it out from its filters at start
    "haListenPort",
    "listenPort",
    "metricsOtelCardinalityLimit",  # ours bounds the samples of one metric in an answer
    "metricsPromExporterHost",  # ours listens on loopback by default
    "namesrvAddr",
    "rocketmqHome",
    "storePathCommitLog",
    "storePathRootDir",
    "transactionOpBatchInterval",  # tests.apache.servers sets both, so that Apache's broker does not spin
    "transactionOpMsgMaxSize",
    "waitTimeMillsInSendQueue",  # as above, so that Apache's broker refuses nothing on a busy machine
}


def test_broker_config_tells_the_same_values(sides: Sides, shell: AdminShell) -> None:
    theirs, ours = (options(side, shell) for side in sides)
    # Options of our own and of 4.x are fine; a misspelt one of 5.5.0 is not.
    misspelt = {
        key: near
        for key in ours.keys() - theirs.keys()
        if (near := difflib.get_close_matches(key, theirs, cutoff=0.9))
    }
    assert misspelt == {}
    assert len(ours) > 120
    different = {
        key: (theirs[key], value)
        for key, value in ours.items()
        if key in theirs and key not in LOCAL_OPTIONS and theirs[key] != value
    }
    assert different == {}


def options(side: Side, shell: AdminShell) -> dict[str, str]:
    output = shell.run("getBrokerConfig", "-b", side.broker.address, namesrv=side.namesrv).stdout
    pairs = (line.partition("=") for line in output.splitlines() if re.match(r"\w+ *= ", line))
    return {key.strip(): value.strip() for key, _, value in pairs}


def test_running_info_of_a_consumer_is_passed_on(sides: Sides, shell: AdminShell) -> None:
    masks = (
        (r"^(messageListener|subscription|PROP_\w*TIMESTAMP|instanceName) *: .*", r"\1"),
        (r"(BROKER|ADDRESS|NAMESRV);?", "X"),
        (r"\d+\.\d\d", "RATE"),
        (r"\d{13}", "MS"),
    )
    for command in ("consumerStatus -g readers -i {client}", "consumerStatus -g readers -i {client} -s true"):
        texts = []
        for side in sides:
            output = run(Case(command, ""), side, shell).stdout
            assert "#Consumer Subscription#" in output
            # Times, rates and stacks follow; the client's identity and subscriptions come first.
            head = output.partition("#Consumer Offset#")[0]
            texts.append(plain(side, head, masks))
            assert ("ConsumeMessageThread" in output) == command.endswith("true")
        assert texts[1] == texts[0], command


@pytest.mark.parametrize("command", ["exportConfigs", "exportMetadata", "exportMetrics"])
def test_exports_hold_the_same(command: str, sides: Sides, shell: AdminShell) -> None:
    exported = []
    for side in sides:
        directory = side.directory / command
        output = shell.run(command, "-c", "DefaultCluster", "-f", str(directory), namesrv=side.namesrv).output
        assert "success" in output
        (file,) = directory.iterdir()
        exported.append(without_moments(json.loads(file.read_text())))
    texts = [json.dumps(one, indent=1, sort_keys=True).splitlines() for one in exported]
    assert texts[1] == texts[0], difference(texts)


_NOT_SHARED: Final = {"dataVersion", "filterServerNums"}  # the second is an option of 4.x


def without_moments(value: Any) -> Any:
    """An export without times and rates."""
    if isinstance(value, dict):
        return {
            key: without_moments(item)
            for key, item in value.items()
            if not re.search(r"Tps|Time|AverageSize|commitLogDiskRatio|Addr", key) and key not in _NOT_SHARED
        }
    if isinstance(value, list):
        return [without_moments(item) for item in value]
    return value


# -- commands that change something ------------------------------------------------------------------------


def compare_all(cases: Sequence[Case], sides: Sides, shell: AdminShell) -> None:
    for case in cases:
        compare(case, sides, shell)


def test_topic_is_made_changed_and_deleted(sides: Sides, shell: AdminShell) -> None:
    compare_all(
        (
            Case("updateTopic -b {broker} -t made -r 3 -w 5", "create topic to"),
            Case("topicRoute -t made", '"writeQueueNums":5', settles=True),
            Case("updateTopicPerm -b {broker} -t made -p 4", "success"),
            Case("topicRoute -t made", '"perm":4', settles=True),
            Case("updateTopic -c DefaultCluster -t made -a +message.type=FIFO", "create topic to"),
            Case("updateTopic -b {broker} -t made -a +no.such=1", "CODE: 1 "),
            Case("updateTopic -b {broker} -t bad$name", "CODE: 29"),
            Case("updateTopic -b {broker} -t TBW102", "CODE: 29"),
            Case("topicStatus -t made", "broker-a", _RATES),
            Case("deleteTopic -c DefaultCluster -t made", "success"),
            Case("topicRoute -t made", "CODE: 17", settles=True),
        ),
        sides,
        shell,
    )


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("cleanup.policy=COMPACTION", "topics are not compacted"),
        ("queue.type=BatchCQ", "there are no batch consume queues"),
        ("message.type=LITE", "lite topics are not served"),
        ("reserve.time=100", "messages of all topics are kept for fileReservedTime hours"),
    ],
)
def test_refused_attribute_is_shown_with_code_and_reason(
    sides: Sides, shell: AdminShell, attribute: str, reason: str
) -> None:
    side = sides.ours
    args = ("updateTopic", "-b", side.broker.address, "-t", "refused", "-a", f"+{attribute}")
    output = shell.run(*args, namesrv=side.namesrv).output
    assert "CODE: 1 " in output
    assert f"attribute {attribute} is refused: {reason}" in output


def test_topics_and_groups_are_made_from_lists(sides: Sides, shell: AdminShell) -> None:
    topics = [{"topicName": f"list-{number}", "readQueueNums": 2, "writeQueueNums": 2} for number in range(3)]
    groups = [{"groupName": f"list-group-{number}", "retryMaxTimes": number} for number in range(3)]
    for side in sides:
        (side.directory / "topics.json").write_text(json.dumps(topics))
        (side.directory / "groups.json").write_text(json.dumps(groups))
    compare_all(
        (
            Case("updateTopicList -b {broker} -f {dir}/topics.json", "success"),
            Case("topicRoute -t list-2", '"readQueueNums":2', settles=True),
            Case("updateSubGroupList -b {broker} -f {dir}/groups.json", "success"),
            Case("getConsumerConfig -g list-group-2", "list-group-2"),
        ),
        sides,
        shell,
    )


def test_group_is_made_and_deleted(sides: Sides, shell: AdminShell) -> None:
    compare_all(
        (
            Case("updateSubGroup -b {broker} -g made-group -r 3 -s false -d true", "made-group"),
            Case("getConsumerConfig -g made-group", "made-group"),
            Case("updateSubGroup -c DefaultCluster -g made-group -o true", "made-group"),
            Case("updateSubGroup -b {broker} -g bad$name", "CODE: 29"),
            Case("deleteSubGroup -b {broker} -g made-group -r true", "success"),
            Case("getConsumerConfig -g made-group", ""),
        ),
        sides,
        shell,
    )


def test_broker_options_are_changed(sides: Sides, shell: AdminShell) -> None:
    key = "maxTransferCountOnMessageInMemory"
    compare_all(
        (
            Case(f"updateBrokerConfig -b {{broker}} -k {key} -v 33", "success"),
            Case("updateBrokerConfig -c DefaultCluster -k flushIntervalCommitLog -v 501", "success"),
            Case("updateBrokerConfig -b {broker} -k useEpollNativeSelector -v true", "success"),
            Case("updateBrokerConfig -b {broker} -k brokerConfigPath -v x", "CODE: 16"),
        ),
        sides,
        shell,
    )
    for side in sides:
        changed = options(side, shell)
        assert (changed[key], changed["flushIntervalCommitLog"]) == ("33", "501")
        # Both keep it in the file they were started with.
        text = (side.broker.workdir / "broker.conf").read_text()
        assert f"{key}=33" in text
        assert "flushIntervalCommitLog=501" in text


def test_broker_permission_reaches_the_name_server(sides: Sides, shell: AdminShell) -> None:
    def routed(perm: int, side: Side) -> bool:
        return f'"perm":{perm}' in shell.run("topicRoute", "-t", TOPIC, namesrv=side.namesrv).stdout

    for perm in (4, 6):
        compare(
            Case(f"updateBrokerConfig -b {{broker}} -k brokerPermission -v {perm}", "success"), sides, shell
        )
        wait_for(sides, functools.partial(routed, perm), f"permission {perm}")


def test_order_of_a_topic_is_set_through_the_name_server(sides: Sides, shell: AdminShell) -> None:
    compare_all(
        (
            Case("updateOrderConf -t ordered -m put -v broker-a:2", "success"),
            Case("updateOrderConf -t ordered -m get", "broker-a:2"),
            Case("updateOrderConf -t ordered -m delete", "success"),
            Case("updateKvConfig -s space -k key -v value", "success"),
            Case("deleteKvConfig -s space -k key", "success"),
        ),
        sides,
        shell,
    )


def test_write_permission_is_wiped_and_given_back(sides: Sides, shell: AdminShell) -> None:
    compare_all(
        (
            Case("wipeWritePerm -b broker-a", "OK"),
            Case("topicRoute -t other", '"perm":4'),
            Case("addWritePerm -b broker-a", "OK"),
            Case("topicRoute -t other", '"perm":6'),
        ),
        sides,
        shell,
    )


def test_offsets_are_reset_skipped_and_cloned(sides: Sides, shell: AdminShell) -> None:
    # Of a group that is not online, so that no client moves them meanwhile.
    compare_all(
        (
            Case("resetOffsetByTime -g lagging -t orders -s -1", "broker-a"),
            Case("consumerProgress -g lagging", "Diff Total: 0", _RATES),
            Case("resetOffsetByTime -g lagging -t orders -s 0", "broker-a"),
            Case("consumerProgress -g lagging", "Diff Total: 20", _RATES),
            Case("resetOffsetByTime -g lagging -t orders -s -1 -b {broker} -q 1 -o 3", "3"),
            Case("resetOffsetByTime -g lagging -t orders -s now -b {broker} -q 2", "reset"),
            Case("resetOffsetByTime -g lagging -t orders -s -1 -b {broker} -q 1 -o 99", "CODE: 1 "),
            Case("resetOffsetByTime -g lagging -t nothing -s -1", "CODE: 17"),
            Case("skipAccumulatedMessage -g lagging -t orders", "broker-a"),
            Case("updateSubGroup -b {broker} -g cloned", "cloned"),
            Case("cloneGroupOffset -s readers -d cloned -t orders", "clone group offset success"),
            Case("cloneGroupOffset -s readers -d missing -t orders", "CODE: 26"),
        ),
        sides,
        shell,
    )
    for side in sides:
        for queue_id in range(4):
            commit(side, "lagging", TOPIC, queue_id, 2)


def test_messages_are_sent_and_read_by_the_tool(sides: Sides, shell: AdminShell) -> None:
    new_id = (r"\b[0-9A-F]{32}\b", "ID")
    compare_all(
        (
            Case("updateTopic -b {broker} -t tool -r 1 -w 1", "create topic to"),
            Case("topicRoute -t tool", '"readQueueNums":1', settles=True),
            Case("sendMessage -t tool -p hello -k tool-key -c tool-tag", "SEND_OK", (new_id,)),
            Case("sendMessage -t tool -p again -b broker-a -i 0", "SEND_OK", (new_id,)),
            Case("queryMsgByKey -t tool -k tool-key", "#QID", (new_id, (r"@\d+ *$", "@N"))),
            Case("consumeMessage -t tool", "hello", (new_id,)),
            Case("printMsgByQueue -t tool -a broker-a -i 0 -c UTF-8 -p true -d true", "hello", (new_id,)),
            Case("checkMsgSendRT -t tool -a 2 -s 10", "Avg RT", ((r" \d+$", " RT"), _RATES[0])),
        ),
        sides,
        shell,
    )


# -- requests that commands do not send, through the admin client ------------------------------------------

CALLS: Final[Mapping[str, Callable[[Side], list[Any]]]] = {
    "examineConsumeStats": lambda side: ["pickers"],
    "examineConsumerConnectionInfo": lambda side: ["readers"],
    "examineProducerConnectionInfo": lambda side: ["makers", TOPIC],
    "examineSubscriptionGroupConfig": lambda side: [side.broker.address, "readers"],
    "examineTopicConfig": lambda side: [side.broker.address, TOPIC],
    "examineTopicStats": lambda side: [TOPIC],
    "fetchConsumeStatsInBroker": lambda side: [side.broker.address, False, 5000],
    "getAllProducerInfo": lambda side: [side.broker.address],
    "getAllSubscriptionGroup": lambda side: [side.broker.address, 5000],
    "getAllTopicConfig": lambda side: [side.broker.address, 5000],
    "getConsumeStatus": lambda side: [TOPIC, "readers", ""],
    "getUserSubscriptionGroup": lambda side: [side.broker.address, 5000],
    "getUserTopicConfig": lambda side: [side.broker.address, True, 5000],
    "queryConsumeTimeSpan": lambda side: [TOPIC, "readers"],
    "querySubscription": lambda side: ["pickers", TOPIC],
    "queryTopicConsumeByWho": lambda side: [TOPIC],
    "queryTopicsByConsumer": lambda side: ["pickers"],
    "updateAndGetGroupReadForbidden": lambda side: [side.broker.address, "readers", "other", None],
    "viewBrokerStatsData": lambda side: [side.broker.address, "TOPIC_PUT_NUMS", TOPIC],
}


@pytest.mark.parametrize("method", CALLS)
def test_admin_client_is_told_the_same(method: str, sides: Sides) -> None:
    told = []
    for side in sides:
        assert side.admin is not None
        answer = side.admin.invoke(method, *CALLS[method](side))
        assert answer, f"{side.name} told nothing"
        if isinstance(answer, dict) and "consumeStatsList" in answer:
            answer["consumeStatsList"] = [
                entry for entry in answer["consumeStatsList"] if "CID_RMQ_SYS_TRANS" not in entry
            ]
        if method == "getAllProducerInfo":
            # Apache's broker contains its own client, which registers some time after the start.
            for group, members in answer["data"].items():
                answer["data"][group] = [one for one in members if not one["clientId"].endswith("@STREAM")]
        text = json.dumps(answer, indent=1, sort_keys=True)
        masks = (
            (r'("(?:consumeTps|topicPutTps|tps|avgpt|counter|lastUpdateTimestamp)": )[^,]+', r"\1N"),
            # Apache leaves pull offsets out of this answer and then sums up what it left out.
            (r'("(?:pullOffset|totalInflightDiff)": )[^,]+', r"\1N"),
            (r",$", ""),
        )
        told.append(plain(side, text, masks))
    assert told[1] == told[0], difference(told)


def test_group_is_barred_from_a_topic_and_let_in_again(sides: Sides) -> None:
    for side in sides:
        assert side.admin is not None
        told = [
            side.admin.invoke(
                "updateAndGetGroupReadForbidden", side.broker.address, "lagging", "other", readable
            )["readable"]
            for readable in (False, None, True, None)
        ]
        assert told == [False, False, True, True], side.name


def test_online_consumer_follows_a_reset_at_once(sides: Sides, shell: AdminShell) -> None:
    """Apache's broker keeps a waiting pull waiting, for up to 15 s; ours answers it with the reset."""
    side = sides.ours
    consumer = side.consumers["pickers"]
    before = consumer.count()
    result = shell.run("resetOffsetByTime", "-g", "pickers", "-t", "other", "-s", "0", namesrv=side.namesrv)
    assert "broker-a" in result.stdout
    consumer.wait_count(before + 4, timeout_s=5.0)


def test_changed_options_are_in_force_for_the_next_message(sides: Sides, shell: AdminShell) -> None:
    for side in sides:
        for key, value in (("regionId", "elsewhere"), ("traceOn", "false")):
            args = ("updateBrokerConfig", "-b", side.broker.address, "-k", key, "-v", value)
            assert "success" in shell.run(*args, namesrv=side.namesrv).output
    moved = (r"(Queue Offset|CommitLog Offset|Message Body Path|OffsetID): .*", r"\1")
    new_id = (r"\b[0-9A-F]{32}\b", "ID")
    compare_all(
        (
            Case("updateTopic -b {broker} -t later -r 1 -w 1", "create topic to"),
            Case("topicRoute -t later", '"readQueueNums":1', settles=True),
            Case("sendMessage -t later -p after", "SEND_OK", (new_id,)),
            Case("queryMsgByOffset -t later -b broker-a -i 0 -o 0", "MSG_REGION=elsewhere", (new_id, moved)),
            Case("queryMsgByOffset -t later -b broker-a -i 0 -o 0", "TRACE_ON=false", (new_id, moved)),
        ),
        sides,
        shell,
    )
