"""All consume queues of a store (Apache: ``ConsumeQueueStore``), and a record of deleted topics."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator

import msgspec

from orbitmq.runtime.filesystem import FileSystem
from orbitmq.store.config import StoreConfig
from orbitmq.store.config_files import ConfigFile
from orbitmq.store.errors import BadQueueName
from orbitmq.store.queues.consume_queue import ConsumeQueue, HandleCache
from orbitmq.store.queues.extensions import Bitmap, Extensions

__all__ = ["DeletedTopics", "QueueTable"]

logger = logging.getLogger(__name__)


class QueueTable:
    """Queues by topic and id, created when first needed. The store's hot path reads ``by_key`` directly."""

    def __init__(self, fs: FileSystem, config: StoreConfig, filter_bitmap: Bitmap | None = None) -> None:
        self._fs = fs
        self._root = config.path("consumequeue")
        self._file_units = config.queue_file_units
        self._handles = HandleCache(fs, config.open_queue_files_max)
        self.extensions = Extensions(fs, config, filter_bitmap) if config.queue_ext_enabled else None
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}

    def load(self) -> list[ConsumeQueue]:
        """Load every queue on disk. Returns those whose files were unusable and have been cleared."""
        cleared: list[ConsumeQueue] = []
        for topic in self._fs.names(self._root):
            directory = posixpath.join(self._root, topic)
            stat = self._fs.stat(directory)
            if stat is None or not stat.is_directory:
                continue
            for name in self._fs.names(directory):
                if not (name.isascii() and name.isdecimal()) or name != str(int(name)):
                    continue
                queue = self.create(topic, int(name))
                if not queue.load():
                    logger.warning("consume queue unusable, rebuilding it topic=%s queue_id=%s", topic, name)
                    queue.clear()
                    cleared.append(queue)
        return cleared

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.by_key.get((topic, queue_id))

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the queue. A new queue is created in memory; its directory is created when its first units are
        written.

        Raises ``BadQueueName`` for a name that cannot be a directory or would be outside the store.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            if (
                not topic
                or "/" in topic
                or "\0" in topic
                or topic in (".", "..")
                or len(topic.encode()) > 255
            ):
                raise BadQueueName(f"{topic!r} cannot be the name of a topic")
            if not 0 <= queue_id <= 0x7FFFFFFF:
                raise BadQueueName(f"{queue_id} cannot be the id of a queue")
            directory = posixpath.join(self._root, topic, str(queue_id))
            queue = ConsumeQueue(self._fs, self._handles, directory, topic, queue_id, self._file_units)
            queue.has_own_codes = queue.has_own_codes or self.extensions is not None
            self.by_key[topic, queue_id] = queue
            self._by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def delete_topic(self, topic: str) -> int:
        """Delete a topic's queues and files. Returns the number of queues."""
        queues = self._by_topic.pop(topic, {})
        for queue_id, queue in queues.items():
            queue.clear()
            del self.by_key[topic, queue_id]
        if queues:
            self._fs.remove_tree(posixpath.join(self._root, topic))
            if self.extensions is not None:
                self.extensions.delete_topic(topic)
        return len(queues)

    def topics(self) -> list[str]:
        return sorted(self._by_topic)

    def ids(self, topic: str) -> list[int]:
        return sorted(self._by_topic.get(topic, ()))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)

    @property
    def filled_count(self) -> int:
        """The number of queues that point into the log."""
        return sum(queue.log_end >= 0 for queue in self)

    def log_end(self) -> int:
        """Returns the highest end of a record that any queue points to; -1 if all queues are empty."""
        return max((queue.log_end for queue in self.by_key.values()), default=-1)

    def write_tails(self) -> None:
        """Write every tail to its file. Tries all queues before it raises an ``OSError``."""
        failure: OSError | None = None
        for queue in self.by_key.values():
            if queue.tail:
                try:
                    queue.write_tail()
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def take_unsynced(self) -> list[str]:
        """Returns the paths of queue files written since the last call."""
        paths: list[str] = []
        for queue in self.by_key.values():
            if queue.unsynced:
                paths += queue.take_unsynced()
        return paths

    def truncate(self, queue: ConsumeQueue, log_offset: int) -> None:
        """Drop units whose records start at or after ``log_offset``, in memory and on disk."""
        queue.truncate(log_offset)
        if self.extensions is not None:
            self.extensions.cut(queue)

    def expire(self, log_start: int) -> None:
        """Expire units that point below the log's start."""
        for queue in self.by_key.values():
            queue.expire(log_start)
            if self.extensions is not None:
                self.extensions.expire(queue)

    def clear(self) -> None:
        """Remove every queue, because the log they pointed into was deleted."""
        for topic in self.topics():
            self.delete_topic(topic)

    def close(self) -> None:
        self._handles.close()
        if self.extensions is not None:
            self.extensions.close()


class DeletedTopics:
    """For each deleted topic, the end of the log at the time of the deletion.

    Records of the topic before that offset stay in the log until they expire. Without this entry a recovery would
    assume that their queue was lost, recreate the topic, and number new messages after the old ones.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._file = ConfigFile(fs, path)
        self.log_ends: dict[str, int] = {}

    def load(self) -> None:
        """Read the file, if it exists. Raises ``CorruptionError`` if it cannot be decoded."""
        self.log_ends = self._file.load(lambda data: msgspec.json.decode(data, type=dict[str, int])) or {}

    def add(self, topic: str, log_end: int) -> None:
        """Record a deletion. It is on disk when this returns."""
        self.log_ends[topic] = log_end
        self._save()

    def expire(self, log_start: int) -> None:
        """Drop deletions whose records have all expired."""
        kept = {topic: log_end for topic, log_end in self.log_ends.items() if log_end > log_start}
        if len(kept) != len(self.log_ends):
            self.log_ends = kept
            self._save()

    def cut(self, log_end: int) -> None:
        """Lower the recorded offsets to the new end of a log that was cut back."""
        if any(end > log_end for end in self.log_ends.values()):
            ends = {topic: min(end, log_end) for topic, end in self.log_ends.items()}
            # Saved before memory changes: if the disk refuses, the next attempt must still see a difference.
            self._file.save(msgspec.json.encode(ends))
            self.log_ends = ends

    def _save(self) -> None:
        self._file.save(msgspec.json.encode(self.log_ends))
