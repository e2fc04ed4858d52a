"""TLS between real sockets: names in certificates, the replication stream, etcd, IPv6."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner
from tests.apache.etcd import Etcd, EtcdTls, require_etcd
from tests.integration.ha_kit import assert_equal_logs, caught_up, introduce, put, until
from tests.integration.test_access_control import ROOT, SECURED, Asker, create_user, running
from tests.unit.transport.certificates import Certificates, make_certificates
from tests.unit.transport.loops import on_both_loops

from orbitmq.broker.broker import Broker
from orbitmq.cli.store import store_commands
from orbitmq.errors import ConfigError, ConnectionLostError
from orbitmq.requests import RequestCode
from orbitmq.transport.tls import client_context

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def files(made: Certificates) -> tuple[str, ...]:
    return (f"tls.server.certPath={made.server}", f"tls.server.keyPath={made.server_key}")


# -- names ----------------------------------------------------------------------------------------------------


@on_both_loops
async def test_client_with_a_ca_refuses_a_certificate_of_another_host_unless_told(tmp_path: Path) -> None:
    authority = trustme.CA()
    elsewhere = authority.issue_cert("broker.example.org")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    elsewhere.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    trusted = tmp_path / "ca.pem"
    async with running(tmp_path, f"tls.server.certPath={tmp_path / 'server.pem'}") as broker:
        async with Asker(broker.address, None, client_context(trusted=trusted)) as strict:
            with pytest.raises(ConnectionLostError, match=r"IP address mismatch.*127\.0\.0\.1"):
                await strict.send("T")
        async with Asker(broker.address, None, client_context(trusted=trusted, check_host=False)) as lax:
            assert (await lax.send("T")).code == 0


@on_both_loops
async def test_client_with_a_ca_takes_a_certificate_that_names_the_address(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with running(tmp_path, *files(certificates)) as broker:
        async with Asker(broker.address, None, client_context(trusted=certificates.authority)) as asker:
            assert (await asker.send("T")).code == 0
        async with Asker(broker.address, None, client_context(trusted=certificates.stranger)) as asker:
            with pytest.raises(ConnectionLostError, match="certificate"):
                await asker.send("T")


# -- replication ----------------------------------------------------------------------------------------------

SLAVE = ("brokerRole=SLAVE", "brokerId=1", "slaveSyncInterval=100")


@on_both_loops
async def test_replication_stream_over_tls_with_certificates_of_both_ends(
    tmp_path: Path, certificates: Certificates
) -> None:
    options = (
        *files(certificates),
        "haTlsEnable=true",
        "tls.server.mode=enforcing",
        "tls.server.need.client.auth=require",
        f"tls.server.trustCertPath={certificates.authority}",
        "tls.client.authServer=true",
        "tls.client.checkHostName=true",
        f"tls.client.trustCertPath={certificates.authority}",
        f"tls.client.certPath={certificates.client}",
        f"tls.client.keyPath={certificates.client_key}",
    )
    async with (
        running(tmp_path / "m", *options) as master,
        running(tmp_path / "s", *options, *SLAVE) as slave,
    ):
        introduce(slave, master)
        await until(lambda: bool(master.roles.replicas.status()), "the connection")
        put(master, 5000, body=b"not to be seen on the way" * 40)
        await until(lambda: caught_up(master, slave), "the log of the slave")
        assert_equal_logs(master, slave)
        reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_listen_port)
        writer.write(bytes(8))  # a slave without TLS and with an empty log
        assert await reader.read() == b"", "nothing for a plain slave"
        writer.close()
        assert len(master.roles.replicas.links) == 1


@pytest.mark.parametrize(
    ("secret", "kind", "follows"),
    [
        ("inner-secret-1", "Super", True),
        ("wrong-secret", "Super", False),
        ("inner-secret-1", "Normal", False),
    ],
)
@on_both_loops
async def test_protected_stream_is_for_super_users(
    tmp_path: Path,
    secret: str,
    kind: str,
    follows: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    credentials = f'innerClientAuthenticationCredentials={{"accessKey":"copier","secretKey":"{secret}"}}'
    async with (
        running(tmp_path / "m", *SECURED, "haTlsEnable=true") as master,
        Asker(master.address, ROOT) as root,
    ):
        await create_user(root, "copier", "inner-secret-1", userType=kind)
        put(master, 10)
        slave_options = ("haTlsEnable=true", credentials, *SLAVE, "haTruncateSlave=true")
        async with running(tmp_path / "s", *slave_options) as slave:
            # Directly to the stream: without the requests that compare the logs, which have their own check.
            monkeypatch.setattr(slave.roles.log_prefix_check, "check", lambda _address: asyncio.sleep(0))
            introduce(slave, master)
            if follows:
                await until(lambda: caught_up(master, slave), "the log of the slave")
            else:
                await until(lambda: "slave refused" in caplog.text, "the refusal")
                assert slave.store.max_log_offset == 0


@on_both_loops
async def test_repair_fetches_from_a_protected_stream(tmp_path: Path) -> None:
    async with running(tmp_path / "m", *SECURED, "haTlsEnable=true") as master:
        async with Asker(master.address, ROOT) as root:
            await create_user(root, "copier", "inner-secret-1", userType="Super")
        put(master, 500, body=b"x" * 200)
        await asyncio.to_thread(shutil.copytree, master.store_config.root, tmp_path / "copy")
        [segment, *_] = sorted((tmp_path / "copy" / "commitlog").iterdir())
        whole = segment.read_bytes()
        segment.write_bytes(whole[:9_100] + bytes(byte ^ 0x5A for byte in whole[9_100:9_200]) + whole[9_200:])
        conf = tmp_path / "broker.conf"
        conf.write_text(
            'haTlsEnable=true\ninnerClientAuthenticationCredentials={"accessKey":"copier","secretKey":"inner-secret-1"}\n'
        )
        arguments = ["repair", str(tmp_path / "copy"), "--from", master.ha_address]
        plain = await asyncio.to_thread(CliRunner().invoke, store_commands, arguments)
        assert plain.exit_code == 1, plain.output
        done = await asyncio.to_thread(CliRunner().invoke, store_commands, [*arguments, "-c", str(conf)])
        assert done.exit_code == 0, done.output
    assert "1 damaged ranges, 0 left" in done.output
    assert segment.read_bytes() == whole


async def transfer_head(master: Broker) -> bytes:
    """Returns the replication port's first bytes to an Apache slave with an empty log; empty when the slave is
    rejected.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_listen_port)
    writer.write(bytes(8))
    try:
        return await reader.readexactly(12)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("is_4x", [False, True], ids=["policies", "lists"])
@on_both_loops
async def test_plain_stream_goes_to_hosts_whose_broker_has_signed_in(tmp_path: Path, is_4x: bool) -> None:
    """It has no room for a signature, so an Apache slave is recognised by the requests it sends to the main port."""
    options: tuple[str, ...] = SECURED
    root_user = ROOT
    if is_4x:
        (tmp_path / "home" / "conf").mkdir(parents=True)
        (tmp_path / "home" / "conf" / "plain_acl.yml").write_text(
            "accounts:\n- {accessKey: root-account, secretKey: root-secret-1, admin: true}\n"
            "- {accessKey: other-account, secretKey: other-secret, admin: false}\n"
        )
        options = ("aclEnable=true", f"rocketmqHome={tmp_path / 'home'}")
        root_user = ("root-account", "root-secret-1")
    async with running(tmp_path / "m", *options) as master, Asker(master.address, root_user) as root:
        put(master, 10)
        assert await transfer_head(master) == b""
        other = ("other-account", "other-secret")
        if not is_4x:
            await create_user(root, *other)
        async with Asker(master.address, other) as normal, Asker(master.address, None) as unsigned:
            for asker in (normal, unsigned):
                for code in (RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.EXCHANGE_BROKER_HA_INFO):
                    assert (await asker.ask(code, {})).code != 0
        assert (await root.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})).code == 0, (
            "an operator is not a slave"
        )
        assert await transfer_head(master) == b""
        assert (await root.ask(RequestCode.GET_ALL_DELAY_OFFSET, {})).code == 0
        assert len(await transfer_head(master)) == 12


@pytest.mark.parametrize("listed", ["10.0.0.1,127.0.0.0/8", "*"])
@on_both_loops
async def test_plain_stream_goes_to_listed_addresses(tmp_path: Path, listed: str) -> None:
    async with running(tmp_path, *SECURED, f"haSlaveAddresses={listed}") as master:
        put(master, 10)
        assert len(await transfer_head(master)) == 12


@on_both_loops
async def test_slave_signs_in_before_it_follows_a_plain_stream(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "m", *SECURED) as master,
        running(tmp_path / "s", *SECURED, *SLAVE) as slave,
    ):
        put(master, 10)
        introduce(slave, master)
        await until(lambda: caught_up(master, slave), "the log of the slave")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("tls.server.mode=disabled",), "tls.server.mode=disabled"),
        (SECURED[:3], "innerClientAuthenticationCredentials"),
        (("tls.client.authServer=true",), "tls.client.trustCertPath"),
        (("tls.test.mode.enable=false",), "certPath"),
    ],
)
def test_stream_that_cannot_be_protected_stops_the_start(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    async def start() -> None:
        async with running(tmp_path, "haTlsEnable=true", *options):
            pass

    with pytest.raises(ConfigError, match=told):
        asyncio.run(start())


@on_both_loops
async def test_new_certificate_is_shown_to_new_slaves(tmp_path: Path) -> None:
    old, new = make_certificates(tmp_path), trustme.CA().issue_cert("127.0.0.1")
    async with running(tmp_path, *files(old), "haTlsEnable=true") as master:

        async def shown() -> bytes | None:
            tls = client_context()
            _, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_listen_port, ssl=tls)
            found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return found

        first = await shown()
        assert first == await shown()
        new.cert_chain_pems[0].write_to_path(old.server)
        new.private_key_pem.write_to_path(old.server_key)
        assert await shown() != first


# -- etcd -----------------------------------------------------------------------------------------------------


def test_failover_over_tls_everywhere_elects_and_replicates(
    tmp_path: Path, certificates: Certificates
) -> None:
    require_etcd()
    made = certificates
    server = EtcdTls(made.authority, made.server, made.server_key, made.client, made.client_key)

    async def run(url: str) -> None:
        options = (
            *(*files(made), *SECURED, "haTlsEnable=true", "tls.server.mode=enforcing"),
            *("tls.client.authServer=true", f"tls.client.trustCertPath={made.authority}"),
            *("enableFailover=true", f"etcdEndpoints={url}", "leaseTtl=2", f"etcdCaFile={made.authority}"),
            *(f"etcdCertFile={made.client}", f"etcdKeyFile={made.client_key}"),
        )
        async with (
            running(tmp_path / "1", *options, "brokerId=1") as one,
            running(tmp_path / "2", *options, "brokerId=2") as two,
        ):
            both = (one, two)
            await until(lambda: sum(not broker.config.is_slave for broker in both) == 1, "a master", 20)
            master, slave = sorted(both, key=lambda broker: broker.config.is_slave)
            await until(lambda: bool(master.roles.replicas.status()), "the slave", 20)
            put(master, 100)
            await until(lambda: caught_up(master, slave), "the log of the slave", 20)
            assert_equal_logs(master, slave)

    with Etcd(tls=server) as etcd:
        asyncio.run(run(etcd.url))


# -- IPv6 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["::1", "[::1]"])
@on_both_loops
async def test_broker_starts_on_ipv6(tmp_path: Path, host: str) -> None:
    async with running(tmp_path, f"bindAddress={host}", f"brokerIP1={host}") as broker:
        assert broker.address == f"[::1]:{broker.config.listen_port}"
        async with Asker(broker.address, None) as asker:
            answer = await asker.send("T")
            assert answer.code == 0
            assert len(answer.ext_fields["msgId"]) == 56, "16 bytes of address, 4 of port, 8 of offset"
