"""Headers and fields that several requests share: the fields of every 5.x request, and the header without fields.

Corresponds to Apache's RpcRequestHeader, TopicRequestHeader and TopicQueueRequestHeader.
"""

from __future__ import annotations

from msgspec import field

from orbitmq.wire.header import Header

__all__ = ["Empty", "RpcRequest", "TopicRpcRequest"]


class Empty(Header, kw_only=True):
    """A request or an answer without header fields."""


class RpcRequest(Header, kw_only=True):
    """The fields of every 5.x request. A 4.9 client sends at most ``bname``. A server may ignore all of them."""

    namespace_name: str | None = field(name="ns", default=None)
    namespaced: bool | None = field(name="nsd", default=None)
    broker_name: str | None = field(name="bname", default=None)
    oneway: bool | None = field(name="oway", default=None)


class TopicRpcRequest(RpcRequest, kw_only=True):
    """A 5.x request about a topic. ``logical`` selects the static topic instead of this broker's part of it."""

    logical: bool | None = field(name="lo", default=None)
