"""The option ``-n`` for name server addresses, spelled the same in every command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

__all__ = [
    "NAME_SERVER_DEFAULT",
    "NAME_SERVER_VARIABLES",
    "NameServerOption",
    "name_server_option",
    "name_servers_in_use",
]

NAME_SERVER_DEFAULT: Final = "127.0.0.1:9876"
NAME_SERVER_VARIABLE: Final = "ORBITMQ_NAMESRV"
NAME_SERVER_VARIABLES: Final = (NAME_SERVER_VARIABLE, "NAMESRV_ADDR")
F = TypeVar("F", bound=Callable[..., Any])
_SPELLINGS: Final = ("--namesrv-addr", "--namesrv")
"""Other spellings that are accepted, from earlier releases and other tools."""


class NameServerOption(click.Option):
    """The option ``-n, --namesrvAddr HOST:PORT;...``."""

    def __init__(self, names: Sequence[str], **settings: Any) -> None:
        text = (
            settings.pop("help", None)
            or f"Name servers. Else {' or '.join(NAME_SERVER_VARIABLES)}, else the context [{NAME_SERVER_DEFAULT}]."
        )
        spelt = ["-n", "--namesrvAddr", *_SPELLINGS, *names]
        super().__init__(spelt, metavar="HOST:PORT;...", help=text, **settings)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return f"-n, --namesrvAddr {self.metavar}", self.help or ""


def name_server_option(name: str = "namesrv") -> Callable[[F], F]:
    """Returns a decorator that adds the option. Its value is never empty."""
    return click.option(
        name, cls=NameServerOption, default=name_servers_in_use, envvar=list(NAME_SERVER_VARIABLES)
    )


def name_servers_in_use() -> str:
    """Returns the addresses of the current context (``orbitmq context``), or the default address on this machine."""
    from orbitmq.cli.contexts import current_context

    context = current_context()
    return NAME_SERVER_DEFAULT if context is None else context.name_servers
