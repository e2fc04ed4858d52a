"""Options read and changed while the broker runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.kit import safe_file

from orbitmq.broker.config import BrokerConfig, BrokerRole, change_role
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.live_config import LiveConfig
from orbitmq.errors import NoPermission, ServerError
from orbitmq.runtime.apache_options import WITHOUT_EFFECT_HEADING
from orbitmq.runtime.options import edit_properties, parse_properties
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.config import StoreConfig
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.testing.manual_clock import ManualClock


class Live:
    def __init__(self, file: SafeFile | None = None, **options: Any) -> None:
        self.config = BrokerConfig(**options)
        self.store_config = StoreConfig()
        self.told: list[frozenset[str]] = []
        events = BrokerEvents()
        events.options_changed.append(self.told.append)
        self.clock = ManualClock()
        self.live = LiveConfig(
            self.config,
            (self.store_config,),
            clock=self.clock,
            file=file,
            effective={"brokerIP1": "10.0.0.9", "brokerName": "not used", "useTLS": "false"},
            events=events,
            change_role=self._became,
        )
        self.roles: list[tuple[str, int]] = []
        self.accepted_losses: list[bool] = []

    async def _became(self, role: BrokerRole, broker_id: int, accept_loss: bool) -> None:
        self.accepted_losses.append(accept_loss)
        change_role(self.config, role, broker_id)
        self.roles.append((role.value, broker_id))

    def update(self, text: str) -> frozenset[str]:
        return asyncio.run(self.live.update(text))


def test_text_has_every_option_of_broker_and_store_sorted() -> None:
    live = Live()
    text = live.live.text()
    values = parse_properties(text, "text").values
    assert list(values) == sorted(values)
    assert values["brokerName"] == "broker-a"
    assert values["fileReservedTime"] == "72"
    assert values["brokerIP1"] == "10.0.0.9", "what an empty option came out as"
    assert values["useTLS"] == "false", "what tools look for"
    assert values["flushDiskType"] == "ASYNC_FLUSH"


def test_options_without_effect_follow_a_heading() -> None:
    live = Live(async_send_enabled=False)
    live.live.kept["enableLmqStats"] = "true"
    ordinary, _, idle = live.live.text().partition(f"{WITHOUT_EFFECT_HEADING}\n")
    assert idle == "asyncSendEnable=false\nenableLmqStats=true\n"
    assert "asyncSendEnable" not in ordinary


def test_promise_that_would_be_broken_is_refused() -> None:
    live = Live()
    with pytest.raises(ServerError, match="storeType=defaultRocksDB is refused"):
        live.update("brokerPermission=4\nstoreType=defaultRocksDB")
    assert live.config.permission == 6


def test_change_reaches_both_configs_and_is_told_once() -> None:
    live = Live()
    before = live.live.version
    live.clock.advance(5)
    changed = live.update("brokerPermission=4\nmaxMessageSize=1000\n")
    assert changed == {"brokerPermission", "maxMessageSize"}
    assert (live.config.permission, live.store_config.message_bytes_max) == (4, 1000)
    assert live.told == [changed]
    assert live.live.version.counter == before.counter + 1
    assert live.live.version.timestamp_ms == before.timestamp_ms + 5


def test_nothing_new_changes_nothing() -> None:
    live = Live()
    before = live.live.version
    assert live.update("brokerPermission=6\nbrokerName=broker-a\n") == frozenset()
    assert live.update("") == frozenset()
    assert live.live.version == before
    assert live.told == []


@pytest.mark.parametrize("key", ["brokerConfigPath", "rocketmqHome", "configBlackList", "traceOn"])
def test_black_listed_keys_are_refused(key: str) -> None:
    live = Live(config_black_list="traceOn;regionId")
    with pytest.raises(NoPermission, match=key):
        live.update(f"brokerPermission=4\n{key}=x\n")
    assert live.config.permission == 6


def test_option_that_needs_a_restart_is_refused_with_everything_else() -> None:
    live = Live()
    with pytest.raises(NoPermission, match="listenPort"):
        live.update("brokerPermission=4\nlistenPort=1\n")
    assert live.config.permission == 6


@pytest.mark.parametrize(
    "text",
    [
        "brokerPermission=99",
        "brokerPermission=x",
        "traceOn=maybe",
        "deleteWhen=04\nfileReservedTime=-1",
        "deleteWhen=99",
        "brokerPermission=4\ndeleteWhen=4;24",
    ],
)
def test_bad_value_is_refused_with_its_key_and_nothing_changes(text: str) -> None:
    live = Live()
    key = text.splitlines()[-1].partition("=")[0]
    with pytest.raises(ServerError, match=key):
        live.update(text)
    assert live.live.text() == Live().live.text()


def test_change_is_written_into_the_file_and_leaves_the_rest_of_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    original = "# ours\nbrokerName = broker-a\n\nbrokerPermission : 6\nunknown=kept\n"
    path.write_text(original)
    live = Live(safe_file(tmp_path, "broker.conf"))
    live.update("brokerPermission=4\nmaxMessageSize=1000")
    assert path.read_text() == (
        "# ours\nbrokerName = broker-a\n\nbrokerPermission=4\nunknown=kept\nmaxMessageSize=1000\n"
    )
    assert (tmp_path / "broker.conf.bak").read_text() == original


def test_file_that_cannot_be_written_stops_the_change() -> None:
    fs = FaultyFileSystem()
    live = Live(SafeFile(fs, "/conf/broker.conf"))
    fs.fail_writes()
    with pytest.raises(ServerError, match="written"):
        live.update("brokerPermission=4")
    assert live.config.permission == 6
    fs.heal()
    live.update("brokerPermission=4")
    assert live.config.permission == 4
    assert fs.content("/conf/broker.conf") == b"brokerPermission=4\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "k=new\n"),
        ("k=old", "k=new\n"),
        ("  k   old\nz=1\n", "k=new\nz=1\n"),
        ("k=a\\\n  b\\\n  c\nz=1\n", "k=new\nz=1\n"),
        ("z=a\\\n k=b\n", "z=a\\\n k=b\nk=new\n"),
        ("k=1\nz=2\nk=3\n", "k=1\nz=2\nk=new\n"),
        ("k=old\\", "k=new\n"),
        ("#k=old\n", "#k=old\nk=new\n"),
    ],
)
def test_editing_keeps_every_other_line(before: str, after: str) -> None:
    assert edit_properties(before, {"k": "new"}) == after
    assert parse_properties(after, "after").values["k"] == "new"


@pytest.mark.parametrize(
    "value", [" leading", "back\\slash", "two\nlines", "tab\there", "a=b:c#d", "ünïcode"]
)
def test_edited_value_is_read_back_as_it_was(value: str) -> None:
    assert parse_properties(edit_properties("", {"k": value}), "after").values["k"] == value


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (("ASYNC_MASTER", 0), "brokerRole=SLAVE", ("SLAVE", 1)),
        (("ASYNC_MASTER", 0), "brokerRole=SLAVE\nbrokerId=4", ("SLAVE", 4)),
        (("ASYNC_MASTER", 0), "brokerRole=SYNC_MASTER", ("SYNC_MASTER", 0)),
        (("SLAVE", 3), "brokerRole=ASYNC_MASTER", ("ASYNC_MASTER", 0)),
        (("SLAVE", 3), "brokerId=5", ("SLAVE", 5)),
        (("SLAVE", 3), "brokerRole=SLAVE", None),
        (("SLAVE", 3), "brokerId=3", None),
    ],
)
def test_role_changes_and_one_key_implies_the_other(
    before: tuple[str, int], text: str, after: tuple[str, int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"brokerRole={before[0]}\nbrokerId={before[1]}\n")
    live = Live(safe_file(tmp_path, "broker.conf"), role=BrokerRole(before[0]), broker_id=before[1])
    changed = live.update(text)
    assert live.roles == ([] if after is None else [after])
    assert changed == (frozenset() if after is None else {"brokerRole", "brokerId"})
    role, broker_id = before if after is None else after
    assert path.read_text() == f"brokerRole={role}\nbrokerId={broker_id}\n", "a restart keeps the role"


@pytest.mark.parametrize(
    "text",
    [
        "brokerRole=KING",
        "brokerRole=SLAVE\nbrokerId=0",
        "brokerRole=SYNC_MASTER\nbrokerId=1",
        "brokerId=1",
        "brokerId=-1",
    ],
)
def test_role_that_cannot_be_is_refused_with_everything_else(text: str) -> None:
    live = Live()
    with pytest.raises(ServerError, match="broker"):
        live.update(f"brokerPermission=4\n{text}")
    assert live.roles == []
    assert live.config.permission == 6


@pytest.mark.parametrize(
    "break_", ["\x0c", "\x0b", "\x85", "\u2028", "\u2029", "\\n", "\\r", "\\u000a", "\x1c", "\x00"]
)
def test_injected_option_line_is_refused_and_the_file_unchanged(tmp_path: Path, break_: str) -> None:
    """Issue 21: a value with a character that ends a line for some reader wrote a second option into the file."""
    file = safe_file(tmp_path, "broker.conf")
    file.save(b"brokerName=a\n")
    live = Live(file)
    with pytest.raises(ServerError, match="control character"):
        live.update(f"regionId=x{break_}storePathRootDir=elsewhere\n")
    assert (tmp_path / "broker.conf").read_bytes() == b"brokerName=a\n"


@pytest.mark.parametrize("break_", ["\x0c", "\x0b", "\x85", "\u2028", "\n", "\r"])
def test_value_in_a_file_never_reads_back_as_two_options(break_: str) -> None:
    value = f"x{break_}storePathRootDir=elsewhere"
    assert parse_properties(edit_properties("", {"k": value}), "after").values == {"k": value}


@pytest.mark.parametrize("break_", ["\x0c", "\x0b", "\x85", "\u2028", "\x1d"])
def test_line_of_a_file_ends_only_where_java_ends_it(break_: str) -> None:
    values = parse_properties(f"k=x{break_}l=y\nm=1", "file").values
    assert values == {"k": f"x{break_}l=y", "m": "1"}


def test_update_of_a_key_nobody_knows_is_refused_with_a_suggestion() -> None:
    live = Live()
    with pytest.raises(ServerError, match="did you mean maxMessageSize"):
        live.update("maxMesageSize=1\n")


def test_update_of_a_key_only_apache_knows_is_kept_and_marked(tmp_path: Path) -> None:
    file = safe_file(tmp_path, "broker.conf")
    live = Live(file)
    assert live.update("useEpollNativeSelector=true\n") == frozenset()
    assert live.told == []
    _, _, marked = live.live.text().partition("no effect")
    assert "useEpollNativeSelector=true" in marked
    assert "useEpollNativeSelector=true" in (tmp_path / "broker.conf").read_text()


def test_elected_master_takes_changes_although_no_file_could_make_it_master() -> None:
    live = Live(failover_enabled=True, broker_id=1)
    change_role(live.config, BrokerRole.SYNC_MASTER, 0)
    assert live.update("brokerPermission=4\nmaxMessageSize=1000\n") == {"brokerPermission", "maxMessageSize"}


def test_loss_is_accepted_with_a_role_only() -> None:
    live = Live()
    live.update("brokerRole=SLAVE\nbrokerId=2\n")
    live.update("brokerRole=SYNC_MASTER\nacceptLoss=true\n")
    live.update("brokerRole=SLAVE\nbrokerId=2\nacceptLoss=no\n")
    assert live.accepted_losses == [False, True, False]
    with pytest.raises(ServerError, match="acceptLoss"):
        live.update("acceptLoss=true\n")
