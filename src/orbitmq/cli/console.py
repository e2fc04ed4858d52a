"""``orbitmq console``: serves the web console for this project's clusters and Apache's."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orbitmq.cli.admin_kit.connect import connection_options, open_admin
from orbitmq.cli.servers import fail, logging_options, run_server
from orbitmq.errors import ConfigError
from orbitmq.runtime.logs import configure_logging
from orbitmq.runtime.options import options_of

if TYPE_CHECKING:
    from orbitmq.console.serve import RunningConsole
    from orbitmq.console.settings import OptionMeaning

__all__ = ["console_command", "missing_packages", "option_meanings"]

_PACKAGES = ("starlette", "uvicorn", "jinja2", "python_multipart")
INSTALL_HINT = "pip install 'orbitmq[console]'"


def missing_packages() -> list[str]:
    """Returns the packages that the console requires and that are not installed."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


def option_meanings() -> Mapping[str, OptionMeaning]:
    """Returns the descriptions of our broker's options by name. Apache's options have the same names."""
    from orbitmq.auth.config import AuthConfig
    from orbitmq.broker.config import BrokerConfig
    from orbitmq.console.settings import OptionMeaning
    from orbitmq.store.config import StoreConfig
    from orbitmq.transport.tls import TlsConfig

    return {
        one.key: OptionMeaning(one.doc, one.reload)
        for config in (StoreConfig, BrokerConfig, AuthConfig, TlsConfig)
        for one in options_of(config)
    }


def _new_password(*, from_stdin: bool) -> str:
    if not from_stdin:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ConfigError("--password-stdin found no password on standard input")
    return password


@click.command("console")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0: any free one."
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for chart history and audit log; without it, both are lost when the process ends.",
)
@click.option(
    "--users",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of users who may log in; see --add-user.",
)
@click.option("--broker-login", is_flag=True, help="Log in with the broker's users.")
@click.option(
    "--add-user", metavar="NAME", help="Add a user to the file of --users, ask for the password, and exit."
)
@click.option("--password-stdin", is_flag=True, help="Read the password for --add-user from standard input.")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    default="viewer",
    help="Role for --add-user [viewer].",
)
@click.option("--read-only", is_flag=True, help="Refuse all changes, whatever the user's role.")
@click.option(
    "--bodies",
    type=click.Choice(["show", "mask", "off"]),
    default="show",
    show_default=True,
    help="What is shown of message bodies.",
)
@click.option("--mask", "masks", multiple=True, metavar="FIELD", help="A field to hide with --bodies mask.")
@click.option(
    "--pipelines",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with checkpoints of pipelines.",
)
@click.option("--host-name", "hosts", multiple=True, help="Name the console answers to, behind a proxy.")
@click.option("--secure-cookies", is_flag=True, help="The console is served through an HTTPS proxy.")
@logging_options
def console_command(**given: Any) -> None:
    """Serve the web console of a cluster until SIGTERM or SIGINT.

    On loopback, anyone who can reach the port has full access. On any other address, a login is required.
    """
    if missing := missing_packages():
        fail(f"the console needs {', '.join(missing)}: {INSTALL_HINT}")
    from orbitmq.console.security import UserFile
    from orbitmq.console.serve import serve_console
    from orbitmq.console.settings import Bodies, ConsoleSettings, Role

    try:
        configure_logging(given["log_level"].upper(), given["log_file"])
        if given["add_user"]:
            if given["users"] is None:
                raise ConfigError("--add-user needs --users FILE")
            password = _new_password(from_stdin=given["password_stdin"])
            UserFile.add(given["users"], given["add_user"], Role.parse(given["role"]), password)
            click.echo(f"{given['add_user']} is {given['role']} in {given['users']}")
            return
        admin = open_admin(given, os.environ)
        if not admin.name_servers:
            raise ConfigError("no name server is given: use -n HOST:PORT or the variable ORBITMQ_NAMESRV")
        settings = ConsoleSettings(
            state=given["state"],
            users=given["users"],
            broker_login=given["broker_login"],
            bodies=Bodies(given["bodies"]),
            masks=given["masks"],
            pipelines=given["pipelines"],
            read_only=given["read_only"],
            hosts=frozenset(given["hosts"]),
            secure_cookies=given["secure_cookies"],
            meanings=option_meanings(),
        )
    except (ConfigError, OSError) as error:
        fail(str(error))

    @contextlib.asynccontextmanager
    async def server() -> AsyncIterator[RunningConsole]:
        async with serve_console(admin, settings, host=given["host"], port=given["port"]) as running:
            yield running

    run_server(server, lambda running: f"orbitmq console ready, {running.url}")


console_command.params = [
    *(option for option in connection_options() if option.name != "as_json"),
    *console_command.params,
]
