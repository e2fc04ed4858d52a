"""Java's string hash and Apache's checksums, computed by ``orbitmq.kernel``."""

from __future__ import annotations

from orbitmq.kernel import body_crc, java_hash_bytes
from orbitmq.kernel.plain.hashes import java_hash as hash_of_any_text

__all__ = ["body_crc", "index_hash", "java_hash", "java_hash_bytes", "tags_code"]


def java_hash(text: str) -> int:
    """Returns ``String.hashCode`` of any text, as a signed 32-bit number."""
    try:
        return java_hash_bytes(text.encode())
    except UnicodeEncodeError:
        return hash_of_any_text(text)  # half a surrogate pair has no UTF-8


def index_hash(key_hash: int) -> int:
    """Returns the key hash as index files store it: its absolute value, or 0 if that overflows in Java."""
    return 0 if key_hash == -0x80000000 else abs(key_hash)


def tags_code(tag: bytes | str | None) -> int:
    """Returns the tag code for a consume queue: the tag's Java hash, or 0 without a tag."""
    if not tag:
        return 0
    return java_hash(tag) if isinstance(tag, str) else java_hash_bytes(tag)
