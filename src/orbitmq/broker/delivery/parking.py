"""What happens to a message between its checks and the log: delay levels, timers, half messages.

Producers' sends come through ``before_store``; the broker's own puts (send-back, commits) through ``placed``, which
knows no half messages: a committed message keeps its TRAN_MSG, and one sent back by a consumer is no transaction.
Deliveries of what was parked go straight to the store, since their properties still say "delay me".
Answers to Apache's HookUtils.handleScheduleMessage and the prepareMessage of its transaction service.
"""

from __future__ import annotations

from typing import Final, Protocol

from orbitmq.codes import TRANSACTION_MASK, Property, SysFlag
from orbitmq.errors import MessageIllegal
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.names import SCHEDULE_TOPIC
from orbitmq.record.properties import find_property, remove_property, set_properties, set_property
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import Appended, NewMessage

__all__ = ["TIMER_PROPERTIES", "Intake", "Rewrite", "delay_level", "parked"]

_DELAY: Final = Property.DELAY.encode()
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = Property.REAL_QUEUE_ID.encode()
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
TIMER_PROPERTIES: Final = (
    Property.TIMER_DELAY_SEC.encode(),
    Property.TIMER_DELAY_MS.encode(),
    Property.TIMER_DELIVER_MS.encode(),
)
"""Each asks for a delivery at a time of the sender's choice; the first one found counts."""


class Rewrite(Protocol):
    """One kind of parking: gives the message as it must be stored, or None when it is not concerned."""

    def __call__(self, message: NewMessage) -> NewMessage | None: ...


def delay_level(properties: bytes) -> int:
    """The level a message asks for, 0 for none. Raises ``MessageIllegal`` for one that is not a number."""
    text = find_property(properties, _DELAY)
    if text is None:
        return 0
    try:
        return max(0, int(text))
    except ValueError:
        raise MessageIllegal(f"property DELAY={text[:32]!r} is not a number") from None


def parked(message: NewMessage, topic: str, queue_id: int) -> NewMessage:
    """The message under another topic and queue, with its own ones kept in its properties."""
    return NewMessage(
        topic,
        queue_id,
        message.body,
        set_properties(
            message.properties,
            (
                (_REAL_TOPIC, message.topic.encode()),
                (_REAL_QUEUE_ID, b"%d" % message.queue_id),
            ),
        ),
        message.born_timestamp_ms,
        message.born_host,
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_offset,
    )


class Intake:
    """Decides where a message is stored first."""

    def __init__(
        self,
        store: MessageStore,
        levels: DelayLevels,
        *,
        half_message: Rewrite | None = None,
        timer: Rewrite | None = None,
    ) -> None:
        self._store = store
        self._levels = levels
        self._half_message = half_message
        self._timer = timer

    def before_store(self, message: NewMessage) -> NewMessage:
        """A producer's message as it must be stored. Raises ``BrokerError`` to refuse it."""
        if self._half_message is not None:
            half = self._half_message(message)
            if half is not None:
                return half
        return self.placed(message)

    def placed(self, message: NewMessage) -> NewMessage:
        """The message where it has to wait, or itself. Raises ``BrokerError`` for a delay that cannot be read."""
        if message.sys_flag & TRANSACTION_MASK not in (0, _COMMIT):
            return message
        level = delay_level(message.properties)
        if level > 0:
            return self._delayed(message, level)
        return (self._timer and self._timer(message)) or message

    def _delayed(self, message: NewMessage, level: int) -> NewMessage:
        # A level outranks the times of timers, which go: the message is not to be delayed twice.
        for name in TIMER_PROPERTIES:
            message.properties = remove_property(message.properties, name)
        clamped = self._levels.clamp(level)
        if clamped != level:
            message.properties = set_property(message.properties, _DELAY, b"%d" % clamped)
        return parked(message, SCHEDULE_TOPIC, clamped - 1)

    def put(self, message: NewMessage) -> Appended:
        """Store a message of the broker's own making. Raises ``StoreError``, ``BrokerError``."""
        return self._store.append(self.placed(message))
