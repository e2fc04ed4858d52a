"""The checks that every send must pass, in Apache's order and with Apache's response codes.

They apply to plain sends, batches and replies (Apache: preSend and msgCheck of AbstractSendMessageProcessor).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.delivery.put import PENDING_ACKS_MAX
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.quotas import LimitsConfig, Quotas
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import (
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    ServerError,
    SystemBusy,
    TopicNotFound,
)
from orbitmq.model.names import RETRY_PREFIX, check_send_topic
from orbitmq.model.topic import (
    MESSAGE_TYPE_ATTRIBUTE,
    NO_LITE_TOPICS,
    PERM_READ_WRITE,
    TopicConfig,
    TopicFilterType,
    perm_text,
)
from orbitmq.runtime.clock import Clock

__all__ = ["FAQ", "NOT_A_MASTER", "SendChecks"]

FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
NOT_A_MASTER: Final = "[REJECTREQUEST]system busy, start flow control for a while"
_MULTI_TAG: Final = TopicFilterType.MULTI_TAG
_QUOTA: Final = "quota"
"""The prefix of the keys of all options about quotas."""
_STALL_MS: Final = 1_000
"""An append this slow means that the disk cannot keep up (Apache: osPageCacheBusyTimeOutMills)."""


class _Send(Protocol):
    """The fields of a send that are checked."""

    @property
    def topic(self) -> str: ...
    @property
    def default_topic(self) -> str: ...
    @property
    def default_topic_queue_nums(self) -> int: ...
    @property
    def queue_id(self) -> int: ...


class _Peer(Protocol):
    """The sender of a request that is being served."""

    @property
    def waited_s(self) -> float: ...


class SendChecks:
    """Checks sends. No part of a refused send is stored."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        gate: AckGate,
        clock: Clock,
        limits: LimitsConfig,
        events: BrokerEvents,
    ) -> None:
        self._config = config
        self._topics = topics
        self._gate = gate
        self._clock = clock
        self._stalled = ""
        """The reason why sends that waited for a stalled append are refused; empty if no sends are refused."""
        self._stalled_by: Collection[object] = ()
        self._quotas = Quotas(limits, clock.monotonic)
        self.quotas: Quotas | None = None
        """None if there are no quotas."""
        self._options_changed(frozenset({_QUOTA}))
        events.options_changed.append(self._options_changed)

    def _options_changed(self, keys: frozenset[str]) -> None:
        if any(key.startswith(_QUOTA) for key in keys):
            self._quotas.options_changed()
            self.quotas = self._quotas if self._quotas.enabled else None

    def broker(self, peer: _Peer) -> None:
        """Check that the broker accepts sends, and that this send has not waited too long. Raises ``BrokerError``."""
        config, gate = self._config, self._gate
        if config.is_slave:
            raise SystemBusy(NOT_A_MASTER)
        if gate.refusal:
            raise ServerError(gate.refusal)
        if gate.waiting_count >= PENDING_ACKS_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        if self._stalled and peer not in self._stalled_by:
            raise SystemBusy(f"[{self._stalled}]broker busy, start flow control for a while")
        if peer.waited_s and config.fast_failure_enabled:
            waited_ms = int(peer.waited_s * 1000)
            if waited_ms > config.send_wait_max_ms:
                raise SystemBusy(
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                    f"period in queue: {waited_ms}ms"
                )
        accept_from = config.accept_sends_from_ms
        if accept_from and self._clock.now_ms() < accept_from:
            raise ServerError(f"broker unable to service, until, {accept_from}")

    def are_plain(self, queues: Iterable[tuple[str, int]]) -> bool:
        """Whether plain messages may be stored in these queues as they are, because ``topic`` would neither create
        nor refuse anything for them, and nothing has to be set in the messages. Raises ``BrokerError``."""
        # Hot path: this loop runs once per queue of a read.
        if not self._config.writable:
            return False
        configs = self._topics.configs
        for name, queue_id in queues:
            config = configs.get(name)
            if (
                config is None
                or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums)
                or config.topic_filter_type is _MULTI_TAG
                or (config.attributes and config.attributes.get(MESSAGE_TYPE_ATTRIBUTE) == "LITE")
            ):
                return False
            check_send_topic(name)
        return True

    def appended_in(self, elapsed_ms: float, senders: Collection[object]) -> None:
        """Record the duration of an append for ``senders``. If it was slow, other senders' requests have waited too
        long meanwhile and are refused, so that their clients try another broker, as with Apache's removal of overdue
        requests.

        This affects only data that was in the sockets when the append ended, which the loop reads in this turn and
        the next. The ``senders`` waited only for their own append, so what they send next counts as new.
        """
        if self._config.fast_failure_enabled and elapsed_ms > self._config.send_wait_max_ms:
            self._stalled = "PCBUSY_CLEAN_QUEUE" if elapsed_ms > _STALL_MS else "TIMEOUT_CLEAN_QUEUE"
            self._stalled_by = senders
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._stall_over)

    def _stall_over(self) -> None:
        self._stalled = ""
        self._stalled_by = ()

    def topic(self, send: _Send, peer: str, *, create: bool = True) -> TopicConfig:
        """Returns the topic of a send. A missing topic is created if that is allowed. Raises ``BrokerError``."""
        name = send.topic
        config = self._topics.configs.get(name)
        if config is not None and config.order and not self._config.writable:
            raise NoPermission(f"the broker[{self._config.broker_name}] sending message is forbidden")
        check_send_topic(name)
        if config is None and create:
            config = self._topics.create_in_send(name, send.default_topic, send.default_topic_queue_nums)
        if config is None and create and name.startswith(RETRY_PREFIX):
            config = self._topics.create_in_send_back(name, 1, PERM_READ_WRITE)
        if config is None:
            raise TopicNotFound(f"topic[{name}] not exist, apply first please!\n{FAQ}")
        if config.attributes and config.attributes.get(MESSAGE_TYPE_ATTRIBUTE) == "LITE":
            # The topic comes from an Apache file. A message stored only in the parent topic would reach no lite
            # consumer.
            raise MessageIllegal(f"topic {name} has the type LITE, and {NO_LITE_TOPICS} by this broker")
        if send.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise InvalidParameter(
                f"request queueId[{send.queue_id}] is illegal, {_described(config)} Producer: {peer}"
            )
        return config


def _described(config: TopicConfig) -> str:
    """Formats a topic as in Apache's remarks."""
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type.value}, topicSysFlag={config.topic_sys_flag}, "
        f"order={'true' if config.order else 'false'}, attributes={{{attributes}}}]"
    )
