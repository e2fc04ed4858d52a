"""A topic on one broker (Apache: ``TopicConfig``, ``PermName``, ``TopicAttributes``, ``AttributeUtil``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from orbitmq.codes import Perm
from orbitmq.errors import InvalidParameter
from orbitmq.model.names import is_dlq_topic, is_retry_topic, is_system_topic

__all__ = [
    "MESSAGE_TYPE_ATTRIBUTE",
    "NO_LITE_TOPICS",
    "PERM_READ_WRITE",
    "QUEUE_NUMS_DEFAULT",
    "QUEUE_NUMS_MAX",
    "TOPIC_ATTRIBUTES",
    "Attribute",
    "TopicConfig",
    "TopicFilterType",
    "alter_attributes",
    "attributes_without_effect",
    "is_inherited",
    "is_perm_valid",
    "is_readable",
    "is_writable",
    "kind_of_topic",
    "parse_attribute_changes",
    "perm_text",
]

PERM_READ_WRITE: Final = int(Perm.READ | Perm.WRITE)
QUEUE_NUMS_DEFAULT: Final = 16
"""Number of queues of a topic created without one, like in Apache."""

_READ: Final = int(Perm.READ)
_WRITE: Final = int(Perm.WRITE)
_INHERIT: Final = int(Perm.INHERIT)


def is_readable(perm: int) -> bool:
    """Whether consumers may pull."""
    return perm & _READ != 0


def is_writable(perm: int) -> bool:
    """Whether producers may send."""
    return perm & _WRITE != 0


def is_inherited(perm: int) -> bool:
    """Whether new topics may be created from this one."""
    return perm & _INHERIT != 0


def is_perm_valid(perm: int) -> bool:
    """Whether an admin may set this permission."""
    return 0 <= perm < Perm.PRIORITY


def perm_text(perm: int) -> str:
    """Returns the permission as the tools print it, such as ``RW-``."""
    return "".join(
        letter if perm & bit else "-" for letter, bit in (("R", _READ), ("W", _WRITE), ("X", _INHERIT))
    )


QUEUE_NUMS_MAX: Final = 65_535
"""For a topic on one broker. Apache has no limit, but a topic of 2 billion queues would only block every request that
lists them."""


class TopicFilterType(StrEnum):
    """Whether messages have a single tag or several."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of one topic, and their JSON form, with the members in Apache's (alphabetical) order."""

    attributes: dict[str, str] = {}
    order: bool = False
    perm: int = PERM_READ_WRITE
    read_queue_nums: int = QUEUE_NUMS_DEFAULT
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = QUEUE_NUMS_DEFAULT

    def to_text(self) -> str:
        """Returns the short form used in a compressed registration, which lacks ``order`` and ``topic_sys_flag``."""
        attributes = msgspec.json.encode(self.attributes).decode()
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
            f"{self.topic_filter_type.value} {attributes}"
        )

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """Parse the short form. Brokers of 4.x omit the attributes. Raises ``InvalidParameter``."""
        fields = text.split(" ", 5)
        try:
            name, read_nums, write_nums, perm, filter_type = fields[:5]
            return cls(
                topic_name=name,
                read_queue_nums=int(read_nums),
                write_queue_nums=int(write_nums),
                perm=int(perm),
                topic_filter_type=TopicFilterType(filter_type),
                attributes=_attributes(fields[5]) if len(fields) > 5 else {},
            )
        except ValueError as error:
            raise InvalidParameter(f"a topic in short form cannot be read: {error}") from None


def _attributes(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str] | None) or {}
    except msgspec.DecodeError:
        return {}  # Apache drops attributes it cannot read and keeps the topic


class Attribute(msgspec.Struct, frozen=True):
    """The values allowed for an attribute of a topic or group: one of ``values`` if there are any, or else a number,
    or else any text."""

    changeable: bool = True
    values: frozenset[str] = frozenset()
    low: int | None = None
    """With ``high``: the bounds of an integer."""
    high: int = 2**63 - 1
    refused: str = ""
    """Why only ``served`` may be set here, although Apache allows more. Empty: every allowed value has its effect."""
    served: frozenset[str] = frozenset()

    def refusal(self, value: str) -> str:
        """Returns why an allowed value would have no effect; empty if it has one."""
        return "" if value in self.served else self.refused


MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
_TOPIC_TYPES: Final = frozenset(
    {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"}
)
NO_LITE_TOPICS: Final = "lite topics are not served"
TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(
        False,
        frozenset({"BatchCQ", "SimpleCQ"}),
        served=frozenset({"SimpleCQ"}),
        refused="there are no batch consume queues",
    ),
    "cleanup.policy": Attribute(
        False,
        frozenset({"DELETE", "COMPACTION"}),
        served=frozenset({"DELETE"}),
        refused="topics are not compacted",
    ),
    MESSAGE_TYPE_ATTRIBUTE: Attribute(
        True, _TOPIC_TYPES | {"LITE"}, served=_TOPIC_TYPES, refused=NO_LITE_TOPICS
    ),
    "reserve.time": Attribute(
        low=-1,
        served=frozenset({"-1"}),
        refused="messages of all topics are kept for fileReservedTime hours",
    ),
    "lite.topic.expiration": Attribute(
        low=-1, high=30 * 24 * 60, served=frozenset({"-1"}), refused=NO_LITE_TOPICS
    ),
}
"""The attributes of 5.5.0."""


def parse_attribute_changes(text: str | None) -> dict[str, str]:
    """Parse ``+name=value,-name``, the syntax of the admin tools, into a map whose keys keep the signs. Raises
    ``InvalidParameter``."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        name, equals, value = part.partition("=")
        if (equals and not name.startswith("+")) or (not equals and not name.startswith("-")):
            raise InvalidParameter(f"attribute change {part!r} is neither +name=value nor -name")
        if name in changes:
            raise InvalidParameter(f"attribute {name!r} is given twice")
        changes[name] = value
    return changes


def alter_attributes(
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    create: bool,
    known: Mapping[str, Attribute] = TOPIC_ATTRIBUTES,
) -> dict[str, str]:
    """Returns the attributes after applying the signed changes. Raises ``InvalidParameter`` for a change that is not
    allowed."""
    result = dict(current)
    seen: set[str] = set()
    for signed_name, value in changes.items():
        sign, name = signed_name[:1], signed_name[1:]
        attribute = known.get(name)
        if attribute is None:
            raise InvalidParameter(f"attribute {name!r} is not supported")
        if name in seen:
            raise InvalidParameter(f"attribute {name!r} is changed twice")
        seen.add(name)
        if not create and not attribute.changeable:
            raise InvalidParameter(f"attribute {name!r} cannot be changed after creation")
        if sign == "+":
            _check_value(name, attribute, value)
            if reason := attribute.refusal(value):
                raise InvalidParameter(f"attribute {name}={value} is refused: {reason}")
            result[name] = value
        elif sign == "-" and not create and name in current:
            del result[name]
        else:
            raise InvalidParameter(f"attribute change {signed_name!r} is not possible here")
    return result


def attributes_without_effect(
    attributes: Mapping[str, str], known: Mapping[str, Attribute] = TOPIC_ATTRIBUTES
) -> dict[str, str]:
    """Returns those attributes that an Apache file may contain but that have no effect here, each with the reason."""
    return {
        f"{name}={value}": reason
        for name, value in attributes.items()
        if (attribute := known.get(name)) is not None and (reason := attribute.refusal(value))
    }


def _check_value(name: str, attribute: Attribute, value: str) -> None:
    if attribute.values:
        if value not in attribute.values:
            allowed = ", ".join(sorted(attribute.values))
            raise InvalidParameter(f"attribute {name!r} cannot be {value!r}; allowed: {allowed}")
        return
    if attribute.low is None:
        return
    try:
        in_range = attribute.low <= int(value) <= attribute.high
    except ValueError:
        in_range = False
    if not in_range:
        raise InvalidParameter(
            f"attribute {name!r} must be a whole number from {attribute.low} to {attribute.high}, not {value!r}"
        )


def kind_of_topic(name: str, config: TopicConfig | None) -> str:
    """Returns the purpose of a topic as one word. This is its message type, unless it is a system topic."""
    if is_retry_topic(name):
        return "retry"
    if is_dlq_topic(name):
        return "dead letters"
    if is_system_topic(name):
        return "system"
    if config is None:
        return "normal"
    declared = config.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "").lower()
    if declared not in ("", "unspecified"):
        return declared
    return "fifo" if config.order else "normal"
