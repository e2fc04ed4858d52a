"""Fields that several headers share: those of every 5.x request, and the header without fields.

Corresponds to Apache's RpcRequestHeader, TopicRequestHeader and TopicQueueRequestHeader.
"""

from __future__ import annotations

from msgspec import field

from orbitmq.wire.header import Header

__all__ = ["Empty", "RpcRequest", "TopicRpcRequest"]


class Empty(Header, kw_only=True):
    """A request or an answer without header fields."""


class RpcRequest(Header, kw_only=True):
    """Fields of every 5.x request; a 4.9 client sends at most ``bname``. A server may ignore all of them."""

    namespace_name: str | None = field(name="ns", default=None)
    namespaced: bool | None = field(name="nsd", default=None)
    broker_name: str | None = field(name="bname", default=None)
    oneway: bool | None = field(name="oway", default=None)


class TopicRpcRequest(RpcRequest, kw_only=True):
    """A 5.x request about a topic: ``logical`` means the static topic, not this broker's part."""

    logical: bool | None = field(name="lo", default=None)
