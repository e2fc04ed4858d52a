"""``orbitmq context``: named clusters, so that commands need no addresses and keys.

The file is ``orbitmq/contexts.json`` below XDG_CONFIG_HOME (or ``~/.config``), readable only by its owner. Options
and variables override the context; ORBITMQ_CONTEXT selects one for a single command.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click
import msgspec

__all__ = ["CONTEXT_VARIABLE", "Context", "context_commands", "current_context"]

CONTEXT_VARIABLE: Final = "ORBITMQ_CONTEXT"


class Context(msgspec.Struct, omit_defaults=True):
    """Connection settings of a cluster."""

    name_servers: str
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
    tls_ca: str = ""


class _Contexts(msgspec.Struct):
    current: str = ""
    contexts: dict[str, Context] = {}


def _path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base, "orbitmq", "contexts.json")


def _load() -> _Contexts:
    path = _path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Contexts)
    except FileNotFoundError:
        return _Contexts()
    except (OSError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from None


def _save(contexts: _Contexts) -> None:
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written to a temporary file and renamed, so other commands see either the old file or the new one, and other
    # users never see the keys.
    beside = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
    os.replace(beside, path)


def current_context(name: str = "") -> Context | None:
    """Returns the context with this name, or if it is empty, the one that ORBITMQ_CONTEXT names or the current one.

    Returns None if there is none. Raises ``click.ClickException`` for an unknown name.
    """
    wanted = name or os.environ.get(CONTEXT_VARIABLE, "")
    if not wanted and not _path().exists():
        return None
    saved = _load()
    name = wanted or saved.current
    if not name:
        return None
    if name not in saved.contexts:
        raise click.ClickException(
            f"there is no context {name!r}; `orbitmq context list` shows those there are"
        )
    return saved.contexts[name]


@click.group("context")
def context_commands() -> None:
    """Named clusters: save one, use it, and omit -n and keys."""


@context_commands.command("set")
@click.argument("name")
@click.option(
    "-n", "--namesrvAddr", "name_servers", required=True, metavar="HOST:PORT;...", help="Name servers."
)
@click.option("--accessKey", "access_key", default="", help="Sign requests.")
@click.option("--secretKey", "secret_key", default="", help="Its secret; asked for when it is left out.")
@click.option("--tls", is_flag=True, help="Encrypt, and verify servers.")
@click.option("--tlsCa", "tls_ca", default="", type=click.Path(dir_okay=False), help="Certificates to trust.")
def set_command(
    name: str, name_servers: str, access_key: str, secret_key: str, tls: bool, tls_ca: str
) -> None:
    """Save a context, and use it if it is the first one."""
    if access_key and not secret_key:
        secret_key = click.prompt("secret key", hide_input=True)
    saved = _load()
    ca = str(Path(tls_ca).resolve()) if tls_ca else ""
    saved.contexts[name] = Context(name_servers, access_key, secret_key, tls, ca)
    saved.current = saved.current or name
    _save(saved)
    click.echo(f"context {name} saved" + (", in use" if saved.current == name else ""))


@context_commands.command("use")
@click.argument("name")
def use_command(name: str) -> None:
    """Use a context from now on."""
    saved = _load()
    if name not in saved.contexts:
        raise click.ClickException(
            f"there is no context {name!r}; there is {', '.join(saved.contexts) or 'none'}"
        )
    saved.current = name
    _save(saved)
    click.echo(f"context {name} in use")


@context_commands.command("list")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, without secrets.")
def list_command(as_json: bool) -> None:
    """Show the contexts; the one in use has a star."""
    saved = _load()
    current = os.environ.get(CONTEXT_VARIABLE) or saved.current
    if as_json:
        rows = {
            name: {
                "current": name == current,
                "nameServers": context.name_servers,
                "accessKey": context.access_key,
            }
            for name, context in saved.contexts.items()
        }
        click.echo(json.dumps(rows))
        return
    for name, context in sorted(saved.contexts.items()):
        extra = (" tls" if context.tls or context.tls_ca else "") + (" signed" if context.access_key else "")
        click.echo(f"{'*' if name == current else ' '} {name}  {context.name_servers}{extra}")


@context_commands.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Remove a context."""
    saved = _load()
    if saved.contexts.pop(name, None) is None:
        raise click.ClickException(f"there is no context {name!r}")
    if saved.current == name:
        saved.current = ""
    _save(saved)
    click.echo(f"context {name} removed")
