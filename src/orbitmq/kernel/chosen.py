"""Chooses the kernel, once, when it is imported.

The compiled one is taken where it is installed, has our number of the interface and every function of it;
``ORBITMQ_KERNEL=plain`` or ``fast`` forces one of them. Types are those of the plain functions.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Final

__all__ = [
    "API",
    "NAME",
    "Filter",
    "answer_fields",
    "body_crc",
    "body_crcs",
    "dispatch_records",
    "encode_entries",
    "encode_record",
    "encode_records",
    "encode_send_answers",
    "encode_send_fields",
    "find_property",
    "hash_keys",
    "java_hash_bytes",
    "link_keys",
    "property_pairs",
    "property_values",
    "pull_answer",
    "pull_fields",
    "read_send",
    "read_send_answer",
    "record_starts",
    "record_values",
    "select",
    "split_frames",
    "stored_properties",
    "tag_code",
    "walk_records",
]

API: Final = 11
"""Of the functions below, their signatures and their results; ``kernel/src/lib.rs`` has the same number."""
_OURS: Final = frozenset({"API", "NAME"})
"""What every compiled kernel has, and what only this module has; the other names in ``__all__`` are functions."""


def _load(wanted: str) -> ModuleType | None:
    """The compiled kernel, or None for the plain one."""
    if wanted not in ("", "plain", "fast"):
        raise ImportError(f"ORBITMQ_KERNEL is {wanted!r}; it may be plain or fast")
    if wanted == "plain":
        return None
    try:
        fast = importlib.import_module("orbitmq_kernel")
    except ImportError as error:
        if wanted == "fast":
            raise ImportError(
                f"ORBITMQ_KERNEL=fast, but the compiled kernel cannot be imported ({error}); "
                "install orbitmq[fast], or run make setup where cargo is present"
            ) from error
        return None
    reason = _mismatch(fast)
    if not reason:
        return fast
    if wanted == "fast":
        raise ImportError(f"ORBITMQ_KERNEL=fast, but the compiled kernel {reason}; build it again")
    return None


def _mismatch(fast: ModuleType) -> str:
    """Why a compiled kernel cannot be used; empty if it can.

    The number alone is not enough: two branches may both have raised it to the same one.
    """
    found = getattr(fast, "API", None)
    if found != API:
        return f"has interface {found}, {API} is needed"
    missing = [name for name in __all__ if name not in _OURS and not hasattr(fast, name)]
    return f"has no {', '.join(missing)}" if missing else ""


_fast: Final = _load(os.environ.get("ORBITMQ_KERNEL", ""))
NAME: Final = "plain" if _fast is None else "fast"
"""Which kernel this process uses."""

if TYPE_CHECKING or _fast is None:
    from orbitmq.kernel.plain.columns import property_pairs, property_values
    from orbitmq.kernel.plain.frames import (
        encode_send_answers,
        encode_send_fields,
        read_send,
        read_send_answer,
        split_frames,
        stored_properties,
    )
    from orbitmq.kernel.plain.hashes import body_crc, body_crcs, java_hash_bytes
    from orbitmq.kernel.plain.index import link_keys
    from orbitmq.kernel.plain.pulls import answer_fields, pull_answer, pull_fields, record_values
    from orbitmq.kernel.plain.records import (
        dispatch_records,
        encode_entries,
        encode_record,
        encode_records,
        find_property,
        hash_keys,
        record_starts,
        tag_code,
        walk_records,
    )
    from orbitmq.kernel.plain.select import Filter, select
else:
    Filter = _fast.Filter
    answer_fields = _fast.answer_fields
    body_crc = _fast.body_crc
    body_crcs = _fast.body_crcs
    java_hash_bytes = _fast.java_hash_bytes
    link_keys = _fast.link_keys
    property_pairs = _fast.property_pairs
    property_values = _fast.property_values
    pull_answer = _fast.pull_answer
    pull_fields = _fast.pull_fields
    record_starts = _fast.record_starts
    record_values = _fast.record_values
    select = _fast.select
    encode_send_answers = _fast.encode_send_answers
    encode_send_fields = _fast.encode_send_fields
    read_send = _fast.read_send
    read_send_answer = _fast.read_send_answer
    split_frames = _fast.split_frames
    stored_properties = _fast.stored_properties
    dispatch_records = _fast.dispatch_records
    encode_entries = _fast.encode_entries
    encode_record = _fast.encode_record
    encode_records = _fast.encode_records
    find_property = _fast.find_property
    hash_keys = _fast.hash_keys
    tag_code = _fast.tag_code
    walk_records = _fast.walk_records
