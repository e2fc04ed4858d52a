"""Failure messages for users: one line for the problem, followed by how to fix it."""

from __future__ import annotations

import errno
from typing import Final

import click

from orbitmq.errors import BrokerError, MessageIllegal, OrbitError, TopicNotFound

__all__ = ["remedies", "start_failure"]

_PORT: Final = "Stop the program that has it, or choose another port: "
_PORT_OPTIONS: Final = {"up": "--port, --broker-port, --metrics-port"}
"""Hint for commands that start more than one server. All other server commands have ``--set listenPort=PORT``."""
_TLS: Final = "If it takes only encrypted connections (TLS): --tls, or --tlsCa FILE with its authority."
_FOLDER: Final = "Name a folder that this user may write: --data, --set storePathRootDir=..."


def start_failure(error: BaseException) -> str:
    """Returns one line that says why a server could not start."""
    text = str(error)
    if isinstance(error, OSError):
        number = error.errno
        text = text.removeprefix(f"[Errno {number}] ")
        if number == errno.EADDRINUSE:
            context = click.get_current_context(silent=True)
            command = (context.info_name or "") if context is not None else ""
            return f"{text}. {_PORT}{_PORT_OPTIONS.get(command, '--set listenPort=PORT')}"
        if number in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EROFS):
            where = f"{error.filename}: " if error.filename and str(error.filename) not in text else ""
            return f"{where}{text}. {_FOLDER}"
        if number == errno.ENOSPC:
            return f"{text}. Free space on the disk of the store"
    return text


def remedies(error: OrbitError, name_server: str, *, encrypted: bool = False) -> list[str]:
    """Returns hints for users of ``produce``, ``consume`` and ``run``; empty if the error needs no explanation."""
    from orbitmq.client import ConnectFailedError, NameServerError, NoRouteError, SendConnectionError
    from orbitmq.client.errors import hint_for

    doctor = f"`orbitmq doctor -n {name_server}` searches for the cause."
    if isinstance(error, NameServerError):
        lines = [
            "If none runs there: `orbitmq up` starts one, with a broker. If it is elsewhere: -n HOST:PORT."
        ]
        if not encrypted:
            lines.append(_TLS)
        return lines
    if isinstance(error, NoRouteError | TopicNotFound):
        return ["`orbitmq admin topicList` lists the topics, `updateTopic` creates or changes one.", doctor]
    if isinstance(error, MessageIllegal):
        return ["Send less in one message; a broker's own limit is maxMessageSize."]
    if isinstance(error, SendConnectionError | ConnectFailedError):
        return ["Its broker is down or cannot be reached from here.", *([] if encrypted else [_TLS]), doctor]
    if isinstance(error, BrokerError) and (hint := hint_for(error.response_code)):
        return [f"{hint}."]
    return []
