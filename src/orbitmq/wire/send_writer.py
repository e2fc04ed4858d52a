"""The header of a send, written fast (the reader is ``send_fields.py``).

A producer writes thirteen fields per message and nine of them are the same each time. They are kept as text, or as
bytes for the binary form.
"""

from __future__ import annotations

__all__ = ["SendWriter"]


class SendWriter:
    """Writes headers of SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2 of one producer."""

    __slots__ = ("_default_queue_count", "_default_topic", "_group")

    def __init__(self, group: str, default_topic: str, default_queue_count: int) -> None:
        self._group = group
        self._default_topic = default_topic
        self._default_queue_count = str(default_queue_count)

    def fields(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        properties: str,
        born_ms: int,
        flags: tuple[int, int],
        *,
        batch: bool = False,
    ) -> dict[str, str]:
        """``flags`` are sysFlag and flag. The order of the names is that of Apache's fast encoder."""
        sys_flag, flag = flags
        return {
            "a": self._group,
            "b": topic,
            "c": self._default_topic,
            "d": self._default_queue_count,
            "e": str(queue_id),
            "f": str(sys_flag),
            "g": str(born_ms),
            "h": str(flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
            "n": broker_name,
        }

    @staticmethod
    def with_retries(fields: dict[str, str], reconsume_times: int, max_reconsume_times: int) -> None:
        """Say how often a message sent to a retry topic was consumed, and how often it may be."""
        fields["j"] = str(reconsume_times)
        fields["l"] = str(max_reconsume_times)
