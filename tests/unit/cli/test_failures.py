"""Failure messages: the reason in one line, and the remedy that fits it."""

from __future__ import annotations

import errno

import click
import pytest

from orbitmq.cli import entry
from orbitmq.cli.failures import remedies, start_failure
from orbitmq.client import ConnectFailedError, NameServerError, NoRouteError
from orbitmq.codes import ResponseCode
from orbitmq.errors import BrokerError, ConfigError, MessageIllegal, OrbitError, TopicNotFound, error_for_code


def test_port_in_use_names_the_option_of_the_command_that_failed() -> None:
    error = OSError(errno.EADDRINUSE, "address 127.0.0.1:9876 already in use")
    assert start_failure(error) == (
        "address 127.0.0.1:9876 already in use. "
        "Stop the program that has it, or choose another port: --set listenPort=PORT"
    )
    with click.Context(click.Command("up"), info_name="up"):
        assert start_failure(error).endswith("another port: --port, --broker-port, --metrics-port")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EPERM])
def test_folder_that_cannot_be_used_is_named_once(number: int) -> None:
    text = start_failure(OSError(number, "no use", "/srv/store"))
    assert text.count("/srv/store") == 1
    assert text.startswith("no use")
    assert text.endswith("Name a folder that this user may write: --data, --set storePathRootDir=...")


def test_full_disk_says_to_free_space() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert start_failure(full) == "No space left on device. Free space on the disk of the store"


def test_other_failures_keep_their_text_without_the_number() -> None:
    assert start_failure(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    assert start_failure(ConfigError("listenPort must be a number")) == "listenPort must be a number"


def test_unreachable_name_server_suggests_tls_only_on_a_plain_connection() -> None:
    plain = remedies(NameServerError("down"), "ns:9876")
    assert [line.split(":")[0] for line in plain] == [
        "If none runs there",
        "If it takes only encrypted connections (TLS)",
    ]
    assert remedies(NameServerError("down"), "ns:9876", encrypted=True) == plain[:1]


@pytest.mark.parametrize("error", [NoRouteError("no route"), TopicNotFound("no topic")])
def test_missing_topic_names_the_commands_that_list_and_create_topics(error: OrbitError) -> None:
    first, second = remedies(error, "ns:9876")
    assert "topicList" in first
    assert "updateTopic" in first
    assert second == "`orbitmq doctor -n ns:9876` searches for the cause."


def test_unreachable_broker_suggests_tls_and_the_doctor() -> None:
    plain = remedies(ConnectFailedError("refused"), "ns:9876")
    assert len(plain) == 3
    assert remedies(ConnectFailedError("refused"), "ns:9876", encrypted=True) == [plain[0], plain[2]]
    assert "orbitmq doctor -n ns:9876" in plain[2]


def test_illegal_message_names_the_limit_of_the_broker() -> None:
    [line] = remedies(MessageIllegal("too large"), "ns:9876")
    assert "maxMessageSize" in line


def test_error_that_explains_itself_gets_no_remedy() -> None:
    assert remedies(OrbitError("nothing to add"), "ns:9876") == []
    unknown = error_for_code(ResponseCode.SYSTEM_ERROR, "boom")
    assert isinstance(unknown, BrokerError)
    assert all(line.endswith(".") and not line.endswith("..") for line in remedies(unknown, "ns:9876"))


def _import_failure(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    def main(**_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("orbitmq.cli.main.main", main)


@pytest.mark.parametrize(
    ("module", "extra"), [("starlette.routing", "console"), ("click", "server"), ("duckdb", "sql")]
)
def test_missing_package_names_the_extra_that_installs_it(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _import_failure(monkeypatch, module)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 1
    package = module.partition(".")[0]
    assert capsys.readouterr().err == (
        f"orbitmq: this needs the package {package}: pip install 'orbitmq[{extra}]'\n"
    )


def test_missing_module_of_ours_is_not_blamed_on_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _import_failure(monkeypatch, "orbitmq.nowhere")
    with pytest.raises(ModuleNotFoundError):
        entry.main()
