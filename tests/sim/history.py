"""Records what clients did and saw, and checks it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

EARLY_MS = 5
"""Times of messages are whole milliseconds of two clocks."""


@dataclass
class Sent:
    """A message that a client tried to send."""

    topic: str
    key: str
    number: int
    at: float
    delay_s: float = 0.0
    outcome: str = "stored"
    """Of a transaction: ``commit`` or ``rollback``."""
    acked: bool = False
    place: tuple[str, int, int] | None = None
    """Broker, queue and offset its acknowledgement named."""
    done_at: float = 0.0
    """When the send ended, either way."""


@dataclass
class History:
    """The record of one run. ``violations`` are found while it runs, and by ``check`` at its end."""

    sent: dict[str, Sent] = field(default_factory=dict)
    handled: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    orderly: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    by_key: dict[str, list[Sent]] = field(default_factory=lambda: defaultdict(list))
    violations: list[str] = field(default_factory=list)
    read_at: dict[tuple[str, int, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Who was read at a place: two, when a message that was never acknowledged was read and then lost."""
    phantoms_allowed: bool = False
    phantoms: int = 0
    skipped: set[tuple[str, int, int]] = field(default_factory=set)
    """Places of messages that a damaged disk lost and no reachable broker could replace."""
    skew_s: float = 0.0
    """Largest difference between clocks of brokers: a failover makes delayed messages early by up to that."""
    refused: int = 0
    acks: list[float] = field(default_factory=list)

    def attempt(self, identity: str, sent: Sent) -> None:
        assert identity not in self.sent
        self.sent[identity] = sent
        self.by_key[sent.key].append(sent)

    def acked(self, identity: str, place: tuple[str, int, int], now: float) -> None:
        sent = self.sent[identity]
        sent.acked, sent.place, sent.done_at = True, place, now
        self.acks.append(now)

    def got(self, identity: str, now: float, place: tuple[str, int, int], *, orderly: bool = False) -> None:
        """Records that a handler finished a message."""
        self.read_at[place].add(identity)
        sent = self.sent.get(identity)
        if sent is None:
            self.violations.append(f"invented: {identity} was handled and never sent")
            return
        if sent.outcome == "rollback":
            self.violations.append(f"transaction: {identity} was rolled back and is delivered")
        due = sent.at + sent.delay_s
        if sent.delay_s and now < due - self.skew_s - EARLY_MS / 1000:
            self.violations.append(f"early: {identity} was handled {due - now:.3f} s before it was due")
        if orderly:
            self._check_order(sent)
        self.handled[identity].append(now)

    def _check_order(self, sent: Sent) -> None:
        done = self.orderly[sent.key]
        if sent.number not in done:
            for before in self.by_key[sent.key]:
                if before.number >= sent.number:
                    break
                if before.acked and before.number not in done and not self.is_phantom(before):
                    self.violations.append(
                        f"order: {sent.key}:{sent.number} was handled before {before.number} of {before.place}"
                    )
        done.add(sent.number)

    def is_phantom(self, sent: Sent) -> bool:
        """Returns whether a group skipped a message because it had read another one in its place, which no longer
        exists.
        """
        if sent.place is not None and (sent.topic, *sent.place[1:]) in self.skipped:
            return True
        if not self.phantoms_allowed or sent.place is None or sent.delay_s:
            return False  # the position of a delayed message is one in the queue it waits in
        identity = f"{sent.key}:{sent.number}"
        return bool(self.read_at.get((sent.topic, *sent.place[1:]), set()) - {identity})

    def check(self) -> None:
        """Checks the history at the end, when every client had time to finish."""
        for identity, sent in self.sent.items():
            if sent.acked and sent.outcome != "rollback" and identity not in self.handled:
                if self.is_phantom(sent):
                    self.phantoms += 1
                    continue
                self.violations.append(
                    f"lost: {identity} of {sent.topic} was acknowledged at {sent.done_at:.3f} as {sent.place} "
                    "and never handled"
                )
        places: dict[tuple[str, int, int], str] = {}
        for identity, sent in self.sent.items():
            if sent.place is None or sent.delay_s or sent.outcome != "stored":
                continue
            key = (sent.topic, sent.place[1], sent.place[2])
            if key in places:
                self.violations.append(f"place: {identity} and {places[key]} were both told {key}")
            places[key] = identity

    @property
    def longest_outage_s(self) -> float:
        """Returns the longest time between two acknowledgements."""
        return max(
            (later - earlier for earlier, later in zip(self.acks, self.acks[1:], strict=False)), default=0.0
        )

    def summary(self) -> dict[str, float]:
        acked = [identity for identity, sent in self.sent.items() if sent.acked]
        return {
            "sent": len(self.sent),
            "acked": len(acked),
            "handled": len(self.handled),
            "again": sum(len(times) - 1 for times in self.handled.values()),
            "passed_over": self.phantoms,
            "outage_s": round(self.longest_outage_s, 1),
        }
