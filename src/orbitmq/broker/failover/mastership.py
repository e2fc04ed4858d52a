"""Whether this broker is the master of its failover group, for the parts that may act only as master."""

from __future__ import annotations

import asyncio

__all__ = ["Mastership"]


class Mastership:
    """This broker's mastership and its lease. Changed by the coordinator only."""

    def __init__(self) -> None:
        self.acting = False
        """Whether this broker is the master, as far as it knows."""
        self.epoch = 0
        """The epoch that this broker is master of; 0 while it is not master."""
        self.held_until = 0.0
        """End of the lease on the event loop's clock, with a margin."""

    def holds(self) -> bool:
        """Whether this broker is master and no other broker can currently be."""
        return self.acting and asyncio.get_running_loop().time() < self.held_until

    def extend(self, until: float) -> None:
        """Extend the mastership after the lease was renewed. ``until`` is a time of the event loop's clock."""
        self.held_until = until

    def begin(self, epoch: int) -> None:
        """Record that this broker was elected as the master of ``epoch``."""
        self.acting, self.epoch = True, epoch

    def end(self) -> None:
        """Record that this broker is no longer the master."""
        self.acting, self.epoch = False, 0
