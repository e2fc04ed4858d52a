"""Decides when a stored message may be acknowledged, according to the flush mode and the replication mode.

``AckGate.wait`` is called once per bulk append, with the end of the appended records. It calls back with the response
code of the send: SUCCESS, FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE. Corresponds to Apache's
handleDiskFlush and handleHA. As in Apache, the replication result overrides the flush result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from orbitmq.broker.failover.mastership import Mastership
from orbitmq.codes import ResponseCode
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode

__all__ = ["AckGate", "Replication"]

AckCallback = Callable[[int], None]
_SYNC: Final = FlushMode.SYNC


class Replication(Protocol):
    """A master's view of its slaves."""

    @property
    def required(self) -> bool:
        """Whether acknowledgements wait for a slave."""

    def when_replicated(self, log_end: int, callback: AckCallback) -> None:
        """Call back with SUCCESS, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE once replication up to ``log_end`` has
        succeeded or failed."""


class AckGate:
    """Decides when the reply to a send is sent: immediately, or after a flush or replication."""

    def __init__(
        self,
        store: MessageStore,
        replication: Replication | None = None,
        mastership: Mastership | None = None,
    ) -> None:
        """``mastership`` is passed only with failover."""
        self._store = store
        self.replication = replication
        self.waiting_count = 0
        """The number of bulk appends whose acknowledgement is outstanding."""
        self.is_master = None if mastership is None else mastership.holds
        """With failover, returns whether this broker is certainly still the master. Called when a send is
        acknowledged, because the process may have been suspended since the lease was last checked."""
        self.refusal = ""
        """With failover, the reason why sends are refused now; empty if they are accepted."""

    def refuse(self, reason: str) -> None:
        """Refuse sends with this reason. An empty reason accepts them again."""
        self.refusal = reason

    @property
    def closed(self) -> str:
        """The reason why this broker must not store its own messages now; empty if it may. Messages that a master
        stores after its lease has expired will be truncated, and their senders no longer wait for the response."""
        if self.refusal or self.is_master is None or self.is_master():
            return self.refusal
        return "this broker is not the master any more"

    @property
    def immediate(self) -> bool:
        """Whether a message is acknowledged as soon as it is in the log."""
        if self._store.flush_mode is _SYNC or self.is_master is not None:
            return False
        return self.replication is None or not self.replication.required

    def wait(self, log_end: int, callback: AckCallback) -> None:
        """Call ``callback`` once with the response code, as soon as the log up to ``log_end`` is as safe as
        configured or known not to become so."""
        replication = self.replication if self.replication and self.replication.required else None
        sync_flush = self._store.flush_mode is _SYNC
        outstanding = int(sync_flush) + int(replication is not None)
        if self.is_master is not None:
            callback = self._if_master(callback)
        if outstanding == 0:
            callback(ResponseCode.SUCCESS)
            return
        self.waiting_count += 1
        outcome: int = ResponseCode.SUCCESS

        def finish(code: int, overrides: bool) -> None:
            nonlocal outstanding, outcome
            outstanding -= 1
            if code != ResponseCode.SUCCESS and (overrides or outcome == ResponseCode.SUCCESS):
                outcome = code
            if outstanding == 0:
                self.waiting_count -= 1
                callback(outcome)

        if sync_flush:
            self._store.when_flushed(
                log_end,
                lambda done: finish(
                    ResponseCode.SUCCESS if done else ResponseCode.FLUSH_DISK_TIMEOUT, overrides=False
                ),
            )
        if replication is not None:
            replication.when_replicated(log_end, lambda code: finish(code, overrides=True))

    def _if_master(self, callback: AckCallback) -> AckCallback:
        """Returns a callback that reports FLUSH_SLAVE_TIMEOUT if this broker is no longer master by then, because a
        failover may discard the stored message."""
        is_master = self.is_master
        assert is_master is not None

        def told(code: int) -> None:
            callback(code if is_master() else ResponseCode.FLUSH_SLAVE_TIMEOUT)

        return told
