"""``orbitmq store repair``: corruption in the log of a slave or a master, repaired from the other one."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.integration.ha_kit import introduce, make_broker, put, until
from tests.unit.transport.loops import on_both_loops

from orbitmq.broker.config import BrokerRole
from orbitmq.cli.store import store_commands

pytestmark = pytest.mark.slow


def logs(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def rot(root: Path) -> int:
    """Flips bytes and zeroes a page in several places; returns the number of segments."""
    paths = sorted((root / "commitlog").iterdir())
    for number, path in enumerate(paths):
        content = bytearray(path.read_bytes())
        used = len(content.rstrip(b"\0"))
        for at in (0, used // 3, used // 2):
            for position in range(at + 100, min(used, at + 160)):
                content[position] ^= 0x5A
        if number == 0:
            content[8192:12288] = bytes(4096)
        path.write_bytes(content)
    return len(paths)


async def command(*arguments: str) -> Result:
    run = functools.partial(CliRunner().invoke, store_commands, list(arguments))
    return await asyncio.to_thread(run)


@on_both_loops
async def test_rot_of_a_slave_and_then_of_its_master_is_put_back_from_the_other(tmp_path: Path) -> None:
    master, slave = make_broker(tmp_path / "master"), make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1)
    await master.start()
    await slave.start()
    introduce(slave, master)
    await until(lambda: bool(master.roles.replicas.links), "the connection")
    await until(lambda: master.roles.replicas.links[0].next_offset == 0, "the first report")
    put(master, 9_000, body=b"x" * 200)
    end = master.store.max_log_offset
    assert end > 2 * 1024 * 1024
    await until(lambda: slave.store.max_log_offset == end, "the log")
    await slave.stop()
    whole = logs(tmp_path / "slave")
    rot(tmp_path / "slave")
    running = await command("repair", str(tmp_path / "master"), "--from", master.ha_address)
    assert running.exit_code == 2
    assert "another broker has this store open" in running.output
    planned = await command("repair", str(tmp_path / "slave"), "--from", master.ha_address, "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert logs(tmp_path / "slave") != whole
    done = await command("repair", str(tmp_path / "slave"), "--from", master.ha_address)
    assert done.exit_code == 0, done.output
    assert "0 left" in done.output
    assert logs(tmp_path / "slave") == whole
    await master.stop()

    # The other way round: the master is stopped, its slave serves the bytes.
    rot(tmp_path / "master")
    slave = make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1)
    async with slave:
        done = await command("repair", str(tmp_path / "master"), "--from", slave.ha_address)
    assert done.exit_code == 0, done.output
    mine, theirs = logs(tmp_path / "master"), logs(tmp_path / "slave")
    assert all(mine[name] == theirs[name] for name in theirs if name in mine)
    checked = await command("verify", str(tmp_path / "master"), "--quiet")
    assert checked.exit_code == 0, checked.output


@on_both_loops
async def test_broker_that_cannot_help_is_named_and_nothing_changes(tmp_path: Path) -> None:
    master, other = make_broker(tmp_path / "master"), make_broker(tmp_path / "other")
    async with master:
        put(master, 2_000, body=b"x" * 200)
    rot(tmp_path / "master")
    damaged = logs(tmp_path / "master")
    async with other:
        refused = await command("repair", str(tmp_path / "master"), "--from", other.ha_address)
    assert refused.exit_code == 1
    assert other.ha_address in refused.output
    nobody = await command("repair", str(tmp_path / "master"), "--from", "127.0.0.1:1")
    assert nobody.exit_code == 1
    assert "Connection refused" in nobody.output
    assert logs(tmp_path / "master") == damaged
