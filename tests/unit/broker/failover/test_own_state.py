"""When a member's log is in doubt: what it reported, how it stopped, and whether the machine went down."""

from __future__ import annotations

import pytest

from orbitmq.broker.failover.own_state import UNKNOWN_EPOCH, OwnState
from orbitmq.runtime.machine import boot_id
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.testing.faulty_fs import FaultyFileSystem

Boots = pytest.MonkeyPatch


def opened(
    file: SafeFile, monkeypatch: Boots, *, boot: str, was_clean: bool, is_empty: bool = False
) -> OwnState:
    monkeypatch.setattr(file.fs, "cache_id", lambda: boot)
    return OwnState(file, is_empty=is_empty, was_clean=was_clean)


def new_file() -> SafeFile:
    return SafeFile(FaultyFileSystem(), "/failover.json")


@pytest.mark.parametrize("exposed", [True, False])
@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize("boot", ["one", "two", ""])
def test_only_reported_bytes_that_a_power_cut_took_cause_doubt(
    monkeypatch: Boots, exposed: bool, was_clean: bool, boot: str
) -> None:
    file = new_file()
    opened(file, monkeypatch, boot="one", was_clean=True, is_empty=True).enter(3, exposed=exposed)
    again = opened(file, monkeypatch, boot=boot, was_clean=was_clean)
    assert again.epoch == 3
    assert again.in_doubt == (exposed and not was_clean and boot != "one")


def test_doubt_stays_over_clean_stops_until_the_log_is_whole(monkeypatch: Boots) -> None:
    file = new_file()
    opened(file, monkeypatch, boot="one", was_clean=True, is_empty=True).enter(3, exposed=True)
    assert opened(file, monkeypatch, boot="two", was_clean=False).in_doubt
    state = opened(file, monkeypatch, boot="two", was_clean=True)
    assert state.in_doubt
    state.enter(4, exposed=False)
    state.cut_to(5)
    assert state.in_doubt
    state.made_whole()
    assert not opened(file, monkeypatch, boot="three", was_clean=False).in_doubt


def test_a_machine_that_does_not_say_its_boot_is_not_believed(monkeypatch: Boots) -> None:
    file = new_file()
    opened(file, monkeypatch, boot="", was_clean=True, is_empty=True).enter(1, exposed=True)
    assert opened(file, monkeypatch, boot="", was_clean=False).in_doubt


def test_files_of_earlier_versions_mean_written(monkeypatch: Boots) -> None:
    for was_clean in (True, False):
        file = new_file()
        file.save(b'{"epoch": 7}')
        state = opened(file, monkeypatch, boot="one", was_clean=was_clean)
        assert (state.epoch, state.in_doubt) == (7, not was_clean)


def test_a_log_without_a_file_is_from_before_failover(monkeypatch: Boots) -> None:
    assert opened(new_file(), monkeypatch, boot="a", was_clean=True).epoch == UNKNOWN_EPOCH
    assert opened(new_file(), monkeypatch, boot="a", was_clean=True, is_empty=True).epoch == 0


def test_the_boot_of_this_machine_stays_the_same() -> None:
    assert boot_id() == boot_id()
