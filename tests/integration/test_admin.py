"""``orbitmq admin`` on a running cluster: JSON, hints, roles, terminals, completion, TLS."""

from __future__ import annotations

import functools
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from click.testing import CliRunner, Result
from tests.support.processes import interruptible_children
from tests.support.waiting import until

from orbitmq.cli.admin import AREAS, admin_commands, declarations
from orbitmq.cli.admin_kit.reference import json_keys
from orbitmq.client.sync import LoopThread
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.transport.client import RpcClient
from orbitmq.transport.tls import TlsMode
from orbitmq.wire.bodies import RegisterBrokerBody
from orbitmq.wire.headers import RegisterBrokerRequest

pytestmark = pytest.mark.slow
REGISTER_BROKER: Final = 103
WAIT_S: Final = 60.0
COMMANDS: Final = {command.name: command for area in AREAS for command in declarations(area)}


def run(name_server: str, *arguments: str) -> Result:
    return CliRunner().invoke(admin_commands, [*arguments, "-n", name_server])


def told(name_server: str, *arguments: str) -> Any:
    result = run(name_server, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(traceTopicEnable=True) as broker:
        broker.create_topic("orders", queue_count=2)
        until(lambda: run(broker.name_server, "topicRoute", "-t", "orders").exit_code == 0, "the route")
        for number in range(4):
            args = ("-p", f"body-{number}", "-k", f"key-{number}", "-c", "red" if number % 2 else "blue")
            queue = ("-b", "broker-a", "-i", str(number % 2))
            sent = told(broker.name_server, "sendMessage", "-t", "orders", *args, *queue)
            assert sent["sendStatus"] == "SEND_OK"
        assert run(broker.name_server, "updateSubGroup", "-b", broker.address, "-g", "readers").exit_code == 0
        yield broker


def paths(value: Any, prefix: str = "") -> set[str]:
    """Returns every key of a JSON value, in the notation of the reference."""
    if isinstance(value, dict):
        return {path for key, item in value.items() for path in paths(item, f"{prefix}.{key}")}
    if isinstance(value, list):
        return {path for item in value for path in paths(item, f"{prefix}[]")} or {f"{prefix}[]"}
    return {prefix}


def documented(path: str, keys: list[str]) -> bool:
    """Returns whether a path is a key, or is below one that contains data or another format."""
    path = path.lstrip(".")
    return any(
        path == key or path.startswith((f"{key}.", f"{key}[", f"{key.removesuffix('.*')}.")) for key in keys
    ) or any(key.startswith(f"{path}.") for key in keys)


LOOKS: Final = (
    "clusterList",
    "clusterList -m",
    "statsAll",
    "clusterRT -a 1",
    "topicList",
    "topicList -c",
    "topicRoute -t orders",
    "topicStatus -t orders",
    "topicClusterList -t orders",
    "allocateMQ -t orders -i a,b",
    "consumerProgress",
    "getConsumerConfig -g readers",
    "producer -b {broker}",
    "startMonitoring -i 0",
    "resetOffsetByTime -g readers -t orders -s 0",
    "skipAccumulatedMessage -g readers -t orders",
    "consumerProgress -g readers -t orders",
    "queryMsgByKey -t orders -k key-1",
    "queryMsgByOffset -t orders -b broker-a -i 0 -o 0",
    "queryCq -t orders -q 0 -i 0",
    "printMsg -t orders",
    "printMsgByQueue -t orders -a broker-a -i 0 -p true -f true",
    "consumeMessage -t orders -c 3",
    "checkMsgSendRT -t orders -a 1",
    "sendMsgStatus -b broker-a -c 1",
    "brokerStatus -b broker-a",
    "brokerConsumeStats -b {broker}",
    "getBrokerConfig -c DefaultCluster",
    "updateBrokerConfig -c DefaultCluster -k flushIntervalCommitLog -v 500",
    "getNamesrvConfig",
    "wipeWritePerm -b broker-a",
    "addWritePerm -b broker-a",
    "haStatus -b {broker}",
)


@pytest.mark.parametrize("line", LOOKS)
def test_json_has_the_keys_of_the_reference_and_no_others(line: str, cluster: RunningBroker) -> None:
    arguments = line.format(broker=cluster.address).split()
    result = run(cluster.name_server, *arguments, "--json")
    assert result.exit_code == 0, result.output
    keys = [key for kind in COMMANDS[arguments[0]].results for key in json_keys(kind)]
    found = {path for text in result.stdout.splitlines() for path in paths(json.loads(text))}
    assert [path for path in sorted(found) if not documented(path, keys)] == []
    text = run(cluster.name_server, *arguments)
    assert text.exit_code == 0
    assert text.stdout


@pytest.mark.parametrize("command", ["exportMetadata", "exportConfigs", "exportMetrics"])
def test_export_writes_what_it_tells(command: str, cluster: RunningBroker, tmp_path: Path) -> None:
    exported = told(
        cluster.name_server, command, "-c", "DefaultCluster", "-f", str(tmp_path / "new" / "place")
    )
    assert json.loads(Path(exported["path"]).read_text()) == exported["data"]
    if command == "exportMetadata":
        assert "orders" in exported["data"]["topicConfigTable"]
        assert "readers" in exported["data"]["subscriptionGroupTable"]


# -- reading -----------------------------------------------------------------------------------------------


def bodies(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [m["body"] for line in result.stdout.splitlines() for m in json.loads(line).get("messages", [])]


def test_messages_are_read_by_tag_time_count_and_place(cluster: RunningBroker) -> None:
    name_server = cluster.name_server
    everything = bodies(run(name_server, "printMsg", "-t", "orders", "--json"))
    assert {f"body-{number}" for number in range(4)} <= set(everything)
    red = bodies(run(name_server, "printMsg", "-t", "orders", "-s", "red", "--json"))
    assert sorted(red) == ["body-1", "body-3"]
    assert len(bodies(run(name_server, "consumeMessage", "-t", "orders", "-c", "3", "--json"))) == 3
    assert bodies(run(name_server, "printMsg", "-t", "orders", "-e", "1", "--json")) == []
    assert bodies(run(name_server, "printMsg", "-t", "orders", "-b", "now", "--json")) == []
    one = ["consumeMessage", "-t", "orders", "-b", "broker-a", "-i", "0", "-o", "1", "-c", "1", "--json"]
    assert bodies(run(name_server, *one)) == [everything[1]]


def test_message_is_found_by_every_id_it_has(cluster: RunningBroker) -> None:
    name_server = cluster.name_server
    sent = told(name_server, "sendMessage", "-t", "orders", "-p", "wanted", "-k", "only-one")
    until(
        lambda: run(name_server, "queryMsgByKey", "-t", "orders", "-k", "only-one").exit_code == 0,
        "the index",
    )
    for message_id in (sent["messageId"], sent["offsetMsgId"]):
        found = told(name_server, "queryMsgById", "-t", "orders", "-i", message_id)["messages"][0]["message"]
        assert (found["body"], found["messageId"]) == ("wanted", sent["messageId"])
    again = told(name_server, "queryMsgById", "-t", "orders", "-i", sent["messageId"], "-s", "true")
    assert again["messageId"] != sent["messageId"]
    nothing = run(name_server, "queryMsgByKey", "-t", "orders", "-k", "nothing")
    assert nothing.exit_code == 4
    assert "code 208" in nothing.stderr


# -- hints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant", "code"),
    [
        ("topicStatus -t order", "Did you mean orders", 4),
        ("consumerProgress -g raeders", "there is no consumer group 'raeders'", 4),
        ("statsAll -t Orders", "Did you mean orders?", 4),
        ("brokerStatus -b broker-b", "Did you mean broker-a?", 4),
        ("brokerStatus -c defaultcluster", "Did you mean DefaultCluster?", 4),
        ("brokerStatus -c other", "There is: DefaultCluster.", 4),
        ("queryMsgByOffset -t orders -b broker-a -i 0 -o 999", "it holds 0 to", 4),
        ("printMsgByQueue -t orders -a broker-x -i 0", "Did you mean broker-a?", 4),
        ("updateTopic -b {broker} -t bad$name", "(code 29)", 1),
        ("cloneGroupOffset -s readers -d nobody -t orders", "(code 26)", 4),
        ("getColdDataFlowCtrInfo -b {broker}", "code 3", 1),
        ("wipeWritePerm -b broker-b", "Did you mean broker-a?", 4),
        ("addWritePerm -b broker-b", "Did you mean broker-a?", 4),
        ("updateTopic -b {broker} -t empty -r 0 -w 0", "would have no queue", 1),
    ],
)
def test_failure_says_what_may_have_been_meant(
    line: str, meant: str, code: int, cluster: RunningBroker
) -> None:
    result = run(cluster.name_server, *line.format(broker=cluster.address).split())
    assert result.exit_code == code, result.output
    assert meant in result.stderr


def test_broker_that_is_down_keeps_its_row(cluster: RunningBroker) -> None:
    loop = LoopThread()
    # Its connection stays open: a name server removes brokers whose connection closed.
    client = loop.run(_register_dead_broker(cluster.name_server))
    try:
        rows = told(cluster.name_server, "clusterList", "--timeout", "1")["brokers"]
        by_name = {row["brokerName"]: row for row in rows}
        assert by_name["broker-dead"]["error"]
        assert by_name["broker-dead"]["version"] == ""
        assert by_name["broker-a"]["version"] == "V5_5_0"
        text = run(cluster.name_server, "clusterList", "--timeout", "1")
        assert "no answer from the broker at 127.0.0.1:1" in text.stdout
    finally:
        loop.run(client.close())
        loop.close()


def test_change_for_a_cluster_reaches_the_brokers_that_are_up_and_names_the_others(
    cluster: RunningBroker,
) -> None:
    loop = LoopThread()
    client = loop.run(_register_dead_broker(cluster.name_server, "DefaultCluster"))
    try:
        args = ("updateTopic", "-c", "DefaultCluster", "-t", "partly", "-r", "3", "-w", "3")
        result = run(cluster.name_server, *args, "--timeout", "2")
        assert result.exit_code == 1
        assert "1 of 2 servers did not take the change" in result.stderr
        assert f"Done: {cluster.address}." in result.stderr
        assert "Not done: 127.0.0.1:1: " in result.stderr
        routed = ("topicRoute", "-t", "partly")
        until(lambda: run(cluster.name_server, *routed).exit_code == 0, "the route of what was done")
    finally:
        loop.run(client.close())
        loop.close()


async def _register_dead_broker(name_server: str, cluster: str = "DeadCluster") -> RpcClient:
    client = RpcClient()
    header = RegisterBrokerRequest(
        broker_name="broker-dead",
        broker_addr="127.0.0.1:1",
        cluster_name=cluster,
        ha_server_addr="127.0.0.1:2",
        broker_id=0,
        compressed=False,
        body_crc32=0,
    )
    body = RegisterBrokerBody().encode()
    answer = await client.call(name_server, REGISTER_BROKER, header, body, timeout_s=WAIT_S)
    assert answer.code == 0, answer.remark
    return client


# -- roles -------------------------------------------------------------------------------------------------


def test_role_of_a_running_broker_is_changed_and_changed_back() -> None:
    with run_broker() as broker:

        def role() -> tuple[str, str]:
            config = told(broker.name_server, "getBrokerConfig", "-b", broker.address)["servers"][0]["config"]
            return config["brokerRole"], config["brokerId"]

        def registered_id() -> int:
            return int(told(broker.name_server, "clusterList")["brokers"][0]["brokerId"])

        def change(*arguments: str) -> None:
            result = run(broker.name_server, "changeRole", "-b", broker.address, *arguments)
            assert result.exit_code == 0, result.output
            assert broker.address in result.stdout

        assert role() == ("ASYNC_MASTER", "0")
        change("-r", "SYNC_MASTER")
        assert role() == ("SYNC_MASTER", "0")
        change("-r", "slave", "-i", "1")
        assert role() == ("SLAVE", "1")
        until(lambda: registered_id() == 1, "registration as a slave")
        change("-r", "ASYNC_MASTER", "-i", "0")
        assert role() == ("ASYNC_MASTER", "0")
        until(lambda: registered_id() == 0, "registration as the master")


# -- terminals and shells ----------------------------------------------------------------------------------


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "orbitmq.cli.main", "admin", *arguments]


def test_terminal_gets_a_table_without_hashes(cluster: RunningBroker) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command_line("topicStatus", "-t", "orders", "-n", cluster.name_server), stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait(WAIT_S) == 0
    os.close(ours)
    text = shown.decode()
    assert "Broker Name" in text
    assert "#Broker" not in text
    assert "broker-a" in text


def test_shell_is_offered_commands_flags_and_names(cluster: RunningBroker) -> None:
    def offered(words: str) -> str:
        env = os.environ | {
            "_ORBITMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        code = "from orbitmq.cli.main import main; main(prog_name='orbitmq')"
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
        ).stdout

    assert "topicStatus" in offered("orbitmq admin topicS")
    assert "--topic" in offered("orbitmq admin topicStatus --to")
    assert "orders" in offered(f"orbitmq admin topicStatus -n {cluster.name_server} -t or")
    assert "DefaultCluster" in offered(f"orbitmq admin brokerStatus -n {cluster.name_server} -c Def")
    # An unreachable name server offers no completions and causes no delay.
    assert offered("orbitmq admin topicStatus -n 127.0.0.1:1 -t or").strip() == ""


def test_repeated_look_goes_on_until_ctrl_c(cluster: RunningBroker) -> None:
    arguments = command_line("haStatus", "-b", cluster.address, "-i", "0.05")
    with interruptible_children():
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = 0
        while seen < 3:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            seen += line.startswith("#MasterAddr")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert "Traceback" not in process.stderr.read()


def test_reader_that_has_seen_enough_is_no_error(cluster: RunningBroker) -> None:
    line = " ".join(command_line("printMsg", "-t", "orders", "-n", cluster.name_server))
    done = subprocess.run(f"{line} | head -1", shell=True, capture_output=True, text=True, timeout=60)
    assert re.match(r"minOffset=0, maxOffset=\d+", done.stdout)
    assert "Traceback" not in done.stderr
    assert "orbitmq:" not in done.stderr


# -- the page ----------------------------------------------------------------------------------------------

PAGE: Final = (Path(__file__).parents[2] / "docs" / "admin.md").read_text("utf-8")


def test_first_commands_and_the_program_of_the_page_run() -> None:
    with run_broker() as broker:
        env = {"NAMESRV_ADDR": broker.name_server}

        def works(line: str) -> bool:
            arguments = shlex.split(line, comments=True)[2:]
            return CliRunner().invoke(admin_commands, arguments, env=env).exit_code == 0

        block = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
        lines = [line for line in block.splitlines() if line.startswith("orbitmq admin")]
        assert len(lines) >= 6
        for line in lines:
            # The name server knows a topic, and the index a key, only shortly afterwards.
            until(functools.partial(works, line), line)
        assert works(f"orbitmq admin updateSubGroup -b {broker.address} -g readers")
        assert works("orbitmq admin resetOffsetByTime -g readers -t orders -s 0")
        (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
        source = program.replace("127.0.0.1:9876", broker.name_server)
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
        assert done.stdout == "1\n", done.stderr


# -- TLS ---------------------------------------------------------------------------------------------------


def test_name_server_that_takes_only_tls_is_asked_with_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    config = NameServerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(tmp_path / "kv.json"),
        tls_mode=TlsMode.ENFORCING,
        tls_certificate=str(tmp_path / "cert.pem"),
        tls_key=str(tmp_path / "key.pem"),
    )
    loop = LoopThread()
    server = NameServer(config)
    try:
        loop.run(server.__aenter__())
        plain = run(server.address, "topicList", "--timeout", "2")
        assert plain.exit_code == 3
        assert "--tls" in plain.stderr
        assert run(server.address, "topicList", "--tls").exit_code == 0
        assert run(server.address, "topicList", "--tlsCa", str(tmp_path / "ca.pem")).exit_code == 0
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        assert run(server.address, "topicList", "--tlsCa", str(tmp_path / "other.pem")).exit_code == 3
    finally:
        loop.run(server.__aexit__(None, None, None))
        loop.close()
