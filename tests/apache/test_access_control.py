"""Access control as seen by official clients and tools: the same cases against Apache 5.5.0 and ours in one run.

One broker of each with the same configuration; Java clients of both releases, mqadmin's twelve commands, TLS with a
default broker, and masters and slaves of either make with authentication on. mqadmin and one of the clients use TLS
and check certificates.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest
from tests.apache.harness import (
    LATEST,
    LEGACY,
    AdminShell,
    ApacheBroker,
    ApacheNamesrv,
    ClientError,
    JavaClients,
    Message,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv

Unique = Callable[[str], str]
ROOT: Final[dict[str, Any]] = {"accessKey": "root", "secretKey": "root-secret-1"}
AUTH: Final = "org.apache.rocketmq.auth"
SECURED: Final[dict[str, Any]] = {
    "authenticationEnabled": True,
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"root","password":"root-secret-1"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret-1"}',
    "authorizationEnabled": True,
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


class Side(NamedTuple):
    name: str
    namesrv: ApacheNamesrv | OrbitNamesrv
    broker: ApacheBroker | OrbitBroker


class Files(NamedTuple):
    """PEM files, with keys in the form Java reads."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def of_ours(self) -> dict[str, Any]:
        return {"tls.server.certPath": str(self.certificate), "tls.server.keyPath": str(self.key)}

    @property
    def of_apache(self) -> dict[str, str]:
        return {"tls.server.mode": "permissive", "tls.test.mode.enable": "false", **self.of_ours}

    @property
    def of_clients(self) -> dict[str, str]:
        """Use TLS, and verify the server's certificate."""
        return {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": str(self.authority),
        }


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Created with the commands of docs/how-to/secure.md."""
    folder = tmp_path_factory.mktemp("tls")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "secure.md").read_text("utf-8")
    commands = [line.split() for line in page.splitlines() if line.strip().startswith("openssl ")]
    assert len(commands) == 2
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return Files(folder / "ca.pem", folder / "server.pem", folder / "server.key")


@pytest.fixture(scope="module")
def sides(apache_tools: object, tls: Files) -> Iterator[list[Side]]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        apache_names = enter(ApacheNamesrv(LATEST, properties=tls.of_apache))
        our_names = enter(OrbitNamesrv(**tls.of_ours))
        apache = enter(ApacheBroker(LATEST, apache_names, properties=tls.of_apache, **SECURED))
        ours = enter(OrbitBroker(our_names, **SECURED, **tls.of_ours))
        yield [Side("apache", apache_names, apache), Side("ours", our_names, ours)]
        ours.check_log()


@pytest.fixture(scope="module")
def shell(apache_tools: object, tls: Files) -> Iterator[AdminShell]:
    """Yields mqadmin, signed and over TLS."""
    with AdminShell(LATEST, properties=tls.of_clients) as shell:
        shell.sign_in(ROOT["accessKey"], ROOT["secretKey"])
        yield shell


COMMANDS: Final = (
    ("createUser -b {broker} -u app -p app-secret -t Normal", "create user to {broker} success."),
    ("createUser -b {broker} -u app -p other-secret", "The user is existed"),
    ("createUser -b {broker} -u spare -p spare-secret", "create user to {broker} success."),
    ("updateUser -b {broker} -u spare -s disable", "update user to {broker} success."),
    ("updateUser -b {broker} -u nobody -p x", "The user is not exist"),
    ("getUser -b {broker} -u spare", "disable"),
    ("listUser -b {broker}", "Normal"),
    ("createAcl -b {broker} -s User:app -r Topic:* -a Pub,Sub -d Allow", "create acl to {broker} success."),
    ("updateAcl -b {broker} -s User:app -r Topic:closed -a All -d Deny", "update acl to {broker} success."),
    ("createAcl -b {broker} -s User:app -r Group:* -a Sub -d Allow -i 127.0.0.1,10.0.0.0/8", "success."),
    ("createAcl -b {broker} -s User:app -r Topik:x -a Pub -d Allow", "The resource is null."),
    ("createAcl -b {broker} -s User:app -r Topic:x -a Pub -d Perhaps", "The decision is null or illegal."),
    (
        "createAcl -b {broker} -s User:nobody -r Topic:x -a Pub -d Allow",
        "The subject of User:nobody is not exist.",
    ),
    ("getAcl -b {broker} -s User:app", "[127.0.0.1, 10.0.0.0/8]"),
    ("listAcl -b {broker} -s app -r closed", "Deny"),
    ("deleteAcl -b {broker} -s User:app -r Topic:closed", "delete acl to {broker} success."),
    ("deleteAcl -b {broker} -s User:spare", "The acl is not exist."),
    ("deleteUser -b {broker} -u spare", "delete user to {broker} success."),
    (
        "copyAcl -f {broker} -t {broker} -s User:app",
        "copy acl of User:app from {broker} to {broker} success.",
    ),
)


def test_twelve_commands_of_mqadmin_say_the_same(sides: list[Side], shell: AdminShell) -> None:
    for command, expected in COMMANDS:
        for side in sides:
            words = command.format(broker=side.broker.address).split()
            result = shell.run(*words, namesrv=side.namesrv)
            assert expected.format(broker=side.broker.address) in result.output, (
                side.name,
                command,
                result.output,
            )
    listed = [shell.run("listAcl", "-b", side.broker.address, namesrv=side.namesrv).rows() for side in sides]
    assert sorted(listed[0]) == sorted(listed[1])


def test_users_are_copied_from_apache_to_ours_and_never_given_away_by_ours(
    sides: list[Side], shell: AdminShell
) -> None:
    apache, ours = (side.broker.address for side in sides)
    shell.run("createUser", "-b", apache, "-u", "moved", "-p", "moved-secret", namesrv=sides[0].namesrv)
    copied = shell.run("copyUser", "-f", apache, "-t", ours, "-u", "moved", namesrv=sides[0].namesrv)
    assert f"copy user of moved from {apache} to {ours} success." in copied.output
    shown = shell.run("listUser", "-b", ours, namesrv=sides[1].namesrv)
    assert "moved" in shown.stdout
    assert "secret" not in shown.stdout


@pytest.mark.parametrize(
    ("version", "serialize", "over_tls"),
    [
        (LATEST, "ROCKETMQ", True),
        (LEGACY, "JSON", False),
        pytest.param(LEGACY, "ROCKETMQ", True, marks=pytest.mark.soak),
        pytest.param(LATEST, "JSON", False, marks=pytest.mark.soak),
    ],
)
def test_java_clients_are_allowed_and_refused_alike(
    sides: list[Side],
    shell: AdminShell,
    tls: Files,
    unique: Unique,
    version: str,
    serialize: Literal["JSON", "ROCKETMQ"],
    over_tls: bool,
) -> None:
    topic, closed, group = unique("topic"), unique("closed"), unique("group")
    refusals: list[list[tuple[int | None, str]]] = []
    properties = tls.of_clients if over_tls else None
    with JavaClients(version, serialize=serialize, properties=properties) as java:
        for side in sides:
            address, namesrv = side.broker.address, side.namesrv
            for name in (topic, closed):
                shell.run("updateTopic", "-b", address, "-t", name, "-r", "1", "-w", "1", namesrv=namesrv)
            shell.run("updateSubGroup", "-b", address, "-g", group, namesrv=namesrv)
            user = unique("user")
            shell.run("createUser", "-b", address, "-u", user, "-p", "the-secret", namesrv=namesrv)
            for resource, actions in ((f"Topic:{topic}", "Pub,Sub,Get"), (f"Group:{group}", "Sub,Get")):
                words = [
                    "createAcl",
                    "-b",
                    address,
                    "-s",
                    f"User:{user}",
                    "-r",
                    resource,
                    "-a",
                    actions,
                    "-d",
                    "Allow",
                ]
                shell.run(*words, namesrv=namesrv)
            keys: dict[str, Any] = {"accessKey": user, "secretKey": "the-secret"}
            good = java.producer(unique("p"), namesrv, retryTimesWhenSendFailed=0, **keys)
            good.send(Message(topic=topic, body=b"one", keys="k"))
            good.send_batch([Message(topic=topic, body=b"two"), Message(topic=topic, body=b"three")])
            consumer = java.push_consumer(group, namesrv, {topic: "*"}, from_first=True, **keys)
            assert {delivery.body for delivery in consumer.wait(3)} == {b"one", b"two", b"three"}
            wrong = java.producer(
                unique("p"), namesrv, retryTimesWhenSendFailed=0, accessKey=user, secretKey="bad"
            )
            unsigned = java.producer(unique("p"), namesrv, retryTimesWhenSendFailed=0)
            seen = []
            for producer, name in ((good, closed), (wrong, topic), (unsigned, topic)):
                with pytest.raises(ClientError) as caught:
                    producer.send(Message(topic=name, body=b"no"))
                text = (
                    caught.value.text.replace(user, "USER")
                    .replace(closed, "CLOSED")
                    .replace(address, "BROKER")
                )
                seen.append((caught.value.code, re.sub(r"cost \[\d+\]ms", "", text)))
            refusals.append(seen)
            shell.run("deleteUser", "-b", address, "-u", user, namesrv=namesrv)
            with pytest.raises(ClientError):
                good.send(Message(topic=topic, body=b"gone"))
            for client in (good, wrong, unsigned, consumer):
                client.stop()
    assert refusals[0] == refusals[1]
    assert [code for code, _ in refusals[1]] == [16, 16, 16]


def test_java_client_with_tls_works_with_a_default_broker(unique: Unique, apache_tools: object) -> None:
    topic = unique("topic")
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv) as broker, JavaClients(LATEST, tls=True) as java:
        producer = java.producer(unique("p"), namesrv)
        producer.send(Message(topic=topic, body=b"secret"))
        consumer = java.push_consumer(unique("g"), namesrv, {topic: "*"}, from_first=True)
        assert [delivery.body for delivery in consumer.wait(1)] == [b"secret"]
        large = bytes(range(256)) * 4096
        producer.send(Message(topic=topic, body=large))
        assert consumer.wait(2)[-1].body == large
        broker.check_log()


@pytest.mark.parametrize(
    "apache_is_master",
    # An Apache slave copies its master's tables once a minute.
    [True, pytest.param(False, marks=pytest.mark.soak)],
)
def test_slave_follows_a_secured_master_of_the_other_make(
    unique: Unique, apache_tools: object, apache_is_master: bool
) -> None:
    topic = unique("topic")
    slave_options: dict[str, Any] = {
        **SECURED, "brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        namesrv = enter(OrbitNamesrv())
        slave: ApacheBroker | OrbitBroker
        if apache_is_master:
            enter(ApacheBroker(LATEST, namesrv, **SECURED))
            slave = enter(OrbitBroker(namesrv, **slave_options))
        else:
            enter(OrbitBroker(namesrv, **SECURED))
            slave = enter(ApacheBroker(LATEST, namesrv, **slave_options))
        java = enter(JavaClients(LATEST))
        producer = java.producer(unique("p"), namesrv, **ROOT)
        producer.send(Message(topic=topic, body=b"followed by a slave"))
        log = Path(slave.store_dir) / "commitlog"

        def followed() -> bool:
            return any(b"followed by a slave" in path.read_bytes() for path in log.glob("0*"))

        wait_until(followed, timeout_s=60, what=f"the log of the slave\n{slave.log_tail()}")
        tables = Path(slave.store_dir) / "config" / "topics.json"
        wait_until(
            lambda: tables.exists() and topic in tables.read_text(),
            timeout_s=100,
            what=f"the topics of the slave\n{slave.log_tail()}",
        )
