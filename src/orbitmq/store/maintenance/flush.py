"""Moves data from the page cache to disk (Apache: ``GroupCommitService``, ``FlushConsumeQueueService`` and others).

One thread does nothing but ``fdatasync``, so the store's thread never waits for a disk. A sync covers everything
written before it started, so all waiting appends share it. If more arrive meanwhile, the next sync starts
immediately.

Order of claims
1. The checkpoint's log offset and time advance after a log sync.
2. Its queue offset advances after log, queue files and index were synced, in this order, for everything before it.
3. The checkpoint is written after both, so it never claims more than the disk holds.
After a failed sync, the data it covered never counts as flushed: Linux may drop the dirty pages and report success
the next time.
"""

from __future__ import annotations

import heapq
import logging
import posixpath
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

from orbitmq.runtime.clock import Clock
from orbitmq.store.components import StoreParts
from orbitmq.store.layout import PAGE_BYTES
from orbitmq.store.queues.consume_queue import ConsumeQueue

__all__ = ["Flusher", "Post", "SyncWorker"]

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], object]
CHECKPOINT_INTERVAL_S: Final = 1.0
FILES_PER_STEP: Final = 16
"""Number of queue files synced before the log gets its turn again."""
TAIL_TIME_S: Final = 0.005
"""How long the store's thread writes queue tails at a time."""
STOP_WAIT_S: Final = 30.0
DRAIN_STEP_S: Final = 0.002


class SyncWorker:
    """The sync thread. Log syncs come first. Other jobs are generators, which give way to log syncs between their
    steps."""

    def __init__(self, sync_log: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._sync_log = sync_log
        self._failed = failed
        self._wanted = False
        self._syncing = False
        self._stopping = False
        # Two counters, each with one writer, rather than one that both threads would change.
        self._submitted = 0
        self._finished = 0
        self._pause = Event()
        """Never set. ``drain`` waits on it, with a timeout, to let the thread run."""
        self._jobs: deque[Iterator[None]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="store-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want_sync(self) -> None:
        """Request a sync of the log. Requests made before the sync starts share it."""
        if not self._wanted:
            self._wanted = True
            self._wake.put(None)

    def submit(self, job: Iterator[None]) -> None:
        """Queue a job, which runs step by step."""
        self._submitted += 1
        self._jobs.append(job)
        self._wake.put(None)

    def drain(self) -> None:
        """Wait until all requested work is done. Raises ``TimeoutError`` if the disk hangs."""
        for _ in range(int(STOP_WAIT_S / DRAIN_STEP_S)):
            if self._finished == self._submitted and not self._wanted and not self._syncing:
                return
            self._pause.wait(DRAIN_STEP_S)
        raise TimeoutError(f"the disk did not finish a sync within {STOP_WAIT_S:g} s")

    def stop(self) -> None:
        """Finish all requested work and end the thread."""
        self._stopping = True
        self._wake.put(None)
        self._thread.join(STOP_WAIT_S)

    def _run(self) -> None:
        while True:
            self._wake.get()
            while self._wanted or self._jobs:
                try:
                    self._step()
                except Exception as error:  # noqa: BLE001  (top of the thread: the store must be notified)
                    self._failed(error)
            if self._stopping:
                return

    def _step(self) -> None:
        if self._wanted:
            self._syncing = True
            # Cleared first, because an append during the sync requests another one.
            self._wanted = False
            try:
                self._sync_log()
            finally:
                self._syncing = False
            return
        job = self._jobs.popleft()
        try:
            next(job)
        except StopIteration:
            self._finished += 1
        except BaseException:
            self._finished += 1
            raise
        else:
            self._jobs.append(job)


class Flusher:
    """Schedules syncs and notifies waiters. Owned by the store's thread."""

    def __init__(self, parts: StoreParts, clock: Clock, post: Post | None) -> None:
        self._parts = parts
        self._log = parts.log
        self._clock = clock
        self._post = post
        self._worker = SyncWorker(self._sync_log, self._worker_failed) if post is not None else None
        self._waiters: list[tuple[int, int, float, Callable[[bool], None]]] = []
        self._sequence = count()
        self._synced_until = 0
        """Log offset up to which the worker has synced. It never touches an earlier segment."""
        self._epoch = 0
        """Counts cuts of the log; worker reports from before a cut are ignored."""
        self._tails: list[ConsumeQueue] = []
        """Queues whose tails are due to be written."""
        self._queues_done = 0
        self._queues_busy = False
        self._queue_claims_frozen = False
        self.failed = ""
        """Why the log can no longer be made durable; empty while it is healthy."""
        now = clock.monotonic()
        self._log_at = self._log_thorough_at = self._queues_at = self._queues_thorough_at = now
        self._checkpoint_at = now

    def start(self) -> None:
        """Start the worker. The log must be open and flushed."""
        self._synced_until = self._log.flushed
        self._queues_done = self._parts.checkpoint.queues_log_offset
        if self._worker is not None:
            self._worker.start()
        self._make_index_file()

    def freeze_queue_claims(self) -> None:
        """Stop advancing the checkpoint's queue values, because a queue file failed to sync and may have lost
        data."""
        self._queue_claims_frozen = True

    # Waiting for the disk.
    def when_flushed(self, log_end: int, callback: Callable[[bool], None]) -> None:
        """See ``MessageStore.when_flushed``."""
        if log_end <= self._log.flushed:
            callback(True)
            return
        if self.failed:
            callback(False)
            return
        deadline = self._clock.monotonic() + self._parts.config.sync_flush_timeout_ms / 1000
        heapq.heappush(self._waiters, (log_end, next(self._sequence), deadline, callback))
        if self._worker is not None:
            self._worker.want_sync()

    def request(self) -> None:
        """Sync the log soon."""
        if self._worker is not None:
            self._worker.want_sync()
        else:
            self._sync_log()

    def _sync_log(self) -> None:
        """Sync the log up to its current end. Runs on the worker, or inline if there is none."""
        log = self._log
        # The time is read before the end, because it must belong to a record the sync covers.
        store_ms = log.last_store_ms
        epoch, target = self._epoch, log.end
        try:
            log.sync(self._synced_until, target)
        except OSError as error:
            self._tell(partial(self._sync_failed, f"the log cannot be flushed: {error}"))
            return
        self._synced_until = target
        self._tell(partial(self._synced, epoch, target, store_ms))

    def _tell(self, report: Callable[[], None]) -> None:
        if self._post is not None and self._worker is not None:
            self._post(report)
        else:
            report()

    def _synced(self, epoch: int, target: int, store_ms: int) -> None:
        log, checkpoint = self._log, self._parts.checkpoint
        if target <= log.flushed or epoch != self._epoch:
            return
        log.flushed = target
        log.segments.release_handles(target - target % log.segment_bytes)
        checkpoint.confirm_offset = log.whole_end(target)
        checkpoint.log_ms = max(checkpoint.log_ms, store_ms)
        waiters = self._waiters
        while waiters and waiters[0][0] <= target:
            heapq.heappop(waiters)[3](True)

    def _sync_failed(self, reason: str) -> None:
        self.failed = reason
        logger.error("store stopped accepting writes reason=%s", reason)
        waiters, self._waiters = self._waiters, []
        for _, _, _, callback in waiters:
            callback(False)

    def _worker_failed(self, error: Exception) -> None:
        self._tell(partial(self._sync_failed, f"the sync thread failed: {error!r}"))

    # Periodic.
    def tick(self) -> None:
        """Run all due work. Raises ``OSError`` if queue tails cannot be written."""
        now, config = self._clock.monotonic(), self._parts.config
        self._time_out(now)
        log = self._log
        if (
            log.end > log.flushed
            and not self.failed
            and now - self._log_at >= config.flush_interval_ms / 1000
        ):
            thorough = now - self._log_thorough_at >= config.flush_thorough_interval_ms / 1000
            pages = log.end // PAGE_BYTES - log.flushed // PAGE_BYTES
            if thorough or pages >= config.flush_pages_min or log.end - log.flushed >= log.segment_bytes:
                self._log_at = now
                if thorough:
                    self._log_thorough_at = now
                self.request()
        if now - self._queues_at >= config.queue_flush_interval_ms / 1000:
            self._queues_at = now
            if self._parts.index is not None:
                self._parts.index.build()
            self._tails = [queue for queue in self._parts.queues if queue.tail]
        self._write_some_tails(now)
        if now - self._queues_thorough_at >= config.queue_flush_thorough_interval_ms / 1000:
            self._queues_thorough_at = now
            self._flush_queues()
        self._make_index_file()
        if now - self._checkpoint_at >= CHECKPOINT_INTERVAL_S:
            self._checkpoint_at = now
            self._run(self._write_checkpoint())

    def _write_some_tails(self, now: float) -> None:
        """Write tails for a few milliseconds; with thousands of queues this takes several rounds."""
        tails = self._tails
        while tails:
            # Removed only once written, so that a refused tail is retried in the next round.
            tails[-1].write_tail()
            tails.pop()
            if self._clock.monotonic() - now > TAIL_TIME_S:
                return

    def _time_out(self, now: float) -> None:
        late = [waiter for waiter in self._waiters if waiter[2] <= now]
        if late:
            self._waiters = [waiter for waiter in self._waiters if waiter[2] > now]
            heapq.heapify(self._waiters)
            for _, _, _, callback in late:
                callback(False)

    def _run(self, job: Iterator[None]) -> None:
        if self._worker is not None:
            self._worker.submit(job)
        else:
            for _ in job:
                pass

    def _write_checkpoint(self) -> Iterator[None]:
        index = self._parts.index
        if index is not None:
            self._parts.checkpoint.index_ms = index.synced_ms
        try:
            self._parts.checkpoint.flush()
        except OSError as error:
            # An old checkpoint is still correct; the next round retries.
            logger.warning("checkpoint not written error=%s", error)
        yield

    def _flush_queues(self) -> None:
        """Sync the current state of queues and index to disk, on the worker."""
        log = self._log
        target = log.whole_end(log.end)
        if self._queues_busy or target == self._queues_done or self.failed:
            return
        self._queues_busy = True
        self._parts.queues.write_tails()
        self._run(self._queue_sync_steps(target, log.last_store_ms))

    def _queue_sync_steps(self, target: int, store_ms: int) -> Iterator[None]:
        parts = self._parts
        paths = parts.queues.take_unsynced()
        if parts.index is not None:
            parts.index.build()
        index_job = parts.index.sync_job() if parts.index is not None else None
        return self._queue_sync(paths, index_job, (target, parts.queues.filled_count), store_ms)

    def _queue_sync(
        self, paths: list[str], index_job: Callable[[], None] | None, covered: tuple[int, int], store_ms: int
    ) -> Iterator[None]:
        ok, epoch = True, self._epoch
        target = covered[0]
        try:
            if target > self._synced_until:
                self._sync_log()
                yield
            for step, path in enumerate(paths, 1):
                sync_file(self._parts, path)
                if step % FILES_PER_STEP == 0:
                    yield
            for directory in directories_of(paths):
                self._parts.fs.sync_directory(directory)
            if index_job is not None:
                index_job()
        except OSError as error:
            ok = False
            logger.error("queues not flushed, checkpoint not advanced error=%s", error)
        self._tell(partial(self._queues_synced, epoch, covered, store_ms, ok))
        yield

    def _queues_synced(self, epoch: int, covered: tuple[int, int], store_ms: int, ok: bool) -> None:
        """Handle the end of a sync of the queues; advance the checkpoint if it succeeded. ``covered`` is the
        log offset up to which queues are on disk, and the number of queues that pointed into the log at that
        time."""
        target, queue_count = covered
        self._queues_busy = False
        if not ok:
            self._queue_claims_frozen = True
        if self._queue_claims_frozen or self.failed or epoch != self._epoch:
            return
        self._queues_done = target
        checkpoint = self._parts.checkpoint
        checkpoint.queues_log_offset = target
        checkpoint.verified_queues = queue_count
        checkpoint.queues_ms = max(checkpoint.queues_ms, store_ms)

    # Full flush.
    def flush(self) -> None:
        """Sync log, queues, index and checkpoint to disk, on this thread. Raises ``OSError``."""
        if self._worker is not None:
            self._worker.drain()
        self._flush_inline()

    def _flush_inline(self) -> None:
        parts, log = self._parts, self._log
        parts.queues.write_tails()
        target, store_ms = log.end, log.last_store_ms
        try:
            log.sync(log.flushed, target)
        except OSError as error:
            self._sync_failed(f"the log cannot be flushed: {error}")
            raise
        self._synced_until = target
        self._synced(self._epoch, target, store_ms)
        paths = parts.queues.take_unsynced()
        for path in paths:
            sync_file(parts, path)
        for directory in directories_of(paths):
            parts.fs.sync_directory(directory)
        if parts.queues.extensions is not None:
            parts.queues.extensions.flush()
        if parts.index is not None:
            parts.index.flush()
            parts.checkpoint.index_ms = parts.index.synced_ms
        covered = (log.whole_end(target), parts.queues.filled_count)
        self._queues_synced(self._epoch, covered, store_ms, True)
        parts.checkpoint.flush()

    def drain(self) -> None:
        """Wait until the worker is idle. Its reports may still arrive later through ``post``."""
        if self._worker is not None:
            self._worker.drain()

    def cut(self, log_end: int) -> None:
        """Adapt to a log that was cut back to ``log_end`` while the worker was idle. Nothing after that counts as
        flushed."""
        self._epoch += 1
        self._synced_until = min(self._synced_until, log_end)
        self._queues_done = min(self._queues_done, log_end)

    def restart_at(self, log_end: int) -> None:
        """Adapt to a log that was emptied and restarts at ``log_end``."""
        self._epoch += 1
        self._synced_until = self._queues_done = log_end

    def make_segment(self, start: int) -> None:
        """Create the file of a future segment, off the hot path."""
        self._run(self._segment_steps(start))

    def _make_index_file(self) -> None:
        """Create the index's next file, off the hot path. Without a worker it is created when it is needed."""
        index = self._parts.index
        if index is not None and self._worker is not None and (job := index.next_file_job()) is not None:
            self._worker.submit(_one_step(job))

    def remove_files(self, paths: list[str]) -> None:
        """Remove files that are no longer referenced, oldest first, off the hot path."""
        self._run(self._removal_steps(paths))

    def _removal_steps(self, paths: list[str]) -> Iterator[None]:
        for path in paths:
            try:
                self._parts.fs.remove(path)
            except OSError as error:
                # The order matters: a later segment must not be removed before an earlier one. A restart tries again.
                logger.warning("file not removed path=%s error=%s", path, error)
                return
            yield

    def _segment_steps(self, start: int) -> Iterator[None]:
        try:
            self._log.segments.make_file(start)
        except OSError as error:
            # The append that needs the file tries again and reports the error.
            logger.warning("next segment not preallocated start=%d error=%s", start, error)
        yield

    def stop(self) -> None:
        """Stop the worker. ``flush`` still works afterwards, inline."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()


def _one_step(work: Callable[[], None]) -> Iterator[None]:
    work()
    yield


def sync_file(parts: StoreParts, path: str) -> None:
    """Sync one file to disk. A missing file is ignored, because it has expired in the meantime."""
    try:
        handle = parts.fs.open(path, write=True)
    except FileNotFoundError:
        return
    try:
        parts.fs.sync_data(handle)
    finally:
        parts.fs.close(handle)


def directories_of(paths: list[str]) -> list[str]:
    """Returns the directories that must be synced to make these queue files durable: their queues, their topics, and
    the root of all queues."""
    found: dict[str, None] = {}
    for path in paths:
        queue = posixpath.dirname(path)
        topic = posixpath.dirname(queue)
        for directory in (queue, topic, posixpath.dirname(topic)):
            found[directory] = None
    return list(found)
