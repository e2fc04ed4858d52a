"""Parking: stores a message under another topic until it may be delivered to its own.

A message with a delay, a delivery time or a transaction is first stored under another topic. Its own topic and queue
are kept in its properties REAL_TOPIC and REAL_QID. ``Parking`` parks messages and ``unparked`` restores them; no
other module depends on the form of a parked message.

    requests                      waits in                      delivered by
    a transaction (TRAN_MSG)      RMQ_SYS_TRANS_HALF_TOPIC      ``Transactions.commit``
    a delay level (DELAY)         SCHEDULE_TOPIC_XXXX           ``Schedule``
    a time (TIMER_...)            rmq_sys_wheel_timer           ``Timers``

Producers' sends go through ``of_producer``. The broker's own puts (send-back, commits, recalls) go through
``of_broker``, which never opens a transaction, because committed messages, and messages that a consumer sends back,
may still have the property TRAN_MSG. Delivered messages are not parked again, although they keep the properties that
requested parking. Corresponds to Apache's HookUtils.handleScheduleMessage and the prepareMessage of its transaction
service.
"""

from __future__ import annotations

from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import TRANSACTION_MASK, Property, SysFlag
from orbitmq.errors import MessageIllegal, NoPermission, RecordError, ServerError
from orbitmq.model.delay_levels import DelayLevels, parse_delay_level
from orbitmq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from orbitmq.record.codec import Record
from orbitmq.record.properties import find_property, remove_property, set_properties, set_property
from orbitmq.runtime.clock import Clock, ClockSteps
from orbitmq.store.types import NewMessage

__all__ = [
    "HALF_QUEUE",
    "TIMER_PROPERTIES",
    "TIMER_QUEUE",
    "Parking",
    "asked_ms",
    "delay_level",
    "out_ms",
    "own_place",
    "unparked",
]

HALF_QUEUE: Final = 0
TIMER_QUEUE: Final = 0
_DELAY: Final = Property.DELAY.encode()
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = Property.REAL_QUEUE_ID.encode()
_PREPARED: Final = Property.TRANSACTION_PREPARED.encode()
_TRANSACTION_ID: Final = Property.TRANSACTION_ID.encode()
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()
_OUT: Final = Property.TIMER_OUT_MS.encode()
_DELETES: Final = Property.TIMER_DEL_UNIQKEY.encode()
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_TYPE_BITS: Final = int(TRANSACTION_MASK)
TIMER_PROPERTIES: Final = (
    Property.TIMER_DELAY_SEC.encode(),
    Property.TIMER_DELAY_MS.encode(),
    Property.TIMER_DELIVER_MS.encode(),
)
"""Properties that request delivery at a chosen time. If a message has several, the first of these applies."""
_DELAY_S, _DELAY_MS, _DELIVER_MS = TIMER_PROPERTIES


class Parking:
    """Decides under which topic a message is first stored."""

    def __init__(self, config: BrokerConfig, levels: DelayLevels, steps: ClockSteps, clock: Clock) -> None:
        self._config = config
        self.levels = levels
        self.steps = steps
        self._clock = clock

    def of_producer(self, message: NewMessage) -> NewMessage:
        """Returns a producer's message in the form to store. Raises ``BrokerError`` if the message must be
        refused."""
        if _opens_transaction(message):
            if self._config.transactions_refused:
                raise NoPermission(
                    f"the broker[{self._config.public_host}] sending transaction message is forbidden"
                )
            return _half(message)
        return self.of_broker(message)

    def of_broker(self, message: NewMessage) -> NewMessage:
        """Returns the broker's own message in the form to store: parked if it has a delay or a delivery time,
        otherwise unchanged. Raises ``BrokerError`` if the delay or the time is invalid."""
        if message.sys_flag & TRANSACTION_MASK not in (0, _COMMIT):
            return message
        level = delay_level(message.properties)
        if level > 0:
            return self._delayed(message, level)
        return self._timed(message) or message

    def _delayed(self, message: NewMessage, level: int) -> NewMessage:
        self.steps.look()  # the due time is derived from the store time
        # A level takes precedence over timer properties, which are removed so that the message is not delayed twice.
        properties = message.properties
        for name in TIMER_PROPERTIES:
            properties = remove_property(properties, name)
        clamped = self.levels.clamp(level)
        if clamped != level:
            properties = set_property(properties, _DELAY, b"%d" % clamped)
        return _parked(message._replace(properties=properties), SCHEDULE_TOPIC, clamped - 1)

    def _timed(self, message: NewMessage) -> NewMessage | None:
        raw = message.properties
        if b"TIMER_" not in raw or message.topic == TIMER_TOPIC or find_property(raw, _OUT) is not None:
            return None
        now_ms = self._clock.now_ms()
        try:
            due_ms = asked_ms(raw, now_ms)
        except ValueError:
            raise self._illegal_time() from None
        if due_ms is None:
            return None
        if not self._config.timer_wheel_enabled:
            raise ServerError("accurate timer message is not enabled, timerWheelEnable is false")
        if due_ms <= now_ms:
            if find_property(raw, _DELETES) is not None:
                raise self._illegal_time()
            return None
        if due_ms - now_ms > self._config.timer_delay_max_s * 1000:
            raise self._illegal_time()
        properties = set_property(raw, _OUT, b"%d" % out_ms(due_ms))
        return _parked(message._replace(properties=properties), TIMER_TOPIC, TIMER_QUEUE)

    def _illegal_time(self) -> MessageIllegal:
        return MessageIllegal(
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._config.timer_delay_max_s * 1000}ms; or if set del msg, the delay time should be bigger "
            "than the current time"
        )


def delay_level(properties: bytes) -> int:
    """Returns the requested delay level, or 0 if there is none. Raises ``MessageIllegal`` if the property is not a
    number."""
    text = find_property(properties, _DELAY)
    if text is None:
        return 0
    try:
        return max(0, parse_delay_level(text))
    except ValueError:
        raise MessageIllegal(f"property DELAY={text[:32]!r} is not a number") from None


def asked_ms(properties: bytes, now_ms: int) -> int | None:
    """Returns the requested delivery time in epoch milliseconds, or None if there is none. Raises ``ValueError`` if
    it is not a number."""
    if (text := find_property(properties, _DELAY_S)) is not None:
        return now_ms + int(text) * 1000
    if (text := find_property(properties, _DELAY_MS)) is not None:
        return now_ms + int(text)
    text = find_property(properties, _DELIVER_MS)
    return None if text is None else int(text)


def out_ms(due_ms: int) -> int:
    """Returns the start (in ms) of the second under which a message due at ``due_ms`` is entered. That second ends at
    the due time or less than a second after it."""
    return (due_ms - 1) // 1000 * 1000


def _opens_transaction(message: NewMessage) -> bool:
    """Whether a send opens a transaction. A message that a consumer sends back does not, although clients before
    4.6.1 left the property on it."""
    text = find_property(message.properties, _PREPARED)
    if text is None or text.lower() != b"true":
        return False
    return not (message.reconsume_times > 0 and delay_level(message.properties) > 0)


def _half(message: NewMessage) -> NewMessage:
    unique_key = find_property(message.properties, _UNIQUE_KEY)
    if unique_key is not None:
        properties = set_property(message.properties, _TRANSACTION_ID, unique_key)
        message = message._replace(properties=properties)
    # Only a message without the type bits gets an offset in the half queue, by which it is looked up later.
    return _parked(message._replace(sys_flag=message.sys_flag & ~_TYPE_BITS), HALF_TOPIC, HALF_QUEUE)


def _parked(message: NewMessage, topic: str, queue_id: int) -> NewMessage:
    """Returns the message under another topic and queue. Its own topic and queue are kept in its properties."""
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


def own_place(properties: bytes) -> tuple[str, int]:
    """Returns the original topic and queue of a parked message. Raises ``RecordError`` if its properties lack
    them."""
    topic = find_property(properties, _REAL_TOPIC)
    queue_id = find_property(properties, _REAL_QUEUE_ID)
    if topic is None or queue_id is None or not queue_id.isdigit():
        raise RecordError("it does not say where it belongs (REAL_TOPIC, REAL_QID)")
    return topic.decode("utf-8", "replace"), int(queue_id)


def unparked(record: Record) -> NewMessage:
    """Returns a parked message under its original topic and queue. It keeps the properties it was parked with,
    including REAL_TOPIC and REAL_QID, as in Apache. Raises ``RecordError`` if its properties lack the original topic
    and queue."""
    topic, queue_id = own_place(record.properties)
    return NewMessage(
        topic,
        queue_id,
        record.body,
        record.properties,
        record.born_timestamp_ms,
        record.born_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
    )
