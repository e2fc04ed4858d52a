"""Messages for tests of the record package."""

from __future__ import annotations

import msgspec

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
HOST_V6 = bytes.fromhex("20010db8000000000000000000000001") + bytes([0, 0, 0x2A, 0x9F])


class Sent(msgspec.Struct, kw_only=True):
    """A message about to be stored."""

    topic: str = "TopicA"
    queue_id: int = 3
    body: bytes = b"hi"
    properties: bytes = b"TAGS\x01ta\x02"
    born_timestamp_ms: int = 1
    born_host: bytes = bytes([1, 2, 3, 4, 0, 0, 0, 5])
    flag: int = 6
    sys_flag: int = 0
    reconsume_times: int = 7
    prepared_offset: int = 8
