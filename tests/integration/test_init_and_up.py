"""``orbitmq init`` writes files that start unchanged; ``orbitmq up`` is a developer's whole cluster."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from tests.integration.config_files import COMMAND, init, started, wait_for_brokers, written

from orbitmq import Message
from orbitmq.admin import Admin
from orbitmq.admin.doctor import Finding, Level, checkup
from orbitmq.cli.settings import read_broker_settings, read_config
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.sync import Producer


async def look(name_server: str) -> list[Finding]:
    async with Admin(name_server) as admin:
        return (await checkup(admin)).findings


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "brokers"), [("single", 1), ("2m-2s", 4)])
def test_files_of_init_start_as_they_are_and_take_messages(kind: str, brokers: int, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    name_server = written(kind, conf, brokers)
    with started(conf) as running:
        assert len(running) == brokers + 1
        wait_for_brokers(name_server, brokers)
        with Producer("shop", name_server) as producer:
            assert producer.send(Message("Orders", "1")).status.name in ("OK", "SLAVE_NOT_AVAILABLE")
        findings = asyncio.run(look(name_server))
        assert not [one for one in findings if one.level is Level.FAIL and "slave" not in one.what], findings
    assert (conf / "data").is_dir()


@pytest.mark.slow
def test_files_of_failover_are_read_without_a_key_nobody_knows(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    written("failover", conf, 3)
    ids = set()
    for path in sorted(conf.glob("broker-*.conf")):
        settings = read_broker_settings(str(path), ())
        assert settings.config.failover_enabled
        assert not settings.more.kept, "options without effect"
        ids.add(settings.config.broker_id)
    assert ids == {1, 2, 3}
    assert read_config(NameServerConfig, str(conf / "namesrv.conf"), ())[2] == []


@pytest.mark.slow
def test_init_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("mine")
    done = init("single", "-d", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f"orbitmq: {tmp_path}/broker.conf exists already; name another folder with --directory\n"
    )
    assert (tmp_path / "broker.conf").read_text() == "mine"
    assert not (tmp_path / "namesrv.conf").exists()


@pytest.mark.slow
def test_up_with_two_brokers_and_slaves_is_one_screen_and_a_whole_cluster(tmp_path: Path) -> None:
    command = [*COMMAND, "up", "--data", str(tmp_path), "--brokers", "2", "--slaves"]
    ports = [
        part for name in ("--port", "--broker-port", "--metrics-port", "--proxy-port") for part in (name, "0")
    ]
    process = subprocess.Popen(
        [*command, *ports, "--console-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("Or give any RocketMQ client"):
                break
        assert len(lines) <= 24, "more than a screen"
        text = "\n".join(lines)
        brokers = re.findall(r"^  broker +(127\.0\.0\.1:\d+)  (.+)$", text, re.MULTILINE)
        assert [name for _, name in brokers] == [
            "broker-a",
            "broker-a-1",
            "broker-a (slave)",
            "broker-a-1 (slave)",
        ]
        assert re.search(r"^  gRPC +127\.0\.0\.1:\d+", text, re.MULTILINE)
        assert re.search(r"^  console +http://127\.0\.0\.1:\d+/", text, re.MULTILINE)
        found = re.search(r"^  name server +(\S+)$", text, re.MULTILINE)
        assert found, text
        wait_for_brokers(found[1], 4)
        with Producer("shop", found[1]) as producer:
            producer.send(Message("Orders", "1"))
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "the data stays" in rest
    finally:
        process.kill()
        process.communicate()
