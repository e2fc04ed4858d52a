"""Options of the name server, and changes to them while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orbitmq.errors import ConfigError, NoPermission, ServerError
from orbitmq.namesrv.config import NameServerConfig, client_tls, render_config, server_tls
from orbitmq.namesrv.live_config import LiveConfig
from orbitmq.runtime.options import config_from_properties, options_of, parse_properties
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.transport.tls import TlsMode

PATH = "/etc/namesrv.conf"


def test_apache_file_is_read_with_its_keys() -> None:
    text = "listenPort=1234\norderMessageEnable = true\nserverWorkerThreads=8\ntls.server.mode=disabled\n"
    config, unknown = config_from_properties(NameServerConfig, parse_properties(text, "f"))
    assert config == NameServerConfig(listen_port=1234, order_message_enable=True, tls_mode=TlsMode.DISABLED)
    assert unknown == ["serverWorkerThreads"]


def test_every_option_is_documented_and_has_a_key_of_its_own() -> None:
    options = list(options_of(NameServerConfig))
    assert all(option.doc for option in options)
    assert len({option.key for option in options}) == len(options)


def test_rendered_config_is_sorted_and_hides_passwords() -> None:
    text = render_config(NameServerConfig(tls_key_password="secret", kv_config_path="/k.json"))
    lines = text.splitlines()
    assert lines == sorted(lines)
    assert "kvConfigPath=/k.json" in lines
    assert "tls.server.keyPassword=******" in lines
    assert "secret" not in text
    assert "enableAllTopicList=true" in lines


def test_black_list_always_holds_the_names_of_files() -> None:
    assert NameServerConfig(config_black_list="x;y").black_list == {
        "x",
        "y",
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
    }


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (NameServerConfig(tls_mode=TlsMode.ENFORCING, tls_test_mode="false"), "certPath"),
        (NameServerConfig(tls_certificate="/none.pem", tls_key="/none.key"), "cannot be used"),
        (NameServerConfig(tls_certificate="c", tls_authenticate_clients=True), "trustCertPath"),
        (NameServerConfig(tls_certificate="c", tls_client_authentication="optional"), "trustCertPath"),
    ],
)
def test_tls_that_cannot_work_is_a_config_error(config: NameServerConfig, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        server_tls(config)


def test_tls_to_brokers_is_off_unless_asked_for() -> None:
    assert client_tls(NameServerConfig()) is None
    assert client_tls(NameServerConfig(tls_outgoing=True)) is not None
    with pytest.raises(ConfigError, match="trustCertPath"):
        client_tls(NameServerConfig(tls_outgoing=True, tls_client_checks_server=True))


# -- changes by request ----------------------------------------------------------------------------------


def test_update_changes_reports_and_stores() -> None:
    fs = FaultyFileSystem()
    seen: list[NameServerConfig] = []
    live = LiveConfig(
        NameServerConfig(), SafeFile(fs, PATH), {"listenPort": "1", "unknown": "kept"}, seen.append
    )
    asyncio.run(live.update("enableTopicList=false\nserverWorkerThreads=9\n"))
    assert live.current == NameServerConfig(enable_topic_list=False)
    assert seen == [live.current]
    assert fs.content(PATH) == b"enableTopicList=false\nlistenPort=1\nserverWorkerThreads=9\nunknown=kept\n"


@pytest.mark.parametrize("text", ["enableTopicList=x\x0clistenPort=1", "a\u2028b=1", "enableTopicLst=1"])
def test_update_with_control_character_or_unknown_key_is_refused(text: str) -> None:
    fs = FaultyFileSystem()
    live = LiveConfig(NameServerConfig(), SafeFile(fs, PATH))
    with pytest.raises(ServerError):
        asyncio.run(live.update(text))
    assert fs.paths() == []


def test_update_without_change_writes_nothing() -> None:
    fs = FaultyFileSystem()
    live = LiveConfig(NameServerConfig(), SafeFile(fs, PATH))
    asyncio.run(live.update("enableTopicList=true\nlistenPort=9876\n"))
    assert fs.paths() == []


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("kvConfigPath=/etc/passwd", NoPermission, "kvConfigPath"),
        ("rocketmqHome=/x", NoPermission, "rocketmqHome"),
        ("mine=1", NoPermission, "mine"),
        ("listenPort=1", NoPermission, "restart"),
        ("enableTopicList=maybe", ServerError, "true or false"),
        ("waitSecondsForService=-1", ServerError, "at least 0"),
    ],
)
def test_update_that_cannot_be_taken_changes_nothing(text: str, error: type[Exception], reason: str) -> None:
    config = NameServerConfig(config_black_list="mine")
    live = LiveConfig(config)
    with pytest.raises(error, match=reason):
        asyncio.run(live.update("enableAllTopicList=false\n" + text))
    assert live.current == config


def test_update_that_cannot_be_stored_changes_nothing() -> None:
    fs = FaultyFileSystem()
    fs.fail_writes()
    live = LiveConfig(NameServerConfig(), SafeFile(fs, PATH))
    with pytest.raises(ServerError, match="cannot be written"):
        asyncio.run(live.update("enableTopicList=false"))
    assert live.current == NameServerConfig()


def test_stored_text_reads_back_as_it_was(tmp_path: Path) -> None:
    values = {"a key": "x=y:z", "path": "C:\\dir\tname", "lead": " space", "plain": "grün", "#no": "!comment"}
    fs = FaultyFileSystem()
    live = LiveConfig(NameServerConfig(), SafeFile(fs, PATH), values)
    asyncio.run(live.update("enableTopicList=false"))
    stored = parse_properties(fs.content(PATH).decode(), PATH)
    assert stored.values == {**values, "enableTopicList": "false"}
