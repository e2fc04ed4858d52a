"""Who may make a call: signatures of clients, and rights on topics and groups."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from orbitmq.proxy.http2.call import Call

__all__ = ["Access", "Right", "What"]


class What(Enum):
    """What is done to a topic or a group."""

    PUB = "PUB"
    SUB = "SUB"
    EITHER = "PUB or SUB"


class Right(msgspec.Struct, frozen=True):
    """A right a call needs."""

    kind: str
    """Topic or Group."""
    name: str
    what: What

    @classmethod
    def pub_topic(cls, topic: str) -> Right:
        return cls("Topic", topic, What.PUB)

    @classmethod
    def sub_topic(cls, topic: str) -> Right:
        return cls("Topic", topic, What.SUB)

    @classmethod
    def any_of_topic(cls, topic: str) -> Right:
        return cls("Topic", topic, What.EITHER)

    @classmethod
    def sub_group(cls, group: str) -> Right:
        return cls("Group", group, What.SUB)


class Access(Protocol):
    """Decides about calls."""

    async def check(self, call: Call, rights: tuple[Right, ...]) -> None:
        """Raises ``Refused``."""
