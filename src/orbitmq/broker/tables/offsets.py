"""Consumer group progress by queue (Apache: ConsumerOffsetManager, file ``consumerOffset.json``).

There are three tables, which map ``topic@group`` to an offset for each queue id: the committed offsets, the resets
that an admin ordered and the consumer has not yet received, and the position of the last pull, for information. A
reset is returned only once (``take_reset``). Until then the request handlers must refuse commits for that queue, or
the consumer would undo the reset.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.limits import Bound
from orbitmq.model.data_version import DataVersion
from orbitmq.model.names import SYSTEM_GROUP_PREFIX
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import CONTENT_BYTES_MAX, SafeFile
from orbitmq.wire import bodies, javajson

__all__ = ["ConsumerOffsets", "OffsetTable"]

logger = logging.getLogger(__name__)

_SEPARATOR: Final = "@"
_OFFSET_BYTES: Final = 36
"""The maximum size of a queue in the file, in bytes: indentation, two numbers, colon and comma."""
_PLACE_BYTES: Final = 32
"""The maximum size of a topic and group in each table of the file, in bytes, in addition to their names."""
OffsetTable = dict[str, dict[int, int]]


class ConsumerOffsets:
    """The committed offsets, pending resets and pull positions of all groups."""

    def __init__(self, config: BrokerConfig, clock: Clock, file: SafeFile) -> None:
        self._config = config
        self._clock = clock
        self._file = file
        self._commit_count = 0
        self._dirty = False
        self._saving = threading.Lock()
        self._saved = b""
        """The content of the file."""
        self._resets: OffsetTable = {}
        self.committed: OffsetTable = {}
        """``topic@group`` -> queue id -> next offset to consume."""
        self.pulled: OffsetTable = {}
        """``topic@group`` -> queue id -> next offset to pull, according to the last pull."""
        self._first_pulls: OffsetTable = {}
        """``topic@group`` -> queue id -> start of the first pull of a queue without a committed offset."""
        self._file_bytes = 0
        """An upper bound of the file size, in bytes. It is updated with every new queue."""
        self.bound = Bound(
            "bytes of consumer offsets",
            "maxConsumerOffsetBytes",
            lambda: self._file_bytes,
            lambda: config.offset_bytes_max,
        )
        self.data_version = DataVersion(timestamp_ms=clock.now_ms())

    def take_pulled(self, table: OffsetTable) -> None:
        """Replace a slave's pull positions with its master's."""
        self.pulled = table

    # -- the hot path ----------------------------------------------------------------------------------

    def commit(
        self, client_host: str, group: str, topic: str, queue_id: int, offset: int, *, own: bool = False
    ) -> None:
        """Store an offset. If it is smaller than before, it is accepted with a warning, because consumers may seek
        back.

        Raises ``InvalidParameter`` for a new queue if the table is full, unless ``own`` marks the offset as the
        broker's own bookkeeping.
        """
        key = f"{topic}@{group}"
        queues = self.committed.get(key)
        if queues is None or queue_id not in queues:
            self._make_room(key, 1, own=own)
            queues = self.committed.setdefault(key, {})
        elif offset < queues[queue_id]:
            logger.warning(
                "consumer offset moves back client=%s topic=%s group=%s queue_id=%d from=%d to=%d",
                client_host,
                topic,
                group,
                queue_id,
                queues[queue_id],
                offset,
            )
        queues[queue_id] = offset
        self._dirty = True
        self._commit_count += 1
        if self._commit_count % self._config.offset_version_step == 0:
            self._next_version()

    def committed_again(self, count: int) -> None:
        """Count ``count`` offsets that the caller has stored in ``committed`` directly. They must be for queues that
        it already contained."""
        step = self._config.offset_version_step
        versions = self._commit_count // step
        self._dirty = True
        self._commit_count += count
        if self._commit_count // step != versions:
            self._next_version()

    def _next_version(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Returns the pending reset if there is one, otherwise the committed offset, or -1 if there is neither."""
        key = f"{topic}@{group}"
        if self._resets and self._config.server_side_reset:
            reset = self._resets.get(key, _NOTHING).get(queue_id)
            if reset is not None:
                return reset
        return self.committed.get(key, _NOTHING).get(queue_id, -1)

    def note_pull(self, group: str, topic: str, queue_id: int, start: int, end: int) -> None:
        """Record the range of a pull, from ``start`` up to ``end``, where the next pull continues."""
        key = f"{topic}@{group}"
        queues = self.pulled.get(key)
        if queues is None or queue_id not in queues:
            cost = _OFFSET_BYTES if queues is not None else _OFFSET_BYTES + _PLACE_BYTES + len(key)
            if self._file_bytes + cost > self._config.offset_bytes_max:
                return  # for information only
            self._file_bytes += cost
            queues = self.pulled.setdefault(key, {})
            if self.query(group, topic, queue_id) < 0:
                self._first_pulls.setdefault(key, {})[queue_id] = start
        queues[queue_id] = end

    def _make_room(self, key: str, count: int, *, own: bool) -> None:
        """Reserve room for ``count`` new queues of a ``topic@group`` key. Raises ``InvalidParameter`` if there is
        none, unless ``own`` is set."""
        cost = count * _OFFSET_BYTES + (0 if key in self.committed else _place_bytes(key))
        if not own:
            topic, group = _split(key)
            self.bound.check(f"the offset of group {group} for topic {topic} is not stored", cost)
        self._file_bytes += cost

    def _recount(self) -> None:
        self._file_bytes = sum(
            _place_bytes(key) + _OFFSET_BYTES * len(queues) for key, queues in self.committed.items()
        ) + sum(_PLACE_BYTES + len(key) + _OFFSET_BYTES * len(queues) for key, queues in self.pulled.items())

    # -- resets ----------------------------------------------------------------------------------------

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group to ``offset``. The committed offset changes immediately, and the next pull is answered with
        the reset. Raises ``InvalidParameter`` for a new queue if the table is full."""
        assert queue_id >= 0, queue_id
        assert offset >= 0, offset
        key = f"{topic}@{group}"
        if queue_id not in self.committed.get(key, _NOTHING):
            self._make_room(key, 1, own=False)
        self._resets.setdefault(key, {})[queue_id] = offset
        self.committed.setdefault(key, {})[queue_id] = offset
        self._dirty = True

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove the pending reset and return it, or None if there is none."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    def has_resets(self, key: str) -> bool:
        """Whether any queue of a ``topic@group`` key has a reset that its consumer has not received."""
        return key in self._resets

    def reset_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether commits for this queue must be ignored because a reset is pending."""
        return bool(self._resets) and queue_id in self._resets.get(f"{topic}@{group}", _NOTHING)

    # -- views -----------------------------------------------------------------------------------------

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Returns the committed offsets by queue id."""
        return self.committed.get(f"{topic}@{group}", _NOTHING)

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Returns the offset at which the last pull ended. Without a pull, returns the committed offset, or -1 if
        there is none."""
        offset = self.pulled.get(f"{topic}@{group}", _NOTHING).get(queue_id)
        return self.query(group, topic, queue_id) if offset is None else offset

    def first_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Returns the offset of the group's first pull since the broker started, if the queue had no committed
        offset; otherwise -1."""
        return self._first_pulls.get(f"{topic}@{group}", _NOTHING).get(queue_id, -1)

    def topics_of(self, group: str) -> list[str]:
        """Returns the topics with committed offsets of the group, sorted."""
        return sorted(topic for topic, owner in map(_split, self.committed) if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Returns the groups with committed offsets for the topic, sorted."""
        return sorted(group for owner, group in map(_split, self.committed) if owner == topic and group)

    def min_offsets(self, topic: str, ignored_groups: Iterable[str] = ()) -> dict[int, int]:
        """Returns the smallest committed offset of each queue, over all groups except ``ignored_groups``."""
        ignored = set(ignored_groups)
        smallest: dict[int, int] = {}
        for key, queues in self.committed.items():
            owner, group = _split(key)
            if owner != topic or group in ignored:
                continue
            for queue_id, offset in queues.items():
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        return smallest

    # -- changes by admins and masters -----------------------------------------------------------------

    def clone(self, source_group: str, target_group: str, topic: str) -> bool:
        """Copy the offsets of ``source_group`` to ``target_group``. Returns False if there are none. Raises
        ``InvalidParameter`` if the table is full."""
        queues = self.committed.get(f"{topic}@{source_group}")
        if queues is None:
            return False
        target = f"{topic}@{target_group}"
        self._make_room(target, len(queues) - len(self.committed.get(target, _NOTHING)), own=False)
        self.committed[target] = dict(queues)
        self._dirty = True
        return True

    def clear_pulled(self, group: str, topic: str) -> None:
        key = f"{topic}@{group}"
        queues = self.pulled.pop(key, None)
        if queues is not None:
            self._file_bytes -= _PLACE_BYTES + len(key) + _OFFSET_BYTES * len(queues)

    def remove_group(self, group: str) -> int:
        """Remove all offsets of a group. Returns the number of topics for which it had committed offsets."""
        return self._remove(lambda key: _split(key)[1] == group)

    def remove_topic(self, topic: str) -> int:
        """Remove all offsets for a topic. Returns the number of groups that had committed offsets for it."""
        return self._remove(lambda key: _split(key)[0] == topic)

    def remove(self, group: str, topic: str) -> None:
        self._remove(lambda key: key == f"{topic}{_SEPARATOR}{group}")

    def _remove(self, matches: Callable[[str], bool]) -> int:
        removed = 0
        for table in (self.committed, self._resets, self.pulled, self._first_pulls):
            keys = [key for key in table if matches(key)]
            for key in keys:
                del table[key]
            if table is self.committed:
                removed = len(keys)
        self._recount()
        self._dirty = True
        return removed

    def merge(self, table: OffsetTable, data_version: DataVersion) -> None:
        """Merge a master's table into this one. Entries that the master does not have are kept."""
        for key, queues in table.items():
            self.committed.setdefault(key, {}).update(queues)
        self._recount()
        self.data_version = data_version
        self._dirty = True

    def go_back(self) -> None:
        """Revert to the offsets saved last, because the messages that newer offsets have passed may be truncated from
        the log. A group that is not saved yet keeps its offsets, since it would not know where to begin. A cursor of
        the broker itself that is not saved yet restarts at the beginning of its queue."""
        saved = _decoded(self._saved).offset_table if self._saved else {}
        for key, queues in list(self.committed.items()):
            if key in saved:
                queues.update(saved[key])
            elif _split(key)[1].startswith(SYSTEM_GROUP_PREFIX):
                del self.committed[key]
        self._recount()
        self._dirty = True

    # -- encoding and saving ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Returns the body of the response to GET_ALL_CONSUMER_OFFSET, which is the compact form of the file."""
        return self._text(_COMPACT)

    def content(self) -> bytes:
        """Returns the content of the file as it would be saved now."""
        return self._text(_PRETTY)

    def load(self) -> None:
        """Load the file if it exists. Raises ``CorruptionError``."""
        content = self._file.load(lambda content: (_decoded(content), content))
        if content is None:
            return
        saved, self._saved = content
        self.committed = saved.offset_table
        self.pulled = saved.pull_offset_table or {}
        self._recount()
        if saved.data_version is not None:
            self.data_version = saved.data_version

    def saved_ms(self) -> int:
        """Returns when the file was last saved, in epoch milliseconds, or 0 if it does not exist."""
        return self._file.modified_ms()

    def persist(self) -> None:
        """Save the offsets if anything changed. Raises ``OSError``; the next call then retries."""
        if self._dirty:
            self._dirty = False
            self._save(self.content())

    async def persist_aside(self, safe: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Like ``persist``, but writes on another thread, because this runs every few seconds. ``safe`` waits until
        everything that the offsets depend on is safe, and returns False if they must not be saved now."""
        if self._dirty:
            self._dirty = False
            content = self.content()
            if safe is not None and not await safe():
                self._dirty = True  # the next round retries
                return
            await asyncio.to_thread(self._save, content)

    def _save(self, content: bytes) -> None:
        try:
            # The final save at stop may run while a background save is still in progress.
            with self._saving:
                self._file.save(content)
                self._saved = content
        except OSError:
            self._dirty = True
            raise

    def _text(self, form: _Form) -> bytes:
        topics: dict[str, list[str]] = {}
        for key in sorted(self.committed):
            topic, group = _split(key)
            if group:
                topics.setdefault(group, []).append(topic)
        members = (
            f'"dataVersion":{form.indented(self.data_version)}',
            f'"groupTopicMap":{form.indented(dict(sorted(topics.items())))}',
            f'"offsetTable":{form.table(self.committed)}',
            f'"pullOffsetTable":{form.table(self.pulled)}',
        )
        return form.braces(members, 0).encode()


class _Form:
    """The text form of the tables: compact, or with one member per line. The tables are joined here because the
    general writer takes 1 us per offset instead of 0.4 us, and a broker writes tens of thousands of offsets every
    five seconds."""

    def __init__(self, *, pretty: bool) -> None:
        self._pretty = pretty
        self._breaks = ["\n" + "\t" * depth if pretty else "" for depth in range(4)]
        # Files have bare numbers as keys, as Apache writes them. In a response, an Apache 5.5 slave cannot read
        # those.
        self._entry = "%d:%d" if pretty else '"%d":%d'

    def braces(self, members: Sequence[str], depth: int) -> str:
        if not members:
            return "{}"
        inner = self._breaks[depth + 1]
        return f"{{{inner}{f',{inner}'.join(members)}{self._breaks[depth]}}}"

    def table(self, table: OffsetTable) -> str:
        return self.braces(
            [
                f"{_quote(key)}:{self.braces([self._entry % item for item in sorted(queues.items())], 2)}"
                for key, queues in table.items()
            ],
            1,
        )

    def indented(self, value: object) -> str:
        if not self._pretty:
            return javajson.encode(value).decode()
        return javajson.encode_pretty(value).decode().replace("\n", "\n\t")


_COMPACT: Final = _Form(pretty=False)
_PRETTY: Final = _Form(pretty=True)
_NOTHING: Final[dict[int, int]] = {}


def _decoded(content: bytes) -> bodies.ConsumerOffsets:
    return javajson.decode(content, bodies.ConsumerOffsets, bytes_max=CONTENT_BYTES_MAX)


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _place_bytes(key: str) -> int:
    """Returns the size of a topic and group in the file, which contains them twice: with their offsets, and in the
    table of topics by group."""
    return 2 * (_PLACE_BYTES + len(key))


def _split(key: str) -> tuple[str, str]:
    """Returns the topic and the group of a key. The group is empty unless the key has exactly these two parts."""
    topic, _, group = key.partition(_SEPARATOR)
    return (topic, group) if _SEPARATOR not in group else (key, "")
