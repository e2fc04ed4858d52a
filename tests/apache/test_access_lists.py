"""Access lists of 4.x (``plain_acl.yml``): the client and tools of 4.9.7 against Apache 4.9.7 and ours in one run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.apache.harness import (
    LEGACY,
    AdminShell,
    ApacheBroker,
    ClientError,
    JavaClients,
    Message,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv

Unique = Callable[[str], str]
ADMIN: Final[dict[str, Any]] = {"accessKey": "adminkey", "secretKey": "adminsecret"}
ONCE: Final[dict[str, Any]] = {"retryTimesWhenSendFailed": 0}
LISTS: Final = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: adminkey
  secretKey: adminsecret
  admin: true
- accessKey: normal01
  secretKey: secret-one
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [closed=DENY, open=PUB|SUB, readable=SUB]
"""
MORE_LISTS: Final = """
accounts:
- accessKey: fromfolder
  secretKey: folder-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


class Side(NamedTuple):
    name: str
    namesrv: OrbitNamesrv
    broker: ApacheBroker | OrbitBroker
    home: Path


def home_with_lists(folder: Path) -> Path:
    (folder / "conf" / "acl").mkdir(parents=True)
    (folder / "conf" / "plain_acl.yml").write_text(LISTS)
    (folder / "conf" / "acl" / "more.yml").write_text(MORE_LISTS)
    return folder


@pytest.fixture(scope="module")
def sides(apache_tools: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        names = [enter(OrbitNamesrv()) for _ in range(2)]
        homes = [home_with_lists(tmp_path_factory.mktemp(name)) for name in ("apache", "ours")]
        apache = enter(ApacheBroker(LEGACY, names[0], workdir=homes[0], aclEnable=True))
        ours = enter(OrbitBroker(names[1], aclEnable=True, rocketmqHome=str(homes[1])))
        yield [Side("apache", names[0], apache, homes[0]), Side("ours", names[1], ours, homes[1])]
        ours.check_log()


@pytest.fixture(scope="module")
def java(apache_tools: object) -> Iterator[JavaClients]:
    with JavaClients(LEGACY) as java:
        yield java


@pytest.fixture(scope="module")
def shell(apache_tools: object) -> Iterator[AdminShell]:
    with AdminShell(LEGACY) as shell:
        shell.sign_in(ADMIN["accessKey"], ADMIN["secretKey"])
        yield shell


def refusal(side: Side, call: Callable[[], object]) -> tuple[int | None, str]:
    """Returns code and text, without naturally varying parts: addresses and the Java frame at the end."""
    with pytest.raises(ClientError) as caught:
        call()
    text = caught.value.text.replace(side.broker.address, "BROKER")
    text = re.sub(r", org\.apache\.rocketmq\.\S+\([A-Za-z]+\.java:\d+\)", "", text)
    return caught.value.code, re.sub(r"cost \[\d+\]ms", "", text)


def test_java_client_of_4x_is_allowed_and_refused_alike(
    sides: list[Side], java: JavaClients, shell: AdminShell, unique: Unique
) -> None:
    seen: list[list[tuple[int | None, str]]] = []
    for side in sides:
        namesrv, address = side.namesrv, side.broker.address
        for topic in ("open", "closed", "readable"):
            shell.run("updateTopic", "-b", address, "-t", topic, "-r", "1", "-w", "1", namesrv=namesrv)
        group = unique("group")
        shell.run("updateSubGroup", "-b", address, "-g", group, namesrv=namesrv)
        keys: dict[str, Any] = {"accessKey": "normal01", "secretKey": "secret-one"}
        good = java.producer(unique("p"), namesrv, **keys, **ONCE)
        good.send(Message(topic="open", body=b"one"))
        consumer = java.push_consumer(group, namesrv, {"open": "*"}, from_first=True, **keys)
        assert [delivery.body for delivery in consumer.wait(1)] == [b"one"]
        of_folder: dict[str, Any] = {"accessKey": "fromfolder", "secretKey": "folder-secret"}
        other = java.producer(unique("p"), namesrv, **of_folder, **ONCE)
        other.send(Message(topic="closed", body=b"a file of conf/acl counts"))
        wrong = java.producer(unique("p"), namesrv, accessKey="normal01", secretKey="wrong-secret", **ONCE)
        nobody = java.producer(unique("p"), namesrv, accessKey="nobody01", secretKey="no-secret", **ONCE)
        unsigned = java.producer(unique("p"), namesrv, **ONCE)
        cases = [(good, "closed"), (good, "readable"), (wrong, "open"), (nobody, "open"), (unsigned, "open")]

        def send(case: tuple[Any, str]) -> Callable[[], object]:
            # To one queue: there the client does not wrap the broker's words into its own.
            producer, topic = case
            return lambda: producer.send(Message(topic=topic, body=b"no"), queue=producer.queues(topic)[0])

        seen.append([refusal(side, send(case)) for case in cases])
        for client in (good, other, wrong, nobody, unsigned, consumer):
            client.stop()
    assert seen[0] == seen[1]
    assert [code for code, _ in seen[1]] == [1] * 5
    assert "No default permission for topic:closed" in seen[1][0][1]


COMMANDS: Final = (
    ("updateAclConfig -b {broker} -a another1 -s another-secret -t T=PUB -i DENY -u SUB -m false", "success"),
    ("updateAclConfig -b {broker} -a another1 -s another-secret -t T=PUB,U=SUB", "success"),
    ("updateAclConfig -b {broker} -a abc -s abc", "length should longer than 6"),
    ("updateAclConfig -b {broker} -a another1 -s another-secret -t T=FOO", "Parse resource permission error"),
    ("getAclConfig -b {broker}", "another1"),
    ("clusterAclConfigVersion -b {broker}", "plain_acl.yml"),
    ("deleteAclConfig -b {broker} -a another1", "success"),
    ("deleteAclConfig -b {broker} -a another1", "deleted failed"),
    ("updateGlobalWhiteAddr -b {broker} -g 10.99.99.1,10.99.98.*", "success"),
    ("getAclConfig -b {broker}", "10.99.98.*"),
)


def test_five_commands_of_mqadmin_of_4x_say_the_same(sides: list[Side], shell: AdminShell) -> None:
    for command, expected in COMMANDS:
        for side in sides:
            words = command.format(broker=side.broker.address).split()
            result = shell.run(*words, namesrv=side.namesrv)
            assert expected in result.output, (side.name, command, result.output)


def test_changed_file_is_in_force_within_seconds(
    sides: list[Side], java: JavaClients, unique: Unique
) -> None:
    for side in sides:
        producer = java.producer(
            unique("p"), side.namesrv, accessKey="newcomer", secretKey="new-secret", **ONCE
        )

        def accepted() -> bool:
            try:
                producer.send(Message(topic="open", body=b"after the change"))  # noqa: B023 - called at once
            except ClientError:
                return False
            return True

        assert not accepted()
        more = MORE_LISTS.replace("fromfolder", "newcomer").replace("folder-secret", "new-secret")
        (side.home / "conf" / "acl" / "later.yml").write_text(more)
        wait_until(accepted, timeout_s=30, what=f"the new account at {side.name}")
        producer.stop()
