"""Answers together the consecutive pulls that one read of a socket returned.

Python looks up the range of each pull and does the bookkeeping. One call of the kernel selects the records of all of
them and writes all answers. Only pulls whose queue offset is in the log are served here. ``PullHandlers.pull`` serves
any single pull with the same answer. It also handles pulls that are rare or refused, for example one that has to
wait, an offset reset, or a record that is damaged or in another segment.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from orbitmq.broker.handlers.pull import MASTER_ID, PullHandlers
from orbitmq.codes import PullFlag, SerializeType
from orbitmq.errors import BrokerError, RemoteProtocolError
from orbitmq.kernel import AskedPull, PullFields, PullsAlike, answer_pulls
from orbitmq.kernel.layout import LONG
from orbitmq.requests import RequestCode
from orbitmq.store.read.reader import QueueReader
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Guard, RunServer
from orbitmq.wire.frame import Frame

__all__ = ["PullRuns"]

logger = logging.getLogger(__name__)

PULLS_MAX: Final = 64
"""The maximum number of pulls looked up before their records are read."""
ENOUGH_BYTES: Final = 512 * 1024
"""Size of the answers from one call. Between two calls a connection checks whether its peer still reads."""

_COMMITS: Final = int(PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND)
_PULL: Final = int(RequestCode.PULL_MESSAGE)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_NEVER: Final = 1 << 63


class _Reader(msgspec.Struct, gc=False):
    """Values that the pulls of one reader share within a run."""

    queue_count: int
    """Pulls of queues below this number may be served together."""
    unit_count: int
    alike: PullsAlike
    committed: dict[int, int] | None
    """Committed offsets by queue, if the pulls commit."""
    pulled: dict[int, int]


class PullRuns:
    """Answers the pulls that one read of a socket returned."""

    def __init__(
        self,
        handlers: PullHandlers,
        reader: QueueReader,
        guard: Guard | None = None,
    ) -> None:
        self._handlers = handlers
        self._reader = reader
        self._guard = guard

    def runs(self) -> dict[int, RunServer]:
        """Returns the requests that are served together when a read brings several."""
        return {_PULL: self.serve}

    def serve(self, frames: list[Frame], at: int, connection: Connection) -> tuple[bytes | None, int]:
        """Returns the answers to the pulls from index ``at`` on, and the index of the first frame after them. The
        answers are None if the pull at ``at`` must be served on its own. Never raises."""
        if self._reader.checks_property_crc:
            return None, at  # the kernel verifies bodies only
        asked: list[AskedPull] = []
        pulls: list[tuple[_Reader, PullFields]] = []
        try:
            window = self._look_up(frames[at : at + PULLS_MAX], connection, asked, pulls)
            if window is None or not asked:
                return None, at
            monotonic, stats = self._handlers.clock.monotonic, self._handlers.stats
            started = monotonic()
            answers, given = answer_pulls(window, (*self._reader.bounds(), ENOUGH_BYTES), asked)
            elapsed_s = monotonic() - started
            if elapsed_s > stats.get_time_max_s:
                stats.get_time_max_s = elapsed_s
            if not given:
                return None, at
            self._note(pulls, given)
        except Exception:  # a bug here must not leave a read half served
            logger.exception("pulls not served together peer=%s", connection.remote_text)
            return None, at
        return answers, at + len(given)

    def _look_up(
        self,
        frames: list[Frame],
        connection: Connection,
        asked: list[AskedPull],
        pulls: list[tuple[_Reader, PullFields]],
    ) -> tuple[memoryview, int] | None:
        """Add pulls to ``asked`` and ``pulls``, up to the first one that must be served on its own. Returns the
        window of the log that contains their records and the first log offset in it, or None."""
        # Hot path: this loop runs once per pull.
        guard, queues = self._guard, self._reader.queues
        readers: dict[object, _Reader] = {}
        window: tuple[memoryview, int] | None = None
        low = high = b""  # of the window, as units start with it
        try:
            for frame in frames:
                request = frame.pull
                if request is None or frame.flag or frame.code != _PULL:
                    break
                topic, queue_id, offset = request.topic, request.queue_id, request.queue_offset
                key = (
                    request.consumer_group,
                    topic,
                    request.sys_flag,
                    request.sub_version,
                    request.subscription,
                    request.expression_type,
                    request.max_msg_nums,
                    request.max_msg_bytes,
                )
                queue = queues.get((topic, queue_id))
                if queue is None:
                    break
                least, greatest = queue.min_offset, queue.max_offset
                if not least <= offset < greatest:
                    break
                if guard is not None:
                    guard(frame, connection)  # first: looking up a reader may create its group
                reader = readers.get(key)
                if reader is None:
                    reader = readers[key] = self._reader_of(request, connection)
                if queue_id >= reader.queue_count:
                    break
                count = greatest - offset
                units = queue.units(offset, reader.unit_count if reader.unit_count < count else count)
                if not units:
                    break
                if not low <= units < high:
                    if asked:
                        break
                    window = self._reader.window(LONG.unpack_from(units)[0])
                    if window is None:
                        break
                    low, high = LONG.pack(window[1]), LONG.pack(window[1] + len(window[0]))
                committed = reader.committed
                if committed is not None:
                    commit_offset = request.commit_offset
                    if committed.get(queue_id, _NEVER) > commit_offset:
                        break
                    committed[queue_id] = commit_offset
                is_binary = frame.serialize_type == _ROCKETMQ
                asked.append(
                    (is_binary, frame.opaque, units, offset, least, greatest, queue_id, reader.alike)
                )
                pulls.append((reader, request))
        except (BrokerError, RemoteProtocolError):
            pass  # raised again, and answered, when that pull is served on its own
        return window

    def _reader_of(self, request: PullFields, connection: Connection) -> _Reader:
        """Returns the checked reader of a pull. The checks are the same as for a single pull. Raises
        ``BrokerError``."""
        handlers = self._handlers
        topic, group = handlers.checked(request, connection)
        wanted = handlers.filter_of(request, group)
        name = request.topic
        offsets, key = handlers.offsets, f"{name}@{request.consumer_group}"
        by_extension = wanted is not None and wanted.has_tags and self._reader.has_extensions
        is_rare = by_extension or offsets.has_resets(key)
        unit_count, in_memory, on_disk = self._reader.limits(
            request.max_msg_nums, request.max_msg_bytes, wanted
        )
        suggested = lagging_suggested = MASTER_ID
        if handlers.config.slave_read_enabled:
            suggested = handlers.suggested(group, from_disk=False)
            lagging_suggested = handlers.suggested(group, from_disk=True)
        numbers = (suggested, lagging_suggested, topic.topic_sys_flag, group.group_sys_flag)
        return _Reader(
            0 if is_rare else topic.read_queue_nums,
            unit_count,
            (name.encode("utf-8", "surrogateescape"), wanted, in_memory, on_disk, numbers),
            offsets.committed.get(key, {}) if request.sys_flag & _COMMITS == _COMMITS else None,
            offsets.pulled.get(key, {}),
        )

    def _note(self, pulls: list[tuple[_Reader, PullFields]], given: list[tuple[int, int, int]]) -> None:
        """Update statistics and offsets for the answered pulls. There may be fewer entries in ``given`` than in
        ``pulls``; they belong to the first pulls."""
        stats, offsets = self._handlers.stats, self._handlers.offsets
        gets, commit_count = stats.gets, 0
        for (reader, request), (following, count, size_bytes) in zip(pulls, given):  # noqa: B905 - may be fewer
            queue_id = request.queue_id
            if reader.committed is not None:
                commit_count += 1
            if count:
                traffic = gets.get((request.topic, queue_id, request.consumer_group))
                if traffic is None:
                    stats.get(request.consumer_group, request.topic, queue_id, count, size_bytes)
                else:
                    traffic.count += count
                    traffic.bytes += size_bytes
                    traffic.times += 1
            else:
                stats.misses += 1
            if queue_id in reader.pulled:
                reader.pulled[queue_id] = following
            else:
                offsets.note_pull(
                    request.consumer_group, request.topic, queue_id, request.queue_offset, following
                )
        if commit_count:
            offsets.committed_again(commit_count)
