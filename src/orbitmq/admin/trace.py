"""Reads message traces, which name the senders and consumers of a message, from the trace topic (Apache:
``TraceView``).
"""

from __future__ import annotations

from orbitmq.admin.base import Result
from orbitmq.admin.errors import AdminError
from orbitmq.admin.messages import KeyQuery, MessageView, messages_by_key
from orbitmq.admin.session import Admin
from orbitmq.errors import NoMessage
from orbitmq.model.names import TRACE_TOPIC

__all__ = ["TraceRow", "Traces", "message_trace"]

_LATEST_MS = 2**63 - 1
_TRACE_BYTES_MAX = 256 * 1024
"""Limit of the bytes to inflate from each record. Clients send at most half of it."""


class TraceRow(Result, kw_only=True):
    type: str
    """``Pub`` for a send, ``Sub`` for a delivery."""
    group: str
    client_host: str
    timestamp: int
    cost_ms: int
    success: bool


class Traces(Result, kw_only=True):
    produced: list[TraceRow]
    consumed: list[TraceRow]


async def message_trace(
    admin: Admin,
    message_id: str,
    *,
    trace_topic: str = TRACE_TOPIC,
    between_ms: tuple[int, int] = (0, _LATEST_MS),
    count_max: int = 64,
) -> Traces:
    """Returns the sends and deliveries of a message. Raises ``NoMessage`` if the trace topic has none."""
    query = KeyQuery(
        topic=trace_topic,
        key=message_id,
        count_max=count_max,
        begin_ms=between_ms[0],
        end_ms=between_ms[1],
        read_bytes=_TRACE_BYTES_MAX,
    )
    found = await messages_by_key(admin, query)
    if not found:
        raise NoMessage(f"topic {trace_topic} has no trace of {message_id!r}: enable tracing in the clients")
    produced: list[TraceRow] = []
    consumed: list[TraceRow] = []
    for message in found:
        for line in (message.body or "").split("\x02"):
            fields = line.split("\x01")
            row = _row(fields, message, message_id)
            if row is not None:
                (produced if row.type == "Pub" else consumed).append(row)
    return Traces(produced=produced, consumed=consumed)


def _row(fields: list[str], message: MessageView, message_id: str) -> TraceRow | None:
    """Returns the row for one trace entry, or None if it is about another message or of a kind that is not shown."""
    host = message.born_host.rpartition(":")[0]
    try:
        match fields:
            case ["Pub", time, _, group, _, traced, _, _, _, _, cost, _, *rest] if traced == message_id:
                # Before 4.5 there is no offset id between the kind and the outcome.
                success = rest[1 if len(rest) >= 2 else 0] == "true"
                return _made("Pub", group, host, time, cost, success)
            case ["SubAfter", _, traced, cost, success, _, _, time, group, *_] if traced == message_id:
                return _made("Sub", group, host, time, cost, success == "true")
            case ["SubAfter", _, traced, cost, success, *_] if traced == message_id:
                return _made("Sub", "", host, "0", cost, success == "true")
    except (ValueError, IndexError) as error:
        raise AdminError(f"a trace of {message_id} cannot be read: {error}") from None
    return None


def _made(kind: str, group: str, host: str, time: str, cost: str, success: bool) -> TraceRow:
    return TraceRow(
        type=kind, group=group, client_host=host, timestamp=int(time), cost_ms=int(cost), success=success
    )
