"""The fields of a pull request, as the broker reads them (PULL_MESSAGE 11, LITE_PULL_MESSAGE 361)."""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.codes import SerializeType
from orbitmq.kernel import pull_fields
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.consume import PullMessageRequest

__all__ = ["PullFields", "read_pull"]

_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)


class PullFields(NamedTuple):
    """What a broker looks at in a ``PullMessageRequest``, in the order of ``kernel.pull_fields``."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    sub_version: int = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None


def read_pull(frame: Frame) -> PullFields:
    """Raises ``HeaderFieldError`` naming what is wrong."""
    values = pull_fields(frame.ext_raw, frame.serialize_type == _ROCKETMQ)
    if values is not None:
        return PullFields._make(values)
    # The typed reader knows everything JSON may look like, and what to say about a missing or malformed field.
    request = decode_header(PullMessageRequest, frame)
    return PullFields._make(getattr(request, name) for name in PullFields._fields)
