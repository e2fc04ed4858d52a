"""A broker with access control, over real sockets: users, policies, slaves, access lists of 4.x, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.ha_kit import until
from tests.support.waiting import until_async
from tests.unit.auth.test_needs import asked

from orbitmq.auth.acl_files import address_matches
from orbitmq.auth.signature import sign_fields
from orbitmq.broker.broker import Broker
from orbitmq.cli.servers import read_broker_settings, read_config
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConfigError, ConnectionLostError, OrbitError
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import BY_CODE, RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.transport.tls import client_context
from orbitmq.wire.frame import Frame

pytestmark = pytest.mark.slow

SEND = {
    "a": "p",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
    "j": "0",
}
ROOT = ("root", "root-secret-1")
SECURED = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    'initAuthenticationUser={"username":"root","password":"root-secret-1"}',
    'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret-1"}',
)
DENIED = int(ResponseCode.NO_PERMISSION)


@contextlib.asynccontextmanager
async def running(folder: Path, *options: str) -> AsyncIterator[Broker]:
    settings = read_broker_settings(
        None,
        (
            "listenPort=0",
            "bindAddress=127.0.0.1",
            "brokerIP1=127.0.0.1",
            f"storePathRootDir={folder / 'store'}",
            "mappedFileSizeCommitLog=16777216",
            "maxHashSlotNum=10000",
            "maxIndexNum=40000",
            *options,
        ),
    )
    async with Broker(settings.config, settings.store_config, more=settings.more) as broker:
        yield broker


class Asker:
    """Sends requests of one user over one connection."""

    def __init__(self, address: str, user: tuple[str, str] | None, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._client = RpcClient(tls=tls)
        if user is not None:
            self._client.sign = lambda fields, body: sign_fields(fields, body, *user)

    async def ask(self, code: int, fields: dict[str, str] | None = None, body: object = b"") -> Frame:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._client.call(self._address, code, None, raw, ext=dict(fields or {}), timeout_s=10.0)

    async def send(self, topic: str) -> Frame:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": topic}, b"body")

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


async def create_user(root: Asker, name: str, password: str, **more: str) -> Frame:
    body = {"username": name, "password": password, **more}
    return await root.ask(RequestCode.AUTH_CREATE_USER, {"username": name}, body)


async def allow(root: Asker, name: str, resource: str, *actions: str, decision: str = "Allow") -> Frame:
    entry = {"resource": resource, "actions": list(actions), "decision": decision}
    body = {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    return await root.ask(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)


def test_users_and_policies_take_effect_on_open_connections_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, *SECURED) as broker, Asker(broker.address, None) as nobody:
            refused = await nobody.send("T")
            assert (refused.code, refused.remark) == (DENIED, "username cannot be null.")
            assert broker.topics.find("T") is None, "nothing was made by a refused request"
            async with (
                Asker(broker.address, ROOT) as root,
                Asker(broker.address, ("app", "app-secret")) as app,
            ):
                assert (await app.send("T")).remark == "User:app is not found."
                assert (await create_user(root, "app", "app-secret")).code == 0
                text = "User:app has no permission to access Topic:T from 127.0.0.1, no matched policies."
                assert (await app.send("T")).remark == text
                assert (await allow(root, "app", "Topic:T", "Pub")).code == 0
                assert (await app.send("T")).code == 0
                assert (await app.send("U")).code == DENIED
                await allow(root, "app", "Topic:T", "Pub", decision="Deny")
                assert "the decision is deny" in ((await app.send("T")).remark or "")
                await allow(root, "app", "Topic:T", "Pub")
                body = {"password": "other-secret"}
                assert (await root.ask(RequestCode.AUTH_UPDATE_USER, {"username": "app"}, body)).code == 0
                assert (await app.send("T")).remark == "check signature failed."
                async with Asker(broker.address, ("app", "other-secret")) as again:
                    assert (await again.send("T")).code == 0
                    body = {"userStatus": "disable"}
                    await root.ask(RequestCode.AUTH_UPDATE_USER, {"username": "app"}, body)
                    assert (await again.send("T")).remark == "User:app is disabled."
        async with running(tmp_path, *SECURED) as broker, Asker(broker.address, ROOT) as root:
            answer = await root.ask(RequestCode.AUTH_GET_USER, {"username": "app"})
            known = json.loads(answer.body)
            assert known == {"userStatus": "disable", "userType": "Normal", "username": "app"}, (
                "and no password"
            )

    asyncio.run(run())
    for name in ("users.json", "acls.json"):
        assert stat.S_IMODE((tmp_path / "store" / "config" / name).stat().st_mode) == 0o600


def test_normal_user_changes_nothing_of_the_broker(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            running(tmp_path, *SECURED) as broker,
            Asker(broker.address, ROOT) as root,
            Asker(broker.address, ("app", "app-secret")) as app,
        ):
            await create_user(root, "app", "app-secret")
            for resource in ("Topic:*", "Group:*"):
                await allow(root, "app", resource, "All")
            for code, body in (
                (RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4"),
                (RequestCode.GET_BROKER_CONFIG, b""),
                (RequestCode.GET_ALL_CONSUMER_OFFSET, b""),
                (RequestCode.CLEAN_UNUSED_TOPIC, b""),
                (RequestCode.AUTH_LIST_USER, b""),
            ):
                assert (await app.ask(code, {}, body)).code == DENIED, code
            assert broker.config.permission == 6
            await allow(root, "app", "Cluster:DefaultCluster", "Update", "Get")
            made = await create_user(app, "evil", "evil-secret", userType="Super")
            assert (made.code, made.remark) == (1, "The super user can only be create by super user")
            promoted = {"userType": "Super"}
            assert (await app.ask(RequestCode.AUTH_UPDATE_USER, {"username": "app"}, promoted)).code == DENIED
            assert (await app.ask(RequestCode.AUTH_DELETE_USER, {"username": "root"})).code == DENIED
            assert b"secret" not in (await app.ask(RequestCode.AUTH_LIST_USER)).body
            shown = (await app.ask(RequestCode.GET_BROKER_CONFIG)).body.decode()
            assert "root-secret-1" not in shown
            assert "initAuthenticationUser=******" in shown

    asyncio.run(run())


def test_apaches_rules_for_who_asks_for_them(tmp_path: Path) -> None:
    async def run() -> None:
        options = (*SECURED, "authCompatibility=apache")
        async with (
            running(tmp_path, *options) as broker,
            Asker(broker.address, ROOT) as root,
            Asker(broker.address, ("app", "app-secret")) as app,
        ):
            await create_user(root, "app", "app-secret")
            assert (await app.ask(RequestCode.GET_BROKER_CONFIG)).code == 0
            assert (await app.send("T")).code == DENIED
            answer = await root.ask(RequestCode.AUTH_GET_USER, {"username": "app"})
            assert json.loads(answer.body)["password"] == "app-secret"
            assert (await app.ask(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected"),
    [
        (3001, {}, {"password": "p"}, (29, "The username is blank")),
        (3001, {"username": "root"}, {"password": "p"}, (16, "The user is existed")),
        (3001, {"username": "u"}, {"password": " "}, (16, "password can not be blank")),
        (3001, {"username": "u"}, b"", (29, "The body of user is null")),
        (3002, {"username": "u"}, {"password": "p"}, (16, "The user is not exist")),
        (3003, {"username": "unknown"}, b"", (0, None)),
        (3004, {"username": "unknown"}, b"", (0, None)),
        (3006, {"subject": "User:x"}, b"", (1, "AuthorizationException: The body of acl is null")),
        (3008, {"subject": "User:root"}, b"", (16, "The acl is not exist.")),
        (3008, {"subject": "User:x"}, b"", (16, "The subject is not exist.")),
        (3009, {"subject": "x"}, b"", (16, "The subject is null.")),
    ],
)
def test_failures_of_user_requests_have_apaches_codes_and_texts(
    tmp_path: Path, code: int, fields: dict[str, str], body: object, expected: tuple[int, str | None]
) -> None:
    async def run() -> tuple[int, str | None]:
        async with running(tmp_path, *SECURED) as broker, Asker(broker.address, ROOT) as root:
            answer = await root.ask(code, fields, body)
            return answer.code, answer.remark

    assert asyncio.run(run()) == expected


def test_broken_resource_deletes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, *SECURED) as broker, Asker(broker.address, ROOT) as root:
            await create_user(root, "app", "app-secret")
            await allow(root, "app", "Topic:T", "Pub")
            fields = {"subject": "User:app", "resource": "Topik:T"}
            assert (
                await root.ask(RequestCode.AUTH_DELETE_ACL, fields)
            ).code == ResponseCode.INVALID_PARAMETER
            answer = await root.ask(RequestCode.AUTH_GET_ACL, {"subject": "User:app"})
            assert json.loads(answer.body)["policies"][0]["entries"][0]["resource"] == "Topic:T"
            fields["resource"] = "Topic:T"
            assert (await root.ask(RequestCode.AUTH_DELETE_ACL, fields)).code == 0
            assert (await root.ask(RequestCode.AUTH_GET_ACL, {"subject": "User:app"})).body == b""

    asyncio.run(run())


def test_slave_takes_over_users_and_policies_with_its_inner_credentials(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path / "m", *SECURED) as master, Asker(master.address, ROOT) as root:
            await create_user(root, "app", "app-secret")
            await allow(root, "app", "Topic:T", "Pub")
            slave_options = (*SECURED, "brokerRole=SLAVE", "brokerId=1", "slaveSyncInterval=100")
            async with running(tmp_path / "s", *slave_options) as slave:
                slave.roles.master_announced(master.address, master.ha_address)

                def followed() -> bool:
                    slave.roles.master_announced(master.address, master.ha_address)
                    return "app" in slave.security.table.users

                await until_async(followed, "the user on the slave")
                assert slave.security.table.users == master.security.table.users
                assert slave.security.table.policies == master.security.table.policies
                assert slave.topics.data_version == master.topics.data_version, "the other tables came too"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("authorizationEnabled=true",), "authenticationEnabled"),
        (("authenticationProvider=org.example.Own",), "authenticationProvider"),
        (("authenticationMetadataProvider=x.ProxyAuthenticationMetadataProvider",), "MetadataProvider"),
        (("initAuthenticationUser=root:secret-word",), "initAuthenticationUser is not of the form"),
        (("aclEnable=true", "authenticationEnabled=true"), "mutually exclusive"),
        (("authenticationEnable=true",), "did you mean authenticationEnabled"),
    ],
)
def test_option_that_cannot_protect_stops_the_start(options: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        read_broker_settings(None, options)
    assert "secret-word" not in str(caught.value)


def test_configuration_written_for_apache_names_all_classes_and_is_accepted() -> None:
    base = "org.apache.rocketmq.auth"
    read = read_broker_settings(
        None,
        (
            *SECURED,
            f"authenticationProvider={base}.authentication.provider.DefaultAuthenticationProvider",
            f"authenticationMetadataProvider={base}.authentication.provider.LocalAuthenticationMetadataProvider",
            f"authenticationStrategy={base}.authentication.strategy.StatefulAuthenticationStrategy",
            f"authorizationProvider={base}.authorization.provider.DefaultAuthorizationProvider",
            f"authorizationMetadataProvider={base}.authorization.provider.LocalAuthorizationMetadataProvider",
            f"authorizationStrategy={base}.authorization.strategy.StatelessAuthorizationStrategy",
        ),
    )
    assert read.more.auth.enabled


# -- access lists of 4.x --------------------------------------------------------------------------------------

ACL = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: adminkey
  secretKey: adminsecret
  admin: true
- accessKey: normal01
  secretKey: secret-one
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [topicA=DENY, topicB=PUB|SUB]
"""


def test_access_lists_of_4x_are_enforced_and_reloaded(tmp_path: Path) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACL)
    refusal = "org.apache.rocketmq.acl.common.AclException: "

    async def run() -> None:
        options = ("aclEnable=true", f"rocketmqHome={tmp_path / 'home'}")
        async with (
            running(tmp_path, *options) as broker,
            Asker(broker.address, None) as nobody,
            Asker(broker.address, ("normal01", "secret-one")) as normal,
            Asker(broker.address, ("adminkey", "adminsecret")) as admin,
        ):
            assert (await nobody.send("topicB")).remark == refusal + "No accessKey is configured"
            assert (await normal.send("topicB")).code == 0
            refused = await normal.send("topicA")
            assert (refused.code, refused.remark) == (1, refusal + "No default permission for topic:topicA")
            batch = await normal.ask(RequestCode.SEND_BATCH_MESSAGE, {**SEND, "b": "topicA"}, b"x")
            assert batch.remark == refusal + "No default permission for topic:topicA"
            for code in (17, 25, 26, 50, 54):
                answer = await normal.ask(code, {"accessKey": "another1", "secretKey": "another-secret"})
                assert (answer.remark or "").startswith(
                    refusal + f"Need admin permission for request code={code}"
                )
            assert (await admin.ask(26)).code == 0
            made = await admin.ask(50, {"accessKey": "another1", "secretKey": "abc"})
            assert made.code == 209
            fields = {"accessKey": "another1", "secretKey": "another-secret", "topicPerms": "topicC=PUB"}
            assert (await admin.ask(50, fields)).code == 0
            async with Asker(broker.address, ("another1", "another-secret")) as another:
                assert (await another.send("topicC")).code == 0
            shown = json.loads((await admin.ask(54)).body)
            assert [account["accessKey"] for account in shown["plainAccessConfigs"]] == [
                "adminkey",
                "normal01",
                "another1",
            ]
            assert "secretKey" not in shown["plainAccessConfigs"][0]
            versions = await admin.ask(52)
            assert json.loads(versions.ext_fields["version"])["counter"] == 0
            assert (await admin.ask(51, {"accessKey": "another1"})).code == 0
            assert (await admin.ask(51, {"accessKey": "another1"})).code == 210
            text = (conf / "plain_acl.yml").read_text()
            (conf / "plain_acl.yml").write_text(text + "\n  - broken")
            assert broker.security.acl_files is not None
            broker.security.acl_files.reload()
            assert (await normal.send("topicB")).code == 0, "a broken file leaves the old accounts in force"
            (conf / "plain_acl.yml").write_text(text.replace("topicB=PUB|SUB", "topicB=SUB"))
            broker.security.acl_files.reload()
            assert (await normal.send("topicB")).code == 1
            assert (await admin.ask(53, {"globalWhiteAddrs": "127.0.0.*", "aclFileFullPath": ""})).code == 0
            assert (await nobody.send("topicA")).code == 0, "a white address needs nothing"

    asyncio.run(run())


def test_accounts_of_4x_become_users(tmp_path: Path) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACL)

    async def run() -> None:
        options = (*SECURED, "migrateAuthFromV1Enabled=true", f"rocketmqHome={tmp_path / 'home'}")
        async with (
            running(tmp_path, *options) as broker,
            Asker(broker.address, ("normal01", "secret-one")) as normal,
            Asker(broker.address, ("adminkey", "adminsecret")) as admin,
        ):
            assert (await normal.send("topicB")).code == 0
            assert (await normal.send("topicA")).code == DENIED
            assert (await admin.send("topicA")).code == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        ("", "10.0.0.1", False),
        ("*", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1,10.0.0.2", "10.0.0.2", True),
        ("10.0.0.{1,2}", "10.0.0.2", True),
        ("10.0.0.{1,2}", "10.0.0.3", False),
        ("192.168.*.*", "192.168.9.9", True),
        ("192.168.1-9.*", "192.168.10.1", False),
        ("192.168.0.1-20", "192.168.0.20", True),
        ("192.168.0.1-20", "192.168.0.21", False),
    ],
)
def test_address_patterns(pattern: str, address: str, expected: bool) -> None:
    assert address_matches(pattern, address) is expected


# -- TLS ------------------------------------------------------------------------------------------------------


def test_default_broker_takes_tls_and_plain_on_one_port(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            running(tmp_path) as broker,
            Asker(broker.address, None, client_context()) as secret,
            Asker(broker.address, None) as plain,
        ):
            answers = await asyncio.gather(secret.send("T"), secret.send("T"), plain.send("T"))
            assert [answer.code for answer in answers] == [0, 0, 0]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "tls_works", "plain_works"), [("enforcing", True, False), ("disabled", False, True)]
)
def test_modes_of_tls(tmp_path: Path, mode: str, tls_works: bool, plain_works: bool) -> None:
    async def works(address: str, tls: ssl.SSLContext | None) -> bool:
        async with Asker(address, None, tls) as asker:
            try:
                return (await asker.send("T")).code == 0
            except (ConnectionLostError, OrbitError):
                return False

    async def run() -> None:
        async with running(tmp_path, f"tls.server.mode={mode}") as broker:
            assert await works(broker.address, client_context()) is tls_works
            assert await works(broker.address, None) is plain_works

    asyncio.run(run())


# -- the page -------------------------------------------------------------------------------------------------


def lines_of_the_page(section: str) -> list[str]:
    """Returns the lines that a section of docs/how-to/secure.md shows to be typed or written, in order."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "secure.md").read_text("utf-8")
    part = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [line.strip() for line in part.splitlines() if line.startswith("        ")]


async def type_in(folder: Path, line: str, environment: dict[str, str], servers: dict[str, str]) -> str:
    """Runs a command of the page, with the addresses of this test."""
    words = [servers.get(word, word) for word in line.split()]
    if words[0] == "orbitmq":
        words[:1] = [sys.executable, "-m", "orbitmq.cli.main"]
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    text, _ = await process.communicate()
    assert process.returncode == 0, (line, text.decode())
    return text.decode()


def test_commands_of_the_page_about_security_work_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of_the_page("Users and policies")
    options = [line for line in lines if line.split("=")[0].startswith(("auth", "init", "inner"))]
    exported = next(line for line in lines if line.startswith("export ")).split()[1:]
    environment = dict(pair.split("=", 1) for pair in exported)
    commands = [line for line in lines if line.startswith("orbitmq ")]
    assert (len(options), len(commands)) == (4, 4)
    tls_lines = lines_of_the_page("TLS")
    tls_options = [line for line in tls_lines if line.startswith("tls.")]
    makers = [line for line in tls_lines if line.startswith("openssl ")]
    users = [line for line in tls_lines if line.startswith("orbitmq ")]
    assert (len(makers), len(tls_options), len(users)) == (2, 5, 2)
    monkeypatch.chdir(tmp_path)

    async def run() -> tuple[str, list[str]]:
        async with running(tmp_path, *options) as broker:
            servers = {"127.0.0.1:10911": broker.address}
            for line in commands:
                output = await type_in(tmp_path, line, environment, servers)
            async with Asker(broker.address, ("orders", "orders-secret")) as app:
                assert (await app.send("orders")).code == 0
                assert (await app.send("other")).code == DENIED
        for line in makers:
            await type_in(tmp_path, line, {}, {})
        names, _, unknown = read_config(
            NameServerConfig, None, ("listenPort=0", "bindAddress=127.0.0.1", "kvConfigPath=", *tls_options)
        )
        assert not unknown
        async with (
            NameServer(names) as name_server,
            running(tmp_path, *options, *tls_options, f"namesrvAddr=127.0.0.1:{name_server.port}") as broker,
        ):
            servers = {"127.0.0.1:10911": broker.address, "127.0.0.1:9876": f"127.0.0.1:{name_server.port}"}
            await until(lambda: broker.registration.known_count > 0, "the registration", 20)
            with pytest.raises(AssertionError, match="no answer from the broker"):
                await type_in(tmp_path, "orbitmq admin listUser -b 127.0.0.1:10911", environment, servers)
            return output, [await type_in(tmp_path, line, environment, servers) for line in users]

    listed, over_tls = asyncio.run(run())
    assert "Topic:orders" in listed
    assert "Group:order-readers" in listed
    assert "orders" in over_tls[0]
    assert "admin" in over_tls[1]
    assert not any("any certificate is accepted" in text for text in over_tls)


# -- every request --------------------------------------------------------------------------------------------


async def refused_by(asker: Asker, codes: list[int]) -> dict[int, tuple[int, str]]:
    """Returns a broker's response to each of the requests, with fields and a body that name a topic and a group."""
    answers = {}
    for code in codes:
        fields, body = asked(code)
        answer = await asker.ask(code, fields, body)
        answers[code] = answer.code, answer.remark or ""
    return answers


@pytest.mark.parametrize("fast_port", [False, True])
def test_every_request_over_a_socket_is_refused_unsigned_with_a_wrong_secret_and_without_rights(
    tmp_path: Path, fast_port: bool
) -> None:
    async def run() -> None:
        async with running(tmp_path, *SECURED) as broker, Asker(broker.address, ROOT) as root:
            await create_user(root, "nobody", "nobody-secret")
            assert (await root.send("kept")).code == 0  # for requests that name a message by its offset
            served = {route.code for route in broker.main_router.routes}
            codes = sorted({*served, *(int(code) for code in BY_CODE.values()), 9999})
            assert len(served) > 80
            host, _, port = broker.address.rpartition(":")
            address = f"{host}:{int(port) - 2}" if fast_port else broker.address
            before = (tmp_path / "store" / "config" / "users.json").read_bytes()
            for user, told in (
                (None, "username cannot be null."),
                (("root", "wrong-secret"), "check signature failed."),
                (("unknown", "root-secret-1"), "User:unknown is not found."),
            ):
                async with Asker(address, user) as asker:
                    answers = await refused_by(asker, codes)
                    assert answers == dict.fromkeys(codes, (DENIED, told))
            async with Asker(address, ("nobody", "nobody-secret")) as nobody:
                answers = await refused_by(nobody, codes)
            assert {code: answer for code, answer in answers.items() if answer[0] != DENIED} == {}
            assert (tmp_path / "store" / "config" / "users.json").read_bytes() == before
            assert broker.topics.find("t") is None

    asyncio.run(run())


def test_every_request_to_a_broker_with_access_lists_is_refused_unsigned_and_with_a_wrong_secret(
    tmp_path: Path,
) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACL)

    async def run() -> None:
        async with running(tmp_path, "aclEnable=true", f"rocketmqHome={tmp_path / 'home'}") as broker:
            codes = sorted({route.code for route in broker.main_router.routes} | {9999})
            for user, told in (
                (None, "No accessKey is configured"),
                (("adminkey", "wrong-secret"), "Check signature failed for accessKey=adminkey"),
                (("unknown1", "adminsecret"), "No acl config for unknown1"),
            ):
                async with Asker(broker.address, user) as asker:
                    for code, answer in (await refused_by(asker, codes)).items():
                        assert answer == (1, f"org.apache.rocketmq.acl.common.AclException: {told}"), code

    asyncio.run(run())
