"""The bytes of records, frames and queue units: bytes in, bytes or columns out. No I/O, no clock, no state.

``orbitmq.kernel.plain`` is the definition, the extension module ``orbitmq_kernel`` (crate ``kernel/``) its compiled
twin. One of them is chosen at import, and every name here is that one's (``chosen.py``).
"""

from orbitmq.kernel.chosen import (
    NAME,
    Filter,
    body_crc,
    java_hash_bytes,
    pull_answer,
    pull_fields,
    select,
)

__all__ = ["NAME", "Filter", "body_crc", "java_hash_bytes", "pull_answer", "pull_fields", "select"]
