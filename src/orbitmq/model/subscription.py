"""Subscriptions of consumers (Apache: ``SubscriptionData``, ``FilterAPI``)."""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.errors import SubscriptionParseFailed
from orbitmq.record.hashing import tags_code

__all__ = ["ALL_TAGS", "SQL92", "TAG", "SubscriptionData", "parse_subscription", "subscribe_by_tags"]

ALL_TAGS: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"

_JAVA_BLANKS: Final = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` removes: everything up to and including the space."""


class SubscriptionData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A consumer's subscription to one topic, and its JSON form."""

    class_filter_mode: bool = False
    code_set: frozenset[int] = frozenset()
    """Java hashes of the tags, compared with the tag codes of the consume queue."""
    expression_type: str = TAG
    sub_string: str = ALL_TAGS
    sub_version: int = 0
    """When the subscription last changed; a broker that has an older one refuses the pull."""
    tags_set: frozenset[str] = frozenset()
    topic: str

    @property
    def is_tag_type(self) -> bool:
        """Whether messages are selected by tags rather than by an SQL expression."""
        return not self.expression_type or self.expression_type == TAG

    @property
    def takes_all(self) -> bool:
        """Whether all messages are selected."""
        return self.is_tag_type and self.sub_string == ALL_TAGS

    def matches_code(self, tag_code: int) -> bool:
        """Whether a message passes the broker's test, which compares only the tag's hash. Another tag with the same
        hash passes too; the client filters it out."""
        return self.sub_string == ALL_TAGS or _int32(tag_code) in self.code_set

    def matches_tag(self, tag: str | None) -> bool:
        """Whether a message passes the client's test, which compares the tag itself."""
        return not self.tags_set or (tag is not None and tag in self.tags_set)


def subscribe_by_tags(topic: str, expression: str | None, sub_version: int = 0) -> SubscriptionData:
    """Parse ``*`` or ``TagA || TagB``. Raises ``SubscriptionParseFailed`` if the expression consists only of
    separators."""
    if not expression or expression == ALL_TAGS:
        return SubscriptionData(topic=topic, sub_version=sub_version)
    parts = expression.split("||")
    if not any(parts):
        raise SubscriptionParseFailed(f"tag expression {expression!r} of topic {topic} names no tag")
    tags = frozenset(filter(None, (part.strip(_JAVA_BLANKS) for part in parts)))
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(map(tags_code, tags)),
        sub_version=sub_version,
    )


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, sub_version: int = 0
) -> SubscriptionData:
    """Returns a subscription of any type. The expression itself is compiled elsewhere."""
    if expression_type is None or expression_type == TAG:
        return subscribe_by_tags(topic, expression, sub_version)
    if not expression:
        raise SubscriptionParseFailed(f"an expression of type {expression_type} on topic {topic} is empty")
    return SubscriptionData(
        topic=topic, sub_string=expression, expression_type=expression_type, sub_version=sub_version
    )


def _int32(value: int) -> int:
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000
