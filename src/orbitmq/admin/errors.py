"""Errors of admin calls that a server did not refuse. A refusal is the ``BrokerError`` for its code."""

from __future__ import annotations

from collections.abc import Iterable

from orbitmq.errors import OrbitError

__all__ = ["AdminError", "NoNameServerError", "PartlyDoneError", "UnknownNameError", "UnreachableError"]


class AdminError(OrbitError):
    """A call cannot be carried out; the text says why."""


class NoNameServerError(AdminError):
    """The call needs a name server, and none was given."""


class UnreachableError(AdminError):
    """A server does not answer."""

    def __init__(self, role: str, address: str, reason: str) -> None:
        super().__init__(f"no answer from the {role} at {address}: {reason}")
        self.role = role
        self.address = address
        self.reason = reason


class PartlyDoneError(AdminError):
    """Only some of the servers accepted a change."""

    def __init__(self, done: list[str], failures: dict[str, OrbitError]) -> None:
        super().__init__(f"{len(failures)} of {len(done) + len(failures)} servers did not take the change")
        self.done = done
        """Addresses of the servers that accepted the change."""
        self.failures = failures


class UnknownNameError(AdminError):
    """There is no cluster, broker, topic, group or client with this name."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"there is no {kind} {name!r}")
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        """Existing names, sorted; empty if they were not queried."""
