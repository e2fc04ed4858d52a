"""Encodes and decodes message properties, a text of ``name 0x01 value 0x02`` pairs (Apache: ``MessageDecoder``'s
property functions).

All functions follow the rules of Apache's parser. The last pair may lack its terminator (senders of 4.9). A pair with
an empty name or value does not exist. If two pairs have the same name, the later one counts. A value may contain
0x01. All functions except ``encode_properties`` and ``decode_properties`` work on the raw bytes, because the broker's
send path uses three or four names out of a dozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from orbitmq.errors import RecordError
from orbitmq.kernel import find_property
from orbitmq.kernel.layout import PROPERTIES_BYTES_MAX

__all__ = [
    "check_properties",
    "decode_properties",
    "encode_properties",
    "find_property",
    "remove_property",
    "set_properties",
    "set_property",
    "terminated",
]

NAME_END: Final = b"\x01"
PAIR_END: Final = b"\x02"


def decode_properties(raw: bytes) -> dict[str, str]:
    """Returns all pairs. Bytes that are not UTF-8 become U+FFFD, like in Java."""
    properties: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Returns the property text, with a terminator after the last pair like in 5.x. Pairs with an empty value are
    omitted, because no reader would see them.

    Raises ``RecordError`` for a name or value that would be decoded differently, and for a text beyond 32,767 bytes.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name or "\x02" in value:
            raise RecordError(f"property {name!r}: an empty name or a separator (0x01, 0x02) is not allowed")
        if value:
            parts.append(f"{name}\x01{value}\x02")
    raw = _utf8("".join(parts))
    check_properties(raw)
    return raw


def check_properties(raw: bytes) -> None:
    """Raise ``RecordError`` if the text is longer than 32,767 bytes; its length is stored as a signed 16-bit
    number."""
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise RecordError(f"properties have {len(raw)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed")


def terminated(raw: bytes) -> bytes:
    """Returns the same text with a terminator after its last pair, so that pairs can be appended."""
    return raw if not raw or raw.endswith(b"\x02") else raw + PAIR_END


def remove_property(raw: bytes, name: bytes) -> bytes:
    """Returns the text without any pair of that name; the same object if there is none."""
    needle = PAIR_END + name + NAME_END
    at = raw.find(needle)
    if raw.startswith(needle[1:]) or (at >= 0 and raw.find(needle, at + 1) >= 0):
        # At the start, or several times: rare enough to parse the text, which takes linear time for any content.
        start = needle[1:]
        return PAIR_END.join([pair for pair in raw.split(PAIR_END) if not pair.startswith(start)])
    if at < 0:
        return raw
    end = raw.find(b"\x02", at + 1)
    return raw[: at + 1] + raw[end + 1 :] if end >= 0 else raw[: at + 1]


def set_property(raw: bytes, name: bytes, value: bytes) -> bytes:
    """Returns the text with this pair set and moved to the end. An empty value removes the pair."""
    raw = remove_property(raw, name)
    if not value:
        return raw
    if raw and not raw.endswith(b"\x02"):
        raw += PAIR_END
    return b"%b%b\x01%b\x02" % (raw, name, value)


def set_properties(raw: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the text with several pairs set, like ``set_property``."""
    for name, value in pairs:
        raw = set_property(raw, name, value)
    return raw


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Java writes '?' for half a surrogate pair.
        return text.encode("utf-8", "replace")
