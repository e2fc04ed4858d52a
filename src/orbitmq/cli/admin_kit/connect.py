"""Options that all commands have in common: the cluster's address and how to connect to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from orbitmq.admin import Admin, AdminOptions
from orbitmq.admin.session import Progress
from orbitmq.cli.contexts import Context, current_context
from orbitmq.cli.name_server import NAME_SERVER_DEFAULT, NAME_SERVER_VARIABLES, NameServerOption

__all__ = ["CONNECTION_KEYS", "connection_given", "connection_options", "open_admin"]


def connection_options() -> list[click.Option]:
    """Returns new connection options for one command or group."""
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    return [
        NameServerOption(["namesrv_addr"]),
        click.Option(
            ["--context", "context"], help="Saved context to use (`orbitmq context`). Else ORBITMQ_CONTEXT."
        ),
        click.Option(["--json", "as_json"], is_flag=True, default=None, help="The result as JSON."),
        click.Option(
            ["--wide", "wide"],
            is_flag=True,
            default=None,
            help="Print mqadmin's lines unwrapped, as into a pipe.",
        ),
        click.Option(
            ["--timeout", "timeout_s"],
            type=click.FloatRange(min=0.1),
            help="Seconds to wait for an answer [5].",
        ),
        click.Option(
            ["--accessKey", "access_key"], help="Sign requests. Else ORBITMQ_ACCESS_KEY, else conf/tools.yml."
        ),
        click.Option(
            ["--secretKey", "secret_key"],
            help="The key's secret. Else ORBITMQ_SECRET_KEY, which `ps` does not show.",
        ),
        click.Option(["--securityToken", "security_token"], help="Sent along with the key."),
        click.Option(["--tls", "tls"], is_flag=True, default=None, help="Encrypt the connections."),
        click.Option(
            ["--tlsCa", "tls_ca"], type=path, help="Certificates to trust; without, any is accepted."
        ),
        click.Option(
            ["--tlsAnyHost", "tls_any_host"],
            is_flag=True,
            default=None,
            help="With --tlsCa: accept a certificate for another host name.",
        ),
        click.Option(["--tlsCert", "tls_cert"], type=path, help="Certificate of this client."),
        click.Option(["--tlsKey", "tls_key"], type=path, help="Key of that certificate."),
    ]


CONNECTION_KEYS: Final = tuple(str(option.name) for option in connection_options())
_VARIABLES: Final[dict[str, tuple[str, ...]]] = {
    "namesrv_addr": NAME_SERVER_VARIABLES,
    "access_key": ("ORBITMQ_ACCESS_KEY",),
    "secret_key": ("ORBITMQ_SECRET_KEY",),
    "security_token": ("ORBITMQ_SECURITY_TOKEN",),
    "tls": ("ORBITMQ_TLS",),
    "tls_ca": ("ORBITMQ_TLS_CA",),
    "tls_any_host": ("ORBITMQ_TLS_ANY_HOST",),
    "tls_cert": ("ORBITMQ_TLS_CERT",),
    "tls_key": ("ORBITMQ_TLS_KEY",),
}
_FLAGS: Final = frozenset({"tls", "tls_any_host"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})


def _tools_file(home: str) -> tuple[str | None, str | None]:
    """Returns both keys from mqadmin's ``conf/tools.yml`` below ROCKETMQ_HOME, or None twice if either is missing."""
    path = Path(home) / "conf" / "tools.yml"
    if not home or not path.is_file():
        return None, None
    import yaml

    try:
        value = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    key, secret = (
        (value.get(name) for name in ("accessKey", "secretKey")) if isinstance(value, dict) else ("", "")
    )
    return (str(key), str(secret)) if key and secret else (None, None)


def _take_context(given: dict[str, Any], context: Context) -> None:
    """Fill in values from the context that neither options nor variables have set."""
    given["namesrv_addr"] = given["namesrv_addr"] or context.name_servers
    if not given["access_key"] and not given["secret_key"]:
        given["access_key"], given["secret_key"] = context.access_key, context.secret_key
    if context.tls or context.tls_ca:
        given["tls"] = True
        given["tls_ca"] = given["tls_ca"] or context.tls_ca or None


def connection_given(settings: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns a command's options, with missing values taken from ``environment`` and then from the current context.

    Raises ``click.UsageError`` if only one key of a pair is given.
    """
    chosen = settings.get("context")
    given: dict[str, Any] = {key: settings.get(key) for key in CONNECTION_KEYS}
    for key, names in _VARIABLES.items():
        if given[key] or (key == "namesrv_addr" and chosen):  # a selected context has its own
            continue
        text = next((environment[name] for name in names if environment.get(name)), None)
        given[key] = text if key not in _FLAGS else (text or "").strip().lower() not in _OFF
    if not given["access_key"] and not given["secret_key"]:
        given["access_key"], given["secret_key"] = _tools_file(environment.get("ROCKETMQ_HOME") or "")
    context = current_context(chosen or "") if chosen or not given["namesrv_addr"] else None
    if context is not None:
        _take_context(given, context)
    if bool(given["access_key"]) != bool(given["secret_key"]):
        raise click.UsageError("--accessKey and --secretKey belong together")
    return given


def open_admin(settings: dict[str, Any], environment: Any, progress: Progress | None = None) -> Admin:
    """Open a session with a command's options. Missing values are taken as in ``connection_given``.

    Raises ``ConfigError`` for unusable TLS files, and ``click.UsageError`` if only one key of a pair is given.
    """
    given = connection_given(settings, environment)
    credentials = None
    if given["access_key"]:
        from orbitmq.client.options import Credentials

        credentials = Credentials(given["access_key"], given["secret_key"], given["security_token"] or "")
    tls = None
    if given["tls"] or given["tls_ca"] or given["tls_cert"]:
        from orbitmq.transport.tls import client_context

        tls = client_context(
            trusted=given["tls_ca"],
            certificate=given["tls_cert"],
            key=given["tls_key"],
            check_host=not given["tls_any_host"],
        )
    options = AdminOptions(timeout_s=given["timeout_s"] or 5.0, credentials=credentials, tls=tls)
    servers = given["namesrv_addr"] or NAME_SERVER_DEFAULT
    return Admin(servers, options) if progress is None else Admin(servers, options, progress=progress)
