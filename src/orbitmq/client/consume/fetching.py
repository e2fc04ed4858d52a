"""Pulls for a push consumer: one loop for each held queue, as fast as the messages are handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from orbitmq.client.consume.class_filter import ClassUploads
from orbitmq.client.consume.delivery import Delivery
from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.offset_store import OffsetStore
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.puller import Puller, PullResult, PullStatus
from orbitmq.client.options import PushOptions
from orbitmq.codes import PullFlag
from orbitmq.errors import FlowControl, OrbitError
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SubscriptionData

__all__ = ["Fetching"]

logger = logging.getLogger(__name__)

_PAUSED_S: Final = 0.2
_FLOW_CONTROL_S: Final = 0.02
_RELEASE_TRIES: Final = 50
_RELEASE_PAUSE_S: Final = 0.01


class Fetching:
    """The ``QueueReader`` of a push consumer."""

    pulls = True

    def __init__(
        self,
        membership: Membership,
        options: PushOptions,
        store: OffsetStore,
        puller: Puller,
        uploads: ClassUploads,
        delivery: Delivery,
    ) -> None:
        self._membership = membership
        self._instance = membership.instance
        self._options = options
        self._store = store
        self._puller = puller
        self._uploads = uploads
        self._delivery = delivery
        self.suspended = False
        """Pull nothing; messages already here are still handled."""

    # -- what an assignment asks (QueueReader) ---------------------------------------------------------

    def open(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        options = self._options
        return ProcessQueue(
            queue,
            offset,
            count_max=options.cached_count_max,
            bytes_max=options.cached_bytes_max,
            span_max=0 if options.orderly else options.span_max,
        )

    def begin(self, held: ProcessQueue) -> None:
        self._instance.tasks.start(self._pull_forever(held), f"pull-{held.queue.topic}-{held.queue.queue_id}")

    async def release(self, held: ProcessQueue) -> bool:
        """Stop pulling a queue. Returns False if the handler of an orderly queue is still running.

        That handler must end first, because otherwise the next owner of the queue would run at the same time. The
        rebalance waits briefly and tries again; meanwhile the lock stays ours.
        """
        if self._options.orderly:
            for _ in range(_RELEASE_TRIES):
                if not held.consuming and not held.runner_active:
                    break
                await asyncio.sleep(_RELEASE_PAUSE_S)
            else:
                return False
        self._puller.forget(held.queue)
        return True

    def resize(self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[ProcessQueue]) -> None:
        options = self._options
        for held in mine:
            if options.cached_count_max_per_topic:
                held.count_max = max(1, options.cached_count_max_per_topic // len(mine))
            if options.cached_bytes_max_per_topic:
                held.bytes_max = max(1, options.cached_bytes_max_per_topic // len(mine))
        if options.on_queues_changed is not None:
            _guard(options.on_queues_changed, topic, list(queues), [held.queue for held in mine])

    # -- pulling ---------------------------------------------------------------------------------------

    async def _pull_forever(self, held: ProcessQueue) -> None:
        while not held.ending:
            try:
                await self._pull_once(held)
            except Exception:  # a bug in what reads its messages must not stop a queue
                logger.exception("pull failed queue=%s offset=%d", held.queue, held.next_offset)
                await asyncio.sleep(self._options.pull_error_pause_s)

    async def _pull_once(self, held: ProcessQueue) -> None:
        """Pull once and deliver the messages. Hot path: runs once per pull."""
        options = self._options
        held.last_pull_ms = self._membership.steady.now_ms()
        if self.suspended or held.paused:
            await asyncio.sleep(_PAUSED_S)
            return
        if held.full:
            self._log_full(held)
            await held.wait_for_room()
            held.last_pull_ms = self._membership.steady.now_ms()
            return
        subscription = self._membership.subscriptions.for_pull(held.queue.topic)
        if subscription is None:
            await asyncio.sleep(options.pull_error_pause_s)
            return
        flags = PullFlag.SUSPEND
        committed = 0
        if not self._membership.broadcasting:
            committed = self._store.offsets.get(held.queue, 0)
            if committed > 0:
                flags |= PullFlag.COMMIT_OFFSET
        if options.post_subscription and not subscription.class_filter_mode:
            flags |= PullFlag.SUBSCRIPTION
        try:
            result = await self._puller.pull(
                held.queue, held.next_offset, subscription, flags=flags, commit_offset=committed
            )
        except FlowControl:
            await asyncio.sleep(_FLOW_CONTROL_S)
            return
        except OrbitError as error:
            await self._failed(held, subscription, error)
            return
        if not held.ending:
            self._pulled(held, result)
            if options.pull_interval_s:
                await asyncio.sleep(options.pull_interval_s)

    def _pulled(self, held: ProcessQueue, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_MOVED:
            text = "offset moved queue=%s from=%d to=%d"
            logger.warning(text, held.queue, held.next_offset, result.next_offset)
            self._store.update(held.queue, result.next_offset, increase_only=False)
            self._store.freeze(held.queue)
            held.end()  # the rebalance takes the queue again at its new offset
            self._membership.rebalance_wanted.set()
            return
        held.answered = True
        held.next_offset = result.next_offset
        messages = result.messages
        if messages:
            held.put(messages)
            self._delivery.deliver(held, messages)
        elif not held.count:
            self._store.update(held.queue, result.next_offset)

    async def _failed(self, held: ProcessQueue, subscription: SubscriptionData, error: OrbitError) -> None:
        if held.ending:
            return
        if held.answered and self._puller.is_deleted(held.queue, error):
            held.restart()
            self._membership.rebalance_wanted.set()
            return
        if subscription.class_filter_mode:
            await self._find_filter_servers(held.queue.topic)
        await self._puller.failed(held.queue, held.next_offset, error)

    async def _find_filter_servers(self, topic: str) -> None:
        """Refresh the topic's route and upload our classes again, because a filter server is new or was restarted."""
        try:
            await self._instance.book.refresh(topic)
        except OrbitError as error:
            logger.debug("route not refreshed topic=%s error=%s", topic, error)
        await self._uploads.upload()

    def _log_full(self, held: ProcessQueue) -> None:
        self._instance.log_limits.log(
            logger,
            logging.INFO,
            ("full", held.queue.topic),
            "cache full, pulling pauses queue=%s count=%d bytes=%d first=%d last=%d",
            held.queue,
            held.count,
            held.size,
            held.first_offset(),
            held.max_offset,
        )


def _guard(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:  # code of the user's that only watches
        logger.exception("callback failed callback=%s", getattr(function, "__qualname__", function))
