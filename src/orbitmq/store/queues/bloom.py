"""The Bloom filter behind the bitmaps of a queue extension (Apache: BloomFilter, BitsArray).

Each SQL subscription of a topic owns a few bits. Dispatching a message sets the bits of every subscription that
matches it; a pull skips a message whose bits are not all set, without reading it. A false positive only costs a read.
Positions are persisted in ``consumerFilter.json`` and must equal Apache's, hence murmur3 as its library computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["BloomFilter", "murmur3_64"]

_MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def murmur3_64(data: bytes) -> int:
    """Returns the first 64 bits of MurmurHash3 x64 128 with seed 0, unsigned."""
    h1 = h2 = 0
    blocks_end = len(data) - len(data) % 16
    for at in range(0, blocks_end, 16):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + 16], "little")
        h1 = (((_rotate(h1 ^ _mix_1(k1), 27) + h2) & _MASK_64) * 5 + 0x52DCE729) & _MASK_64
        h2 = (((_rotate(h2 ^ _mix_2(k2), 31) + h1) & _MASK_64) * 5 + 0x38495AB5) & _MASK_64
    tail = data[blocks_end:]
    h2 ^= _mix_2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix_1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK_64
    h2 = (h2 + h1) & _MASK_64
    return (_finish(h1) + _finish(h2)) & _MASK_64


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK_64


def _mix_1(k: int) -> int:
    return _rotate((k * _C1) & _MASK_64, 31) * _C2 & _MASK_64


def _mix_2(k: int) -> int:
    return _rotate((k * _C2) & _MASK_64, 33) * _C1 & _MASK_64


def _finish(k: int) -> int:
    k = ((k ^ (k >> 33)) * 0xFF51AFD7ED558CCD) & _MASK_64
    k = ((k ^ (k >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK_64
    return k ^ (k >> 33)


def _int32(value: int) -> int:
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """The dimensions of a filter: the number of bits that a name sets, and the number of bits in total."""

    hash_count: int
    bit_count: int

    @classmethod
    def sized(cls, error_percent: int = 20, name_count: int = 32) -> BloomFilter:
        """Returns a filter for ``name_count`` names (``expectConsumerNumUseFilter``) with a false positive rate of at
        most ``error_percent`` (``maxErrorRateOfBloomFilter``)."""
        if not 1 <= error_percent < 100 or name_count < 1:
            raise ValueError(f"bloom filter of {name_count} names at {error_percent} % cannot be built")
        rate = error_percent / 100
        hash_count = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(name_count * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        return cls(hash_count, 8 * math.ceil(bits / 8))

    @property
    def byte_count(self) -> int:
        return self.bit_count // 8

    def positions(self, name: str) -> list[int]:
        """Returns the positions of the bits of ``name`` (Apache uses ``group#topic``). They are derived from two
        hashes, by the method of Kirsch and Mitzenmacher."""
        hashed = murmur3_64(name.encode())
        low, high = _int32(hashed), _int32(hashed >> 32)
        bits: list[int] = []
        for i in range(1, self.hash_count + 1):
            combined = _int32(low + _int32(i * high))
            bits.append((combined if combined >= 0 else ~combined) % self.bit_count)
        return bits

    def mark(self, bitmap: bytearray, positions: list[int]) -> None:
        """Set the bits at ``positions``."""
        for bit in positions:
            bitmap[bit >> 3] |= 1 << (bit & 7)

    def hits(self, bitmap: bytes, positions: list[int]) -> bool:
        """Whether all bits at ``positions`` are set. A bitmap of another size counts as a hit, because it proves
        nothing."""
        if len(bitmap) != self.byte_count:
            return True
        return all(bitmap[bit >> 3] & (1 << (bit & 7)) for bit in positions)
