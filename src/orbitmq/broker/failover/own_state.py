"""What a member of a failover group keeps on its own disk: ``config/failover.json``.

Besides the newest epoch it says whether the log may lack bytes that this broker has reported or acknowledged. Under
SYNC_FLUSH a member reports only what is on its disk, so it never lacks any. Under ASYNC_FLUSH they may be in the page
cache only: the file then names the boot of the machine under which they were reported. After an unclean stop (the
abort file of the store is still there) of another boot the log is **in doubt**, until it is known to be whole again:
the member has caught up with a master, or was elected. A process that was killed leaves the page cache behind, so
after an unclean stop of the same boot nothing is missing.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from orbitmq.runtime.machine import boot_id
from orbitmq.runtime.safe_file import SafeFile

__all__ = ["UNKNOWN_EPOCH", "OwnState"]

logger = logging.getLogger(__name__)

UNKNOWN_EPOCH: Final = -1
"""Of a log from before failover was switched on."""
_UNKNOWN_BOOT: Final = "unknown"


class _Kept(msgspec.Struct, frozen=True, rename="camel"):
    epoch: int
    exposed: str = _UNKNOWN_BOOT
    """Boot of the machine under which written bytes were reported; empty when all reported bytes were flushed.
    Versions that did not write this reported written bytes."""
    in_doubt: bool = False


class OwnState:
    """Kept for one broker. Every change is durable when the call returns."""

    def __init__(self, file: SafeFile, *, is_empty: bool, was_clean: bool) -> None:
        """``is_empty``: the log has no bytes. ``was_clean``: the last stop of the store was. Raises
        ``CorruptionError``, ``OSError``."""
        self._file = file
        self._boot = boot_id()
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
        """The newest epoch the log has a part of."""
        return self._kept.epoch

    @property
    def in_doubt(self) -> bool:
        """Whether the log may lack bytes this broker has reported or acknowledged."""
        return self._kept.in_doubt

    def enter(self, epoch: int, *, exposed: bool) -> None:
        """Before a byte of that epoch is in the log. ``exposed``: written bytes will be reported or acknowledged;
        otherwise the whole log is flushed now. Raises ``OSError``."""
        boot = (self._boot or _UNKNOWN_BOOT) if exposed else ""
        self._change(msgspec.structs.replace(self._kept, epoch=epoch, exposed=boot))

    def cut_to(self, epoch: int) -> None:
        """The log was made a part of the one of that epoch. Raises ``OSError``."""
        self._change(msgspec.structs.replace(self._kept, epoch=epoch))

    def made_whole(self) -> None:
        """The log has everything the group acknowledged. Raises ``OSError``."""
        self._change(msgspec.structs.replace(self._kept, in_doubt=False))

    def _change(self, kept: _Kept) -> None:
        if kept != self._kept:
            self._save(kept)

    def _save(self, kept: _Kept) -> None:
        content = msgspec.json.encode(kept)
        self._file.save(content)
        # Again, so that the backup says the same: an older epoch would cut off what was acknowledged since.
        self._file.save(content)
        self._kept = kept


def _parse(content: bytes) -> _Kept:
    return msgspec.json.decode(content, type=_Kept)
