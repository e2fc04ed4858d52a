"""The two layouts of the kernel have the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

from orbitmq.kernel import layout
from orbitmq.kernel.layout import BATCH_ENTRY, FIXED_FIELDS, FIXED_V4, UNIT

RUST = Path(__file__).parents[3] / "kernel" / "src" / "layout.rs"
OTHER_NAMES = {
    "KEY_BYTES": layout.INDEX_KEY.size,
    "INDEX_ENTRY_BYTES": layout.INDEX_ENTRY.size,
    "FIXED_BYTES": FIXED_V4.size,
    "BATCH_ENTRY_BYTES": BATCH_ENTRY.size,
    "SLICE_BYTES": layout.SLICE.size,
    "UNIT_BYTES": UNIT.size,
    "HEADER_BYTES_MAX": layout.HEADER_LENGTH_MASK,
}
FIELDS_AT = {
    "MAGIC_AT": "magic",
    "CRC_AT": "body_crc",
    "QUEUE_ID_AT": "queue_id",
    "FLAG_AT": "flag",
    "QUEUE_OFFSET_AT": "queue_offset",
    "LOG_OFFSET_AT": "log_offset",
    "SYS_FLAG_AT": "sys_flag",
    "BORN_TIME_AT": "born_timestamp",
    "BORN_HOST_AT": "born_host",
    "STORE_TIME_AT": "store_timestamp",
}


def position(field: str) -> int:
    """Returns where a field of the fixed part is, found by packing a record that differs in it."""
    plain = [b"\0" * 8 if name.endswith("_host") else 0 for name in FIXED_FIELDS]
    marked = list(plain)
    at = FIXED_FIELDS.index(field)
    # The most significant byte is the first one, in all of them.
    largest = b"\xff" * 8 if field.endswith("_host") else -1
    marked[at] = 0xFFFFFFFF if field in ("magic", "body_crc") else largest
    pairs = zip(FIXED_V4.pack(*plain), FIXED_V4.pack(*marked), strict=True)
    return next(number for number, (before, after) in enumerate(pairs) if before != after)


def test_numbers_of_both_layouts_are_equal() -> None:
    text = RUST.read_text()
    constants = {
        name: int(value.replace("_", ""), 0)
        for name, value in re.findall(r"pub const (\w+): \w+ = (0x[0-9A-Fa-f_]+|[0-9_]+);", text)
    }
    ours = {
        name: OTHER_NAMES[name] if name in OTHER_NAMES else getattr(layout, name, None)
        for name in constants.keys() - FIELDS_AT.keys() - {"PREPARED", "ROLLED_BACK"}
    }
    assert len(ours) >= 15
    assert ours == {name: constants[name] for name in ours}
    assert {name: position(field) for name, field in FIELDS_AT.items()} == {
        name: constants[name] for name in FIELDS_AT
    }
    assert (
        position("sys_flag"),
        position("born_host"),
        position("store_timestamp"),
    ) == (layout.SYS_FLAG_AT, layout.BORN_HOST_AT, layout.STORE_TIME_AT)
