"""The state that a failover group's member keeps on its own disk, in ``config/failover.json``.

It stores the newest epoch and whether the log may lack bytes that this broker has reported or acknowledged. Under
SYNC_FLUSH a member reports only flushed bytes, so it never lacks any. Under ASYNC_FLUSH they may exist only in the
page cache, so the file records the machine's boot id at the time they were reported. After an unclean stop (the
store's abort file still exists) in an earlier boot the log is **in doubt** until it is known to be complete: the
member has caught up with a master, or was elected. The page cache outlives a killed process, so nothing is missing
after an unclean stop in the same boot.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from orbitmq.runtime.safe_file import SafeFile

__all__ = ["UNKNOWN_EPOCH", "OwnState"]

logger = logging.getLogger(__name__)

UNKNOWN_EPOCH: Final = -1
"""Epoch of a log that predates failover."""
_UNKNOWN_BOOT: Final = "unknown"


class _Kept(msgspec.Struct, frozen=True, rename="camel"):
    epoch: int
    exposed: str = _UNKNOWN_BOOT
    """Boot id of the machine when unflushed bytes were reported; empty when all reported bytes were flushed. Versions
    that did not write this field reported unflushed bytes."""
    in_doubt: bool = False


class OwnState:
    """One broker's durable failover state. Every change is on disk when the call returns.

    It is saved on the event loop, unlike topics and groups. Each step of an election relies on the state of the step
    before it. If another thread saved it, the loop could meanwhile handle a lost lease or a new master, and begin a
    second change between a step's checks and its save. A change happens only once per election, before the member
    leads or follows, and once when a doubt ends, so the syncs delay few clients.
    """

    def __init__(self, file: SafeFile, *, is_empty: bool, was_clean: bool) -> None:
        """``is_empty``: the log has no bytes. ``was_clean``: the store was last closed cleanly. Raises
        ``CorruptionError``, ``OSError``."""
        self._file = file
        self._boot = file.fs.cache_id()
        found = file.load(_parse)
        kept = _Kept(0 if is_empty else UNKNOWN_EPOCH, "") if found is None else found
        if was_clean:
            kept = msgspec.structs.replace(kept, exposed="")
        elif kept.exposed and (kept.exposed != self._boot or not self._boot):
            kept = msgspec.structs.replace(kept, exposed="", in_doubt=True)
        self._kept = kept
        if found is not None and kept != found:
            self._save(kept)
        if kept.in_doubt:
            logger.warning("log in doubt: it may lack what was not flushed before an unclean stop")

    @property
    def epoch(self) -> int:
        """The newest epoch that the log is part of."""
        return self._kept.epoch

    @property
    def in_doubt(self) -> bool:
        """Whether the log may lack bytes this broker has reported or acknowledged."""
        return self._kept.in_doubt

    def enter(self, epoch: int, *, exposed: bool) -> None:
        """Enter an epoch. Must be called before the log contains a byte of it. ``exposed`` means that unflushed
        bytes will be reported or acknowledged; otherwise the whole log must already be flushed. Raises
        ``OSError``."""
        boot = (self._boot or _UNKNOWN_BOOT) if exposed else ""
        self._change(msgspec.structs.replace(self._kept, epoch=epoch, exposed=boot))

    def cut_to(self, epoch: int) -> None:
        """Record that the log was truncated to a prefix of that epoch's log. Raises ``OSError``."""
        self._change(msgspec.structs.replace(self._kept, epoch=epoch))

    def made_whole(self) -> None:
        """Record that the log has everything the group has acknowledged. Raises ``OSError``."""
        self._change(msgspec.structs.replace(self._kept, in_doubt=False))

    def _change(self, kept: _Kept) -> None:
        if kept != self._kept:
            self._save(kept)

    def _save(self, kept: _Kept) -> None:
        content = msgspec.json.encode(kept)
        self._file.save(content)
        # Saved twice so that the backup matches: an older epoch there would truncate what was acknowledged since.
        self._file.save(content)
        self._kept = kept


def _parse(content: bytes) -> _Kept:
    return msgspec.json.decode(content, type=_Kept)
