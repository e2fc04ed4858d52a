"""Explains failures to users with a message, hints and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orbitmq.admin import Admin, NoNameServerError, PartlyDoneError, UnknownNameError, UnreachableError
from orbitmq.codes import ResponseCode
from orbitmq.errors import BrokerError, OrbitError

__all__ = ["EXIT_FAILED", "EXIT_NO_ANSWER", "EXIT_UNKNOWN", "Failure", "explain", "nearest"]

EXIT_FAILED: Final = 1
EXIT_NO_ANSWER: Final = 3
EXIT_UNKNOWN: Final = 4
_NOT_THERE: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.BROKER_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.NO_MESSAGE,
    }
)
_ABOUT_A_NAME: Final = _NOT_THERE | {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR}
_RETRY: Final = "%RETRY%"
_TOPIC_KEYS: Final = ("topic", "topicName", "traceTopic")
_GROUP_KEYS: Final = ("groupName", "consumerGroup", "group", "srcGroup", "destGroup")


@dataclass(frozen=True, slots=True)
class Failure:
    text: str
    hints: list[str]
    exit_code: int
    response_code: int | None = None


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Returns known names similar to ``name``, best match first, ignoring case."""
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return [by_lower[one] for one in found if by_lower[one] != name]


def _meant(name: str, known: Iterable[str]) -> list[str]:
    found = nearest(name, known)
    return [f"Did you mean {' or '.join(found)}?"] if found else []


async def explain(admin: Admin, args: Mapping[str, Any], error: OrbitError) -> Failure:
    """Returns the failure to report. Queries the name server for similar names if a name may be misspelled."""
    match error:
        case NoNameServerError():
            return Failure(
                str(error),
                [
                    "Give it with -n HOST:PORT, or set the variable NAMESRV_ADDR.",
                    "`orbitmq up` runs one at 127.0.0.1:9876.",
                ],
                EXIT_NO_ANSWER,
            )
        case UnreachableError():
            return Failure(str(error), _checks(error), EXIT_NO_ANSWER)
        case PartlyDoneError():
            hints = [f"Done: {', '.join(error.done)}."]
            hints += (f"Not done: {address}: {why}" for address, why in error.failures.items())
            return Failure(str(error), hints, EXIT_FAILED)
        case UnknownNameError():
            hints = _meant(error.name, error.known)
            if not hints and 0 < len(error.known) <= 20:
                hints = [f"There is: {', '.join(error.known)}."]
            if not error.known:
                hints += await _look_around(admin, args)
            return Failure(str(error), hints, EXIT_UNKNOWN)
        case BrokerError():
            from orbitmq.client.errors import hint_for

            code = error.response_code
            hints = await _look_around(admin, args) if code in _ABOUT_A_NAME else []
            if hint := hint_for(code):
                hints.append(f"{hint}.")
            exit_code = EXIT_UNKNOWN if code in _NOT_THERE else EXIT_FAILED
            return Failure(_first_line(error), hints, exit_code, code)
    return Failure(str(error), [], EXIT_FAILED)


def _first_line(error: BrokerError) -> str:
    """Returns the first line of the remark and the code. Apache appends the address of a document in further
    lines.
    """
    return f"{(error.remark.splitlines() or [type(error).__name__])[0].strip()} (code {error.response_code})"


def _checks(error: UnreachableError) -> list[str]:
    if error.role == "name server":
        return [
            "If none runs there: `orbitmq up` starts one, with a broker. If it is elsewhere: -n HOST:PORT or the "
            "variable NAMESRV_ADDR.",
            "One that takes only encrypted connections needs --tls.",
        ]
    return [
        f"Check that the {error.role} runs at {error.address} and that this machine reaches it.",
        "Brokers are found at the address they registered with: see brokerIP1 in their settings.",
        "One that takes only encrypted connections needs --tls.",
    ]


async def _look_around(admin: Admin, args: Mapping[str, Any]) -> list[str]:
    """Returns hints with names similar to the command's topic and groups, for those that do not exist."""
    from orbitmq.admin.topics import topic_names

    try:
        names = set((await topic_names(admin)).topics)
    except OrbitError:
        return []
    hints: list[str] = []
    for key in _TOPIC_KEYS:
        topic = args.get(key)
        if isinstance(topic, str) and topic not in names:
            hints += _meant(topic, (name for name in names if not name.startswith("%")))
    groups = {name.removeprefix(_RETRY) for name in names if name.startswith(_RETRY)}
    for key in _GROUP_KEYS:
        group = args.get(key)
        if isinstance(group, str) and group not in groups:
            hints += _meant(group, groups)
    return hints
