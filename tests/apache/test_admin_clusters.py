"""`orbitmq admin` on other kinds of clusters: Apache 4.9.7, Apache with controllers, a master with its slave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.apache.harness import (
    LATEST,
    LEGACY,
    AdminShell,
    ApacheBroker,
    ApacheNamesrv,
    JavaClients,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.test_admin import (
    LOOKS,
    Look,
    agree,
    arguments,
    lines,
    orbitmq,
    said,
    settings,
)
from tests.apache.test_mqadmin_broker import Side, fill
from tests.support.ports import free_ports

WAIT_S: Final = 20.0


@dataclass(slots=True)
class Small(Side):
    """A cluster without data, in which only the servers have names."""

    slave: str = ""

    def facts(self) -> dict[str, str]:
        return {"broker": self.broker.address, "slave": self.slave}


@pytest.fixture(scope="module")
def mqadmin(apache_tools: None) -> Iterator[AdminShell]:
    with AdminShell(LATEST) as shell:
        yield shell


# -- Apache 4.9.7 ------------------------------------------------------------------------------------------

# mqadmin 5.5.0 cannot ask much of an old broker, so mqadmin 4.9.7 does. Left out is what it has no command, flag or
# column for.
NEWER: Final = frozenset(
    {"haStatus", "producer", "consumerProgress", "queryMsgByKey", "queryMsgById", "consumeMessage"}
)
LESS: Final = ("topicStatus -t orders", "topicStatus -t other", "getConsumerConfig -g lagging")
"""Of these the old tool tells less."""
OLD_LOOKS: Final = tuple(
    look
    for look in LOOKS
    if look.command.split()[0] not in NEWER
    and look.command not in (*LESS, "clusterList -c DefaultCluster -m", "topicRoute -t orders")
    and look.shows != "V5_5_0"
)


def test_old_cluster_is_told_of_alike(apache_tools: None, tmp_path: Path) -> None:
    with (
        AdminShell(LEGACY) as old_mqadmin,
        ApacheNamesrv(LEGACY) as namesrv,
        ApacheBroker(LEGACY, namesrv) as broker,
        JavaClients(LEGACY) as java,
    ):
        side = Side("4.9.7", namesrv, broker, tmp_path)
        fill(side, java)
        for look in OLD_LOOKS:
            agree(look, side, old_mqadmin)
        for command in LESS:
            look = next(one for one in LOOKS if one.command == command)
            theirs, ours = look.answers(side, old_mqadmin)
            assert len(theirs) > 2
            assert set(theirs) <= set(ours), command
        # The omitted values, compared with known ones.
        assert "Consume Inflight Total: 0" in said(side, "consumerProgress -g readers")
        assert "Consume Diff Total: 12" in said(side, "consumerProgress -g lagging")
        assert "body-0" in said(side, "queryMsgById -t orders -i {offset} -f UTF-8")
        refused = orbitmq(side, "haStatus -b {broker}")
        assert refused.exit_code == 1
        assert "older than the feature" in refused.stderr
        for command in (
            "updateTopic -b {broker} -t made -o true",
            "updateSubGroup -b {broker} -g made",
            "resetOffsetByTime -g lagging -t orders -s 0",
            "skipAccumulatedMessage -g lagging -t orders",
            "cloneGroupOffset -s readers -d made -t orders",
            "exportMetrics -c DefaultCluster -f {dir}",
            "sendMessage -t other -p new",
            "deleteSubGroup -c DefaultCluster -g made",
            "deleteTopic -c DefaultCluster -t made",
        ):
            said(side, command)


ACCESS: Final = """
accounts:
- accessKey: operator
  secretKey: 12345678
  whiteRemoteAddress:
  admin: true
"""


def test_broker_with_access_lists_wants_the_right_keys(apache_tools: None, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCESS)
    home = {"rocketmq.home.dir": str(tmp_path)}
    with (
        ApacheNamesrv(LEGACY) as namesrv,
        ApacheBroker(LEGACY, namesrv, workdir=tmp_path, properties=home, aclEnable=True) as broker,
    ):
        side = Small("guarded", namesrv, broker, tmp_path)
        command = "updateTopic -b {broker} -t guarded -r 2 -w 2"
        for keys in ((), ("--accessKey", "operator", "--secretKey", "wrong-secret")):
            refused = orbitmq(side, command, *keys)
            assert refused.exit_code == 1, refused.output
        keys = ("--accessKey", "operator", "--secretKey", "12345678")
        assert orbitmq(side, command, *keys).exit_code == 0
        wait_until(
            lambda: orbitmq(side, "topicStatus -t guarded", *keys).exit_code == 0,
            timeout_s=WAIT_S,
            what="the topic",
        )
        sent = orbitmq(side, "sendMessage -t guarded -p signed -k sign", *keys)
        assert "SEND_OK" in sent.stdout
        assert "signed" in orbitmq(side, "printMsg -t guarded", *keys).stdout


# -- controllers -------------------------------------------------------------------------------------------


def epochs(side: Side, text: str) -> list[str]:
    theirs = re.findall(r"epoch=(\d+), startOffset=(\d+), endOffset=(\d+)", text)
    ours = re.findall(r"^(\d+) +(\d+) +(\d+)$", text, re.MULTILINE)
    heads = [
        line
        for line in lines(side, text)
        if re.match(r"#(clusterName|brokerName|brokerAddr|brokerId) ", line)
    ]
    return heads + sorted(" ".join(one) for one in theirs or ours)


def replicas(side: Side, text: str) -> list[Any]:
    theirs = re.findall(r"brokerId=(\d+), brokerAddress='([\d.:]+)', alive=(\w+)", text)
    ours = re.findall(r"^(\d+) +([\d.:]+) +(true|false)$", text, re.MULTILINE)
    heads = [line for line in lines(side, text) if re.match(r"#[A-Za-z]+ \S+$", line)]
    return [*heads, sorted(theirs or ours)]


def test_controllers_are_told_of_and_obeyed_alike(
    apache_tools: None, mqadmin: AdminShell, tmp_path: Path
) -> None:
    port = free_ports()[0]
    controller = f"127.0.0.1:{port}"
    controllers: dict[str, Any] = {
        "enableControllerInNamesrv": True,
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(tmp_path / "controller"),
    }
    replica: dict[str, Any] = {"enableControllerMode": True, "controllerAddr": controller, "brokerId": -1}
    with (
        ApacheNamesrv(LATEST, **controllers) as namesrv,
        ApacheBroker(LATEST, namesrv, **replica) as first,
        ApacheBroker(LATEST, namesrv, **replica) as second,
    ):
        side = Small("controlled", namesrv, first, tmp_path)

        def ask(command: str) -> str:
            return said(side, command.replace("CONTROLLER", controller))

        wait_until(
            lambda: "#SyncStateSetNums\t2" in ask("getSyncStateSet -a CONTROLLER -b broker-a"),
            timeout_s=WAIT_S,
            what="both replicas in step",
        )
        for look in (
            Look(f"getControllerMetaData -a {controller}", "group1"),
            Look(f"getControllerConfig -a {controller}", "controllerType", settings),
            Look(f"getSyncStateSet -a {controller} -b broker-a", "#SyncStateSetNums", replicas),
            Look(f"getSyncStateSet -a {controller} -c DefaultCluster", "#SyncStateSetNums", replicas),
            Look("getBrokerEpoch -b broker-a", "#Epoch", epochs),
            Look("getBrokerEpoch -c DefaultCluster", "#Epoch", epochs),
        ):
            agree(look, side, mqadmin)
        ask("updateControllerConfig -a CONTROLLER -k enableElectUncleanMaster -v true")
        output = mqadmin.run("getControllerConfig", "-a", controller, namesrv=namesrv).output
        assert re.search(r"enableElectUncleanMaster *= *true", output)
        state = ask("getSyncStateSet -a CONTROLLER -b broker-a")
        other = 2 if "#MasterBrokerId\t1" in state else 1
        elected = ask(f"electMaster -a CONTROLLER -b {other} -bn broker-a -c DefaultCluster")
        assert (
            f"#BrokerMasterAddr\t{(second if first.address in state.split('InSync')[0] else first).address}"
            in elected
        )
        output = mqadmin.run("getSyncStateSet", "-a", controller, "-b", "broker-a", namesrv=namesrv).output
        assert f"#MasterBrokerId\t{other}" in output
        ask("cleanBrokerMetadata -a CONTROLLER -bn broker-a -c DefaultCluster -b 9")


# -- a master and its slave --------------------------------------------------------------------------------


def test_slave_of_our_master_is_told_of_alike(
    apache_tools: None, mqadmin: AdminShell, tmp_path: Path
) -> None:
    with (
        OrbitNamesrv() as namesrv,
        OrbitBroker(namesrv, None, workdir=None, brokerRole="ASYNC_MASTER") as master,
        OrbitBroker(namesrv, None, workdir=None, brokerRole="SLAVE", brokerId=1) as slave,
    ):
        side = Small("pair", namesrv, master, tmp_path, slave=slave.address)
        wait_until(
            lambda: "#SlaveNum\t1" in said(side, "haStatus -b {broker}"), timeout_s=WAIT_S, what="the slave"
        )
        said(side, "sendMessage -t broker-a -p copied")

        def still(side: Side, text: str) -> list[str]:
            return [
                re.sub(r"^(#Last\w+Time|#TransferSpeed\S+) \S+.*", r"\1", line) for line in lines(side, text)
            ]

        for look in (
            Look("haStatus -b {broker}", "#SlaveNum", still),
            Look("haStatus -b {slave}", "#MasterFlushOffset", still),
            Look("clusterList -m", "broker-a"),
            Look("getBrokerConfig -c DefaultCluster", "My Master: ", settings),
        ):
            agree(look, side, mqadmin)
        output = mqadmin.run(*arguments(side, "clusterList"), namesrv=namesrv).output
        assert re.findall(r"broker-a +(\d)", output) == re.findall(
            r"broker-a +(\d)", said(side, "clusterList")
        )
