"""Declares each command once: its name, its flags, the function it calls, and how the result is shown.

The names of commands, flags and columns are those of Apache's mqadmin 5.5.0, so existing scripts and habits still
work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orbitmq.admin import Admin, Result
from orbitmq.cli.admin_kit.output import Part
from orbitmq.requests import BY_CODE

__all__ = [
    "BROKER",
    "BROKER_NAME",
    "CLUSTER",
    "INTERVAL",
    "Args",
    "Command",
    "Flag",
    "Target",
    "group_flag",
    "targets",
    "topic_flag",
]

Args = Mapping[str, Any]
"""The values of the flags, by their long names; None if not given."""
Call = Callable[[Admin, Args], Awaitable[Result] | AsyncIterator[Result]]
View = Callable[[Any, Args], Sequence[Part]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """An option of a command."""

    names: tuple[str, ...]
    """The names as typed, with the long name last: ``("-t", "--topic")``."""
    help: str
    kind: type[str] | type[int] | type[float] | type[bool] = str
    required: bool = False
    switch: bool = False
    """Whether the flag takes no value."""
    choices: tuple[str, ...] = ()
    default: str | float | None = None
    completes: str = ""
    """What shell completion suggests as the value: topic, group, broker, name or cluster."""
    by_place: bool = False
    """Whether this is a positional argument instead of an option."""

    @property
    def key(self) -> str:
        return self.names[-1].lstrip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The declaration of a command."""

    name: str
    help: str
    call: Call
    view: View
    results: tuple[type[Result], ...]
    """Types that ``call`` may return, depending on the flags. The JSON key reference is generated from them."""
    flags: tuple[Flag, ...] = ()
    one_of: tuple[str, ...] = ()
    """Keys of the flags of which at least one must be given."""
    streams: bool = False
    """Whether ``call`` yields many results. Each is printed as it arrives; with JSON, one per line."""
    clears: bool = False
    """Whether each result replaces the previous one on a terminal."""

    @property
    def apache_only(self) -> bool:
        """Whether this project's servers support none of the command's requests."""
        sent = [request for request in BY_CODE.values() if self.name in request.admin]
        return bool(sent) and not any(request.served_by for request in sent)


def topic_flag(text: str = "Topic.", *, required: bool = True, name: str = "--topic") -> Flag:
    """Declares the flag ``-t``."""
    return Flag(names=("-t", name), help=text, required=required, completes="topic")


def group_flag(name: str, text: str = "Consumer group.", *, required: bool = True) -> Flag:
    """Declares the flag ``-g``. Its long name differs between commands."""
    return Flag(names=("-g", name), help=text, required=required, completes="group")


BROKER: Final = Flag(
    names=("-b", "--brokerAddr"), help="Broker, as host:port or by its name.", completes="broker"
)
BROKER_NAME: Final = Flag(names=("-b", "--brokerName"), help="Broker name.", required=True, completes="name")
CLUSTER: Final = Flag(names=("-c", "--clusterName"), help="Cluster.", completes="cluster")
INTERVAL: Final = Flag(
    names=("-i", "--interval"), help="Repeat every so many seconds until Ctrl-C.", kind=float
)


@dataclass(frozen=True, slots=True)
class Target:
    """The flags ``-b`` and ``-c`` of commands that work on one broker or on a cluster."""

    flags: tuple[Flag, Flag]
    keys: tuple[str, str]


def targets(cluster: str = "--clusterName") -> Target:
    """Returns the flags ``-b`` and ``-c``. The long name of ``-c`` differs between commands."""
    flag = Flag(names=("-c", cluster), help="All masters of this cluster.", completes="cluster")
    return Target((BROKER, flag), (BROKER.key, flag.key))
