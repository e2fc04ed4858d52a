"""`orbitmq admin` and Apache's mqadmin 5.5.0 report the same facts about our cluster and an Apache one.

Both tools send the same query to the same cluster. Their output is parsed into facts, without layout, and the facts
must be equal. Values that change between two queries (rates, times of day) are masked, and a query whose result may
just have changed is repeated. For commands that change something, each tool changes its own object, and the two
objects must be alike afterwards.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from tests.apache.harness import (
    LATEST,
    AdminShell,
    ApacheBroker,
    ApacheNamesrv,
    JavaClients,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.process import HarnessTimeout
from tests.apache.test_mqadmin_broker import SAME_SETTINGS, TOPIC, Side, Sides, commit, fill, plain

from orbitmq.cli.admin import AREAS, admin_commands, declarations

AGREE_S: Final = 60.0
ALL: Final = frozenset(name for names in AREAS.values() for name in names)
# ACL 2.0 of the Apache broker: on, but not required from clients.
AUTH: Final[dict[str, Any]] = {
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationProvider": "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}


@pytest.fixture(scope="module")
def clusters(apache_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with (
        ApacheNamesrv(LATEST) as their_namesrv,
        OrbitNamesrv() as our_namesrv,
        ApacheBroker(LATEST, their_namesrv, **AUTH) as their_broker,
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
        our_broker.check_log()


@pytest.fixture(scope="module")
def mqadmin(apache_tools: None) -> Iterator[AdminShell]:
    with AdminShell(LATEST) as shell:
        yield shell


def arguments(side: Side, command: str) -> list[str]:
    return [part.format(**side.facts()) for part in command.split()]


def orbitmq(side: Side, command: str, *more: str) -> Result:
    args = [*arguments(side, command), *more]
    # Before the command: that is a place for it, too.
    return CliRunner().invoke(admin_commands, ["-n", side.namesrv.address, *args])


def said(side: Side, command: str) -> str:
    """Returns the output of our tool for a command that must succeed."""
    result = orbitmq(side, command)
    assert result.exit_code == 0, f"{side.name}: {command}\n{result.output}"
    return result.stdout


# -- reading facts out of what was printed -----------------------------------------------------------------

Reader = Callable[[Side, str], Any]
_RATES: Final = ((r"\d+\.\d\d\b", "RATE"), (r"TPS: [\d.E-]+", "TPS: RATE"))
_RULE: Final = re.compile(r"^[-=]+$")


def lines(side: Side, text: str) -> list[str]:
    """Every line, blanks and rules aside."""
    return [line for line in plain(side, text, _RATES) if not _RULE.match(line)]


def rows(side: Side, text: str) -> list[str]:
    """Lines of a table without its header."""
    return [line for line in lines(side, text) if not line.startswith("#")]


def tail_of_rows(side: Side, text: str) -> list[str]:
    """Rows without their first column."""
    return [line.partition(" ")[2] for line in rows(side, text)]


def without_lag(side: Side, text: str) -> list[str]:
    """Returns every line without our additional column Lag, which is last, and without its total."""
    kept = [line for line in lines(side, text) if not line.startswith("Lag Total: ")]
    return [line if line.startswith("Consume ") else line.rpartition(" ")[0] for line in kept]


def below_header(side: Side, text: str) -> list[str]:
    """Rows of the table that starts with `#brokerName`; what stands before it are words."""
    return rows(side, text[text.index("#brokerName") :])


def settings(side: Side, text: str) -> list[str]:
    """`key = value` lines."""
    return [line for line in lines(side, text) if re.match(r"\w+ ?= ", line)]


def names_of_figures(side: Side, text: str) -> list[str]:
    """Returns the keys of `key: value` lines whose value changes."""
    return sorted(re.findall(r"^(\w+) *: ", text, re.MULTILINE))


def documents(side: Side, text: str) -> Any:
    """Returns the JSON documents in an output; Apache leaves numeric keys unquoted."""
    return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text[text.index("{") : text.rindex("}") + 1]))


def members(side: Side, text: str) -> list[str]:
    """Returns number, client and version of members; Apache adds the file it wrote."""
    return [" ".join(line.split()[:3]) for line in rows(side, text) if line[:1].isdigit()]


def their_producers(side: Side, text: str) -> list[str]:
    pattern = r"group \((\S+)\) instance : clientId=(\S+),remoteIP=(\S+), language=(\w+), version=(\d+)"
    return sorted(" ".join(found) for found in re.findall(pattern, text))


def our_producers(side: Side, text: str) -> list[str]:
    return sorted(" ".join(line.split()[:5]) for line in text.splitlines()[1:])


def their_shares(side: Side, text: str) -> dict[str, int]:
    """Returns how many queues each client gets. A tool that does not sort them like clients cannot tell
    which ones.
    """
    return {client: len(queues) for client, queues in documents(side, text)["result"].items()}


def our_shares(side: Side, text: str) -> dict[str, int]:
    clients = [line.split()[0] for line in text.splitlines()[1:]]
    return {client: clients.count(client) for client in clients}


_LOCAL: Final = re.compile(r"^Message Body (Path|Size):")


def detail(side: Side, text: str) -> list[str]:
    """Returns the fields of a message and how each group handled it."""
    fields = [line for line in lines(side, text) if re.match(r"[A-Z]\w*( \w+)?: ", line)]
    theirs = re.findall(r"consumerGroup=(\S+), trackType=(\w+)", text)
    ours = re.findall(r"^(\S+) +([A-Z_]+)(?: +code.*)?$", text, re.MULTILINE)
    tracks = [" ".join(one) for one in theirs or ours]
    return [line for line in fields if not _LOCAL.match(line) and "MessageTrack" not in line] + sorted(tracks)


_FIELDS: Final = re.compile(
    r"\b(brokerName|queueId|storeSize|queueOffset|sysFlag|bornTimestamp|storeTimestamp|msgId|commitLogOffset|"
    r"bodyCRC|reconsumeTimes|preparedTransactionOffset|topic|flag)='?([^,' \]]+)"
)


def printed(side: Side, text: str) -> list[Any]:
    """Messages: id, fields, properties, body."""
    found: list[Any] = []
    for line in text.splitlines():
        if not line.startswith("MSGID: "):
            continue
        properties = re.search(r"properties=\{([^}]*)\}", line)
        hosts = re.findall(r"(?:born|store)Host=/?([\d.:]+)", line)
        assert properties is not None
        found.append(
            (
                line.split()[1],
                sorted(set(_FIELDS.findall(line.replace(properties[0], "")))),
                hosts,
                sorted(properties[1].split(", ")),
                line.partition(" BODY: ")[2],
            )
        )
    assert found, text
    return sorted(found)


def tags(side: Side, text: str) -> list[str]:
    return [line for line in lines(side, text) if line.startswith("Tag: ")]


def their_units(side: Side, text: str) -> list[str]:
    ranges = re.findall(r"max: (\d+), min: (\d+)", text)
    units = re.findall(
        r"idx: (\d+)\nConsumeQueueData\{physicOffset=(\d+), physicSize=(\d+), tagsCode=(-?\d+)", text
    )
    return [" ".join(one) for one in ranges + units]


def our_units(side: Side, text: str) -> list[str]:
    ranges = re.findall(r"max: (\d+), min: (\d+)", text)
    units = [line.split()[:4] for line in text.splitlines() if line[:1].isdigit()]
    return [" ".join(one) for one in [*ranges, *units]]


def runnings(side: Side, text: str) -> list[str]:
    """Returns a consumer's report about itself, without changing values and stacks."""
    head = text.partition("#Consumer Offset#")[0]
    return [
        re.sub(r"^((?:messageListener|PROP_\w*TIMESTAMP|consumeTimestamp|subscription)) : .*", r"\1", line)
        for line in lines(side, head)
    ]


# -- commands that look ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """A command, a text mqadmin prints for it (so that two failures do not count as agreement), and the parsers of
    either tool's output.
    """

    command: str
    shows: str
    theirs: Reader = lines
    ours: Reader | None = None
    our_command: str = ""

    def __str__(self) -> str:
        return self.command

    def answers(self, side: Side, shell: AdminShell) -> tuple[Any, Any]:
        output = shell.run(*arguments(side, self.command), namesrv=side.namesrv).output
        assert self.shows in output, f"{side.name}: {self.command}\n{output}"
        return (
            self.theirs(side, output),
            (self.ours or self.theirs)(side, said(side, self.our_command or self.command)),
        )


def agree(look: Look, side: Side, shell: AdminShell) -> None:
    """Checks that both tools report the same, at the latest when recent changes have settled."""
    last: list[tuple[Any, Any]] = []

    def same() -> bool:
        last[:] = [look.answers(side, shell)]
        return bool(last[0][0] == last[0][1])

    try:
        wait_until(same, timeout_s=AGREE_S, what="agreement")
    except HarnessTimeout:
        theirs, ours = (json.dumps(one, indent=1, default=str).splitlines() for one in last[0])
        shown = "\n".join(difflib.unified_diff(theirs, ours, "mqadmin", "orbitmq", lineterm="", n=1))
        pytest.fail(f"{side.name}: {look.command}\n{shown}")


LOOKS: Final = (
    Look("clusterList -m", "broker-a"),
    Look("clusterList -c DefaultCluster -m", "broker-a"),
    Look("topicList", TOPIC),
    Look("topicList -c", "readers", rows),
    Look("topicRoute -t orders", "readQueueNums", documents),
    Look("topicRoute -t orders -l", "Total:"),
    Look("topicStatus -t orders", "broker-a"),
    Look("topicStatus -t other", "broker-a"),
    Look("topicClusterList -t orders", "DefaultCluster"),
    Look("allocateMQ -t orders -i 10.0.0.1,10.0.0.2,10.0.0.3", "10.0.0.2", their_shares, our_shares),
    Look("consumerProgress -g readers", TOPIC, ours=without_lag),
    Look("consumerProgress -g readers -s true", TOPIC, ours=without_lag),
    Look("consumerProgress -g lagging", "Diff Total: 12", ours=without_lag),
    Look("consumerProgress -g pickers -t orders", TOPIC, ours=without_lag),
    Look(
        "consumerConnection -g pickers",
        "red",
        lambda side, text: lines(side, text.replace("Below is subscription:", "")),
    ),
    Look("consumerStatus -g readers", "V5_5_0", members),
    Look("consumerStatus -g readers -i {client}", "#Consumer Subscription#", runnings),
    Look("producerConnection -g makers -t orders", "JAVA", tail_of_rows, rows),
    Look("producer -b {broker}", "makers", their_producers, our_producers),
    Look("getConsumerConfig -g lagging", "lagging", settings),
    Look("brokerConsumeStats -b {broker}", "Diff Total: 12"),
    Look("brokerConsumeStats -b {broker} -l 3", "lagging"),
    Look("brokerConsumeStats -b {broker} -o true", "Diff Total: 0"),
    Look("brokerStatus -b {broker}", "msgPutTotalTodayNow", names_of_figures),
    Look("getBrokerConfig -b {broker}", "brokerName", settings),
    Look("getNamesrvConfig", "listenPort", settings),
    Look("haStatus -b {broker}", "#SlaveNum"),
    Look("haStatus -c DefaultCluster", "#SlaveNum"),
    Look("statsAll", "NO_CONSUMER"),
    Look("statsAll -t orders", "pickers"),
    Look("queryMsgByKey -t orders -k key-3", "#IndexKey"),
    Look("queryMsgByKey -t other -k same -m 2", "#IndexKey", rows),
    Look("queryMsgByUniqueKey -t orders -i {unique}", "TAGS=blue", detail),
    Look("queryMsgById -t orders -i {offset}", "key-0", detail),
    Look("queryMsgById -t orders -i {unique}", "key-0", detail),
    Look("queryMsgByOffset -t orders -b broker-a -i 1 -o 2", "number=9", detail),
    Look("queryMsgById -t orders -i {offset} -f UTF-8", "body-0", detail),
    Look("queryCq -t orders -q 1 -i 0 -c 9 -b {broker} -g pickers", "tagsCode", their_units, our_units),
    Look("queryCq -t orders -q 0 -i 2", "tagsCode", their_units, our_units),
    Look("printMsg -t orders -d true", "body-19", printed),
    Look("printMsg -t orders -s red -d true", "body-19", printed),
    Look("printMsgByQueue -t orders -a broker-a -i 0 -p true -d true -f true", "body-16", printed),
    Look("printMsgByQueue -t orders -a broker-a -i 1 -f true", "Tag: red", tags),
    Look("consumeMessage -t orders -b broker-a -i 0 -o 0 -c 2", "body-0", printed),
)


@pytest.mark.parametrize("look", LOOKS, ids=str)
@pytest.mark.parametrize("name", ["apache", "ours"])
def test_both_tools_tell_the_same(name: str, look: Look, clusters: Sides, mqadmin: AdminShell) -> None:
    agree(look, clusters.theirs if name == "apache" else clusters.ours, mqadmin)


def test_cluster_list_tells_the_same_of_every_broker(clusters: Sides, mqadmin: AdminShell) -> None:
    """Rates, hours and disk usage change; addresses, versions and activity do not."""

    def still(side: Side, text: str) -> list[Any]:
        found = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
        return [(*cells[:5], cells[-1]) for cells in found]

    for side in clusters:
        agree(Look("clusterList", "V5_5_0", still), side, mqadmin)


def test_groups_are_listed_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    def still(side: Side, text: str) -> list[str]:
        # mqadmin's own group appears and disappears; the rate changes.
        kept = (line for line in rows(side, text) if not line.startswith("TOOLS_CONSUMER"))
        return [re.sub(r"(PUSH \S+|OFFLINE) \d+ ", r"\1 RATE ", line) for line in kept]

    def still_without_lag(side: Side, text: str) -> list[str]:
        return [line.rpartition(" ")[0] for line in still(side, text)]

    for side in clusters:
        agree(Look("consumerProgress", "lagging", still, still_without_lag), side, mqadmin)


@pytest.mark.parametrize("command", ["exportConfigs", "exportMetadata", "exportMetrics"])
def test_exports_hold_the_same(command: str, clusters: Sides, mqadmin: AdminShell) -> None:
    momentary = re.compile(r"Tps|Time|DiskRatio")

    def still(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: still(item) for key, item in value.items() if not momentary.search(key)}
        return sorted(value) if isinstance(value, list) else value

    for side in clusters:
        found = []
        for tool in ("mqadmin", "orbitmq"):
            directory = side.directory / f"{tool}-{command}"
            line = f"{command} -c DefaultCluster -f {directory}"
            if tool == "mqadmin":
                assert "success" in mqadmin.run(*line.split(), namesrv=side.namesrv).output
            else:
                said(side, line)
            (file,) = directory.iterdir()
            found.append((file.name, still(json.loads(file.read_text()))))
        assert found[1] == found[0], side.name


def test_traces_are_told_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        sent = json.loads(orbitmq(side, "sendMessage -t other -p traced -m true --json").stdout)
        look = f"queryMsgTraceById -i {sent['messageId']}"
        wait_until(
            lambda side=side, look=look: orbitmq(side, look).exit_code == 0,  # type: ignore[misc]  # mypy infers no type
            timeout_s=AGREE_S,
            what="the trace",
        )
        agree(Look(look, "orbitmq-admin-send"), side, mqadmin)


# -- commands that change something ------------------------------------------------------------------------


def change(side: Side, shell: AdminShell, command: str, shows: str = "success") -> None:
    """Runs a command with both tools: `{who}` is `theirs` for mqadmin and `ours` for our tool."""
    facts = side.facts()
    theirs = [part.format(**facts, who="theirs") for part in command.split()]
    output = shell.run(*theirs, namesrv=side.namesrv).output
    assert shows in output, f"{side.name}: {command}\n{output}"
    said(side, command.replace("{who}", "ours"))


def alike(side: Side, shell: AdminShell, command: str, shows: str) -> None:
    """Checks that mqadmin shows the same for the objects of both tools, except for their names."""
    told: list[list[str]] = []

    def same() -> bool:
        outputs = [
            shell.run(
                *(part.format(**side.facts(), who=who) for part in command.split()), namesrv=side.namesrv
            ).output
            for who in ("theirs", "ours")
        ]
        told[:] = [
            plain(side, output.replace(who, "WHO"), _RATES)
            for output, who in zip(outputs, ("theirs", "ours"), strict=True)
        ]
        return told[0] == told[1] and shows in outputs[0]

    wait_until(same, timeout_s=AGREE_S, what=f"{side.name}: {command}: {told}")


def test_topics_are_made_changed_and_deleted_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        change(side, mqadmin, "updateTopic -b {broker} -t topic-{who} -r 3 -w 5 -a +message.type=FIFO")
        alike(side, mqadmin, "topicRoute -t topic-{who}", '"writeQueueNums":5')
        change(side, mqadmin, "updateTopicPerm -b {broker} -t topic-{who} -p 4")
        alike(side, mqadmin, "topicRoute -t topic-{who}", '"perm":4')
        change(side, mqadmin, "updateTopic -c DefaultCluster -t topic-{who} -o true")
        alike(side, mqadmin, "updateOrderConf -t topic-{who} -m get", "broker-a:8")
        change(side, mqadmin, "updateOrderConf -t topic-{who} -m put -v broker-a:7")
        alike(side, mqadmin, "updateOrderConf -t topic-{who} -m get", "broker-a:7")
        change(side, mqadmin, "updateOrderConf -t topic-{who} -m delete")
        alike(side, mqadmin, "updateOrderConf -t topic-{who} -m get", "CODE: 22")
        change(side, mqadmin, "deleteTopic -c DefaultCluster -t topic-{who}")
        alike(side, mqadmin, "topicRoute -t topic-{who}", "CODE: 17")


def test_groups_are_made_changed_and_deleted_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        command = "updateSubGroup -b {broker} -g group-{who} -r 3 -s false -d true -q 2 -w 2 -a false"
        change(side, mqadmin, command)
        alike(side, mqadmin, "getConsumerConfig -g group-{who}", "retryMaxTimes")
        change(side, mqadmin, "updateSubGroup -c DefaultCluster -g group-{who} -o true")
        alike(side, mqadmin, "getConsumerConfig -g group-{who}", "consumeMessageOrderly")
        change(side, mqadmin, "deleteSubGroup -c DefaultCluster -g group-{who} -r true")
        alike(side, mqadmin, "getConsumerConfig -g group-{who}", "")


def test_lists_are_stored_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        for who in ("theirs", "ours"):
            topics = [
                {"topicName": f"list-{who}-{n}", "readQueueNums": 2, "writeQueueNums": n} for n in (1, 2)
            ]
            groups = [{"groupName": f"list-{who}-{n}", "retryMaxTimes": n} for n in (1, 2)]
            (side.directory / f"topics-{who}.json").write_text(json.dumps(topics))
            (side.directory / f"groups-{who}.json").write_text(json.dumps(groups))
        change(side, mqadmin, "updateTopicList -b {broker} -f {dir}/topics-{who}.json")
        alike(side, mqadmin, "topicRoute -t list-{who}-1", '"writeQueueNums":1')
        change(side, mqadmin, "updateSubGroupList -b {broker} -f {dir}/groups-{who}.json")
        alike(side, mqadmin, "getConsumerConfig -g list-{who}-2", "retryMaxTimes")


def test_settings_are_changed_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        for value, command in ((501, "-c DefaultCluster"), (502, "-b {broker}")):
            said(side, f"updateBrokerConfig {command} -k flushIntervalCommitLog -v {value}")
            output = mqadmin.run("getBrokerConfig", "-b", side.broker.address, namesrv=side.namesrv).output
            assert re.search(rf"flushIntervalCommitLog *= *{value}\b", output)
        said(side, "updateNamesrvConfig -k orderMessageEnable -v true")
        output = mqadmin.run("getNamesrvConfig", namesrv=side.namesrv).output
        assert re.search(r"orderMessageEnable *= *true", output)
        said(side, "updateKvConfig -s ORDER_TOPIC_CONFIG -k kept -v broker-a:1")
        args = ("updateOrderConf", "-t", "kept", "-m", "get")
        assert "broker-a:1" in mqadmin.run(*args, namesrv=side.namesrv).output
        said(side, "deleteKvConfig -s ORDER_TOPIC_CONFIG -k kept")
        assert "CODE: 22" in mqadmin.run(*args, namesrv=side.namesrv).output


def test_write_permission_is_wiped_and_given_back_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        for command, perm in (("wipeWritePerm", 4), ("addWritePerm", 6)):
            counts = []
            output = mqadmin.run(command, "-b", "broker-a", namesrv=side.namesrv).output
            counts.append(int(re.findall(r"OK, (\d+)", output)[0]))
            told = json.loads(orbitmq(side, f"{command} -b broker-a --json").stdout)
            counts.append(told["nameServers"][0]["topicCount"])
            assert counts[0] == counts[1] > 0
            route = json.loads(orbitmq(side, "topicRoute -t other --json").stdout)
            assert route["route"]["queueDatas"][0]["perm"] == perm


def test_offsets_are_reset_skipped_and_cloned_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        for command in (
            "resetOffsetByTime -g lagging -t orders -s -1",
            "resetOffsetByTime -g lagging -t orders -s 0",
            "skipAccumulatedMessage -g lagging -t orders",
        ):
            agree(Look(command, "#brokerName", below_header), side, mqadmin)
        # A time in the middle: before the last message of queue 0 was stored.
        told = json.loads(orbitmq(side, "queryMsgByOffset -t orders -b broker-a -i 0 -o 3 --json").stdout)
        at = told["messages"][0]["message"]["storeTimestamp"]
        agree(
            Look(f"resetOffsetByTime -g lagging -t orders -s {at}", "#brokerName", below_header),
            side,
            mqadmin,
        )
        for offset in (1, 3):
            said(side, f"resetOffsetByTime -g lagging -t orders -s 0 -b {{broker}} -q 1 -o {offset}")
            output = mqadmin.run("consumerProgress", "-g", "lagging", namesrv=side.namesrv).output
            assert re.search(rf"^orders +broker-a +1 +5 +{offset} ", output, re.MULTILINE)
        change(side, mqadmin, "updateSubGroup -b {broker} -g clone-{who}")
        change(side, mqadmin, "cloneGroupOffset -s readers -d clone-{who} -t orders")
        progress = [
            [
                line
                for line in lines(side, said(side, f"consumerProgress -g clone-{who} -t orders"))
                if TOPIC in line
            ]
            for who in ("theirs", "ours")
        ]
        assert progress[0] == progress[1]
        assert len(progress[0]) == 4
        for queue_id in range(4):
            commit(side, "lagging", TOPIC, queue_id, 2)


def test_housekeeping_is_done_by_both(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
            for target in ("-b {broker}", "-c DefaultCluster"):
                change(side, mqadmin, f"{command} {target}")
                told = json.loads(orbitmq(side, f"{command} {target} --json").stdout)
                assert [one["target"] for one in told["changes"]] == [side.broker.address]
        for target in ("-b {broker}", "-c DefaultCluster"):
            for value, dry in (("true", "false"), ("false", "true")):  # mqadmin 5.5.0 reads the flag inverted
                shown = f"brokerName=broker-a, brokerAddr={side.broker.address}, dryRun={dry}"
                change(
                    side, mqadmin, f"exportPopRecord {target} -d {value}", f"Export broker records, {shown}"
                )
            told = json.loads(orbitmq(side, f"exportPopRecord {target} --json").stdout)
            assert [one["target"] for one in told["changes"]] == [side.broker.address]


def test_messages_are_sent_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    new_id = re.compile(r"\b[0-9A-F]{32}\b")
    for side in clusters:
        said(side, "updateTopic -b {broker} -t tool -r 1 -w 1")
        wait_until(
            lambda side=side: orbitmq(side, "topicRoute -t tool").exit_code == 0,  # type: ignore[misc]  # mypy infers no type
            timeout_s=AGREE_S,
            what="the route",
        )
        for command, shows in (
            ("sendMessage -t tool -p hello -k tool-key -c tool-tag", "SEND_OK"),
            ("sendMessage -t tool -p again -b broker-a -i 0", "SEND_OK"),
            ("checkMsgSendRT -t tool -a 3 -s 10", "Avg RT"),
        ):
            theirs = mqadmin.run(*arguments(side, command), namesrv=side.namesrv).output
            assert shows in theirs
            both = [lines(side, new_id.sub("ID", text)) for text in (theirs, said(side, command))]
            assert [re.sub(r"(true|RT:) \S+$", r"\1 T", line) for line in both[0]] == [
                re.sub(r"(true|RT:) \S+$", r"\1 T", line) for line in both[1]
            ]
        found = printed(side, said(side, "printMsg -t tool"))
        assert sorted(one[-1] for one in found) == sorted(["hello", "again", *["a" * 10] * 3] * 2)
        status = mqadmin.run("sendMsgStatus", "-b", "broker-a", "-c", "2", namesrv=side.namesrv).output
        ours = json.loads(orbitmq(side, "sendMsgStatus -b broker-a -c 2 --json").stdout)["sends"]
        assert (
            re.findall(r"sendStatus=(\w+)", status) == [one["sendStatus"] for one in ours] == ["SEND_OK"] * 2
        )
        rt = json.loads(orbitmq(side, "clusterRT -a 2 --json").stdout)["brokers"]
        assert [(one["brokerName"], one["successCount"]) for one in rt] == [("broker-a", 2)]


def test_message_is_consumed_on_demand_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    for side in clusters:
        for key in ("queryMsgById -t orders -i {offset}", "queryMsgByUniqueKey -t orders -i {unique}"):
            command = f"{key} -g readers -d {{client}}"
            look = Look(
                command,
                "CR_SUCCESS",
                lambda _, text: sorted(set(re.findall(r"(order|autoCommit|consumeResult)=(\w+)", text))),
            )
            agree(look, side, mqadmin)


# -- features of Apache's broker alone -----------------------------------------------------------------------


def test_users_and_access_lists_are_kept_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    side = clusters.theirs
    change(side, mqadmin, "createUser -b {broker} -u user-{who} -p secret -t Normal")
    change(side, mqadmin, "updateUser -b {broker} -u user-{who} -s disable")
    acl = "-b {broker} -s User:user-{who} -r Topic:orders,Group:readers -a Pub,Sub -i 10.0.0.1"
    change(side, mqadmin, f"createAcl {acl} -d Allow")
    change(side, mqadmin, f"updateAcl {acl} -d Deny")
    for command, shows in (
        ("listUser -b {broker}", "user-ours"),
        ("listUser -b {broker} -f theirs", "user-theirs"),
        ("getUser -b {broker} -u user-ours", "disable"),
        ("listAcl -b {broker}", "User:user-ours"),
        ("listAcl -b {broker} -s ours", "Deny"),
        ("getAcl -b {broker} -s User:user-ours", "Group:readers"),
    ):
        agree(Look(command, shows), side, mqadmin)
    alike(side, mqadmin, "getUser -b {broker} -u user-{who}", "disable")
    alike(side, mqadmin, "getAcl -b {broker} -s User:user-{who}", "Deny")
    change(side, mqadmin, "copyUser -f {broker} -t {broker} -u user-{who}")
    change(side, mqadmin, "copyAcl -f {broker} -t {broker} -s User:user-{who}")
    change(side, mqadmin, "deleteAcl -b {broker} -s User:user-{who} -r Topic:orders")
    alike(side, mqadmin, "getAcl -b {broker} -s User:user-{who}", "Group:readers")
    change(side, mqadmin, "deleteAcl -b {broker} -s User:user-{who}")
    change(side, mqadmin, "deleteUser -b {broker} -u user-{who}")
    agree(Look("listUser -b {broker}", "", rows), side, mqadmin)


def test_cold_reads_and_engines_are_set_alike(clusters: Sides, mqadmin: AdminShell) -> None:
    side = clusters.theirs
    limited = "updateColdDataFlowCtrGroupConfig -b {broker} -g group-{who} -v 100"
    change(side, mqadmin, limited)
    agree(Look("getColdDataFlowCtrInfo -b {broker}", "configTable", documents), side, mqadmin)
    change(side, mqadmin, "removeColdDataFlowCtrGroupConfig -b {broker} -g group-{who}")
    agree(Look("getColdDataFlowCtrInfo -b {broker}", "configTable", documents), side, mqadmin)
    change(side, mqadmin, "setCommitLogReadAheadMode -b {broker} -m 0")
    change(side, mqadmin, "switchTimerEngine -b {broker} -e F")
    change(side, mqadmin, "resetMasterFlushOffset -b {broker} -o 0")
    change(side, mqadmin, "setConsumeMode -b {broker} -t orders -g lagging -m PULL")


def test_what_a_broker_refuses_is_an_error_with_its_code(clusters: Sides) -> None:
    """Apache's own refusal, and that of our broker to what only Apache's has."""
    epochs = orbitmq(clusters.theirs, "getBrokerEpoch -b broker-a")
    assert epochs.exit_code == 1
    assert "(code 1)" in epochs.stderr
    for command in (
        "getColdDataFlowCtrInfo -b {broker}",
        "getBrokerEpoch -b broker-a",
    ):
        result = orbitmq(clusters.ours, command)
        assert result.exit_code == 1, command
        assert "code 3" in result.stderr, result.stderr


# -- counting ----------------------------------------------------------------------------------------------


def compared() -> set[str]:
    """Returns the names of the commands run with both tools above, on both clusters."""
    source = "\n".join(_SOURCES)
    return {name for name in ALL if re.search(rf"\b{name}\b", source)}


def _source(function: Callable[..., object]) -> str:
    import inspect

    return inspect.getsource(function)


_SOURCES: Final[Sequence[str]] = [
    *(look.command for look in LOOKS),
    *(
        _source(function)
        for function in (
            test_cluster_list_tells_the_same_of_every_broker,
            test_groups_are_listed_alike,
            test_traces_are_told_alike,
            test_topics_are_made_changed_and_deleted_alike,
            test_groups_are_made_changed_and_deleted_alike,
            test_lists_are_stored_alike,
            test_settings_are_changed_alike,
            test_write_permission_is_wiped_and_given_back_alike,
            test_offsets_are_reset_skipped_and_cloned_alike,
            test_housekeeping_is_done_by_both,
            test_messages_are_sent_alike,
        )
    ),
    "exportConfigs exportMetadata exportMetrics",
]


def test_at_least_fifty_commands_are_compared_on_both_clusters() -> None:
    assert len(compared()) >= 50, sorted(compared())


def test_every_command_is_known_to_mqadmin(apache_tools: None, mqadmin: AdminShell) -> None:
    """Names and short flags are those of 5.5.0; our own additions are marked."""
    known = re.findall(r"^ {3}(\w+) ", mqadmin.run().output, re.MULTILINE)
    assert ALL - set(known) == {"changeRole"}
    more: dict[str, set[str]] = {}
    for area in AREAS:
        for command in declarations(area):
            if command.name == "changeRole":
                continue
            usage = mqadmin.run("help", command.name).output
            theirs = set(re.findall(r"^ -(\w+),", usage, re.MULTILINE)) | {"attributes"}
            ours = {name.lstrip("-") for flag in command.flags for name in flag.names[:1]}
            if ours - theirs:
                more[command.name] = ours - theirs
            assert theirs - ours <= {"h", "n", "attributes"} | _LEFT_OUT.get(command.name, set()), (
                command.name
            )
    # More than mqadmin's has: a period between two looks; topics that a terminal hides.
    assert more == {"startMonitoring": {"i"}, "topicList": {"a"}}


_LEFT_OUT: Final = {"queryMsgByUniqueKey": {"e", "s"}}  # read by mqadmin and then not used
