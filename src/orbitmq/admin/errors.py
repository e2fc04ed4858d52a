"""Why an admin call failed on this side of the wire. A server's refusal is the ``BrokerError`` of its code."""

from __future__ import annotations

from collections.abc import Iterable

from orbitmq.errors import OrbitError

__all__ = ["AdminError", "NoNameServerError", "PartlyDoneError", "UnknownNameError", "UnreachableError"]


class AdminError(OrbitError):
    """A call that cannot be carried out; the text says why."""


class NoNameServerError(AdminError):
    """A name server is needed and none was given."""


class UnreachableError(AdminError):
    """A server does not answer."""

    def __init__(self, role: str, address: str, reason: str) -> None:
        super().__init__(f"no answer from the {role} at {address}: {reason}")
        self.role = role
        self.address = address
        self.reason = reason


class PartlyDoneError(AdminError):
    """A change for several servers that only some accepted."""

    def __init__(self, done: list[str], failures: dict[str, OrbitError]) -> None:
        super().__init__(f"{len(failures)} of {len(done) + len(failures)} servers did not take the change")
        self.done = done
        """Addresses of servers that accepted it."""
        self.failures = failures


class UnknownNameError(AdminError):
    """There is no cluster, broker, topic, group or client with this name."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"there is no {kind} {name!r}")
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        """Existing names; empty when they are unknown."""
