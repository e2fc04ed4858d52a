"""The bytes of records, frames and queue units: bytes in, bytes or columns out. No I/O, no clock, no state.

``orbitmq.kernel.plain`` is the definition, the extension module ``orbitmq_kernel`` (crate ``kernel/``) its compiled
twin. One of them is chosen at import, and every name here is that one's (``chosen.py``).
"""

from orbitmq.kernel.chosen import (
    NAME,
    Filter,
    body_crc,
    dispatch_records,
    encode_entries,
    encode_record,
    encode_records,
    encode_send_answers,
    encode_send_fields,
    find_property,
    hash_keys,
    java_hash_bytes,
    pull_answer,
    pull_fields,
    read_send,
    read_send_answer,
    select,
    split_frames,
    stored_properties,
    tag_code,
    walk_records,
)
from orbitmq.kernel.plain.frames import (
    Frame,
    SendAnswer,
    SendAnswerFields,
    SendFields,
    SendOrigin,
    SendTarget,
)
from orbitmq.kernel.plain.records import KEYS, KEYS_AND_TAG, NO_KEYS, Message

__all__ = [
    "KEYS",
    "KEYS_AND_TAG",
    "NAME",
    "NO_KEYS",
    "Filter",
    "Frame",
    "Message",
    "SendAnswer",
    "SendAnswerFields",
    "SendFields",
    "SendOrigin",
    "SendTarget",
    "body_crc",
    "dispatch_records",
    "encode_entries",
    "encode_record",
    "encode_records",
    "encode_send_answers",
    "encode_send_fields",
    "find_property",
    "hash_keys",
    "java_hash_bytes",
    "pull_answer",
    "pull_fields",
    "read_send",
    "read_send_answer",
    "select",
    "split_frames",
    "stored_properties",
    "tag_code",
    "walk_records",
]
