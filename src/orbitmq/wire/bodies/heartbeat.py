"""The state that a client reports to a broker: HEART_BEAT (34) and CHECK_CLIENT_CONFIG (46).

Corresponds to Apache's HeartbeatData, ProducerData, ConsumerData, CheckClientRequestBody.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import field

from orbitmq.errors import BodyError
from orbitmq.model.subscription import SubscriptionData
from orbitmq.wire import javajson
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int32

__all__ = [
    "CONSUMERS_MAX",
    "PRODUCERS_MAX",
    "SUBSCRIPTIONS_MAX",
    "CheckClientConfig",
    "ConsumeFromWhere",
    "ConsumeType",
    "ConsumerData",
    "HeartbeatData",
    "MessageModel",
    "ProducerData",
]


CONSUMERS_MAX: Final = 1_000
"""Limit per heartbeat: consumer groups of one client."""
PRODUCERS_MAX: Final = 10_000
"""Limit per heartbeat: producer groups. A proxy has one for each topic."""
SUBSCRIPTIONS_MAX: Final = 5_000
"""Limit per heartbeat: subscriptions of all its groups."""


class ConsumeType(StrEnum):
    """How a consumer gets its messages."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether the members of a group share the messages or each member gets all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a new group begins to consume."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


_ORDINALS: Final = {
    "consumeFromWhere": (
        ConsumeFromWhere.LAST_OFFSET.value,
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        ConsumeFromWhere.FIRST_OFFSET.value,
        ConsumeFromWhere.TIMESTAMP.value,
    ),
    "consumeType": (ConsumeType.ACTIVELY.value, ConsumeType.PASSIVELY.value, ConsumeType.POP.value),
    "messageModel": (MessageModel.BROADCASTING.value, MessageModel.CLUSTERING.value),
}
"""The names of Java's enums, in the order of their ordinals."""
_ORDINALS_BYTES_MAX: Final = 256 * 1024
"""Largest heartbeat that is parsed a second time to convert ordinals."""


class ProducerData(Body, frozen=True, kw_only=True):
    group_name: str


class ConsumerData(Body, frozen=True, kw_only=True):
    """A consumer's part of a heartbeat. The three enums are plain text, because other clients send names that the
    enums in this module lack."""

    consume_from_where: str | None = None
    consume_type: str | None = None
    group_name: str
    message_model: str | None = None
    subscription_data_set: list[SubscriptionData] = always(list)
    unit_mode: bool = always(bool)


class HeartbeatData(Body, frozen=True, kw_only=True):
    """Body of HEART_BEAT (34)."""

    client_id: str = field(name="clientID")
    consumer_data_set: list[ConsumerData] = always(list)
    heartbeat_fingerprint: Int32 | None = None
    """Since 5.1.3: a hash of the subscriptions; 0 means a heartbeat of the first kind."""
    producer_data_set: list[ProducerData] = always(list)
    without_sub: bool | None = None
    """Since 5.1.3: nothing changed, so the subscriptions are omitted."""

    @classmethod
    def decode(cls, data: bytes) -> HeartbeatData:
        """Decode a heartbeat. Also accepts the forms that the C++ client and its Python binding send: enums as
        ordinals, and versions as text. Raises ``BodyError``."""
        try:
            return javajson.decode(data, cls, expects_plain=True)
        except BodyError:
            if len(data) > _ORDINALS_BYTES_MAX:
                raise
            named = _with_names(javajson.loads(data, expects_plain=True))
            if named is None:
                raise
            return javajson.decode(named, cls, expects_plain=True)


def _with_names(heartbeat: Any) -> bytes | None:
    """Returns the heartbeat with ordinals replaced by Java's names; None if it is malformed in another way."""
    try:
        for consumer in heartbeat["consumerDataSet"]:
            for member, names in _ORDINALS.items():
                if isinstance(consumer.get(member), int):
                    consumer[member] = names[consumer[member]]
            for subscription in consumer.get("subscriptionDataSet") or ():
                subscription["subVersion"] = int(subscription.get("subVersion", 0))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return msgspec.json.encode(heartbeat)


class CheckClientConfig(Body, frozen=True, kw_only=True):
    """Body of CHECK_CLIENT_CONFIG (46)."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
