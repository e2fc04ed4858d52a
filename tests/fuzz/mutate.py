"""Damage to recorded inputs. Everything is decided by the generator given: the same seed, the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INTERESTING_BYTES = bytes([0, 1, 2, 9, 10, 34, 44, 48, 57, 58, 91, 92, 93, 123, 125, 127, 128, 192, 237, 255])
INTERESTING_INTS = (-(2**31), -1, 0, 1, 2, 4, 21, 22, 127, 128, 255, 32767, 32768, 65535, 2**24, 2**31 - 1)
TOKENS = (
    b"null",
    b"true",
    b"0",
    b"-1",
    b"1e999",
    b"9223372036854775808",
    b'""',
    b'"\\ud800"',
    b"{}",
    b"[]",
    b"{0:1}",
    b'{{"a":1}:2}',
    b"[" * 2000,
    b'{"a":' * 2000,
    b"\xff",
    b"\xf0\x9f\x98\x80",
)


def _position(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _slice(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = _position(rng, data)
    return start, min(len(data), start + rng.choice((1, 1, 2, 4, 8, 32, 200)))


def _flip(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _set_byte(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.choice(INTERESTING_BYTES)]) + data[at + 1 :]


def _set_int(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = _position(rng, data)
    size = rng.choice((1, 2, 4, 4, 8))
    value = rng.choice(INTERESTING_INTS) & ((1 << 8 * size) - 1)
    return data[:at] + value.to_bytes(size, "big") + data[at + size :]


def _cut(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data[: _position(rng, data)]


def _drop(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _slice(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _slice(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _token(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _slice(rng, data)
    return data[:start] + rng.choice(TOKENS) + (data[end:] if rng.random() < 0.5 else data[start:])


def _value(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Another JSON value behind some colon: keeps the text well formed more often than the others do."""
    colons = [at for at, byte in enumerate(data) if byte == 0x3A]
    if not colons:
        return data
    start = rng.choice(colons) + 1
    ends = [at for at in (data.find(b",", start), data.find(b"}", start)) if at >= 0]
    return data[:start] + rng.choice(TOKENS) + data[min(ends, default=len(data)) :]


def _splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: _position(rng, data)] + other[_position(rng, other) :]


def _random_bytes(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = _position(rng, data)
    return data[:at] + rng.randbytes(rng.choice((1, 3, 16, 100))) + data[at:]


_MUTATIONS: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip,
    _flip,
    _set_byte,
    _set_int,
    _set_int,
    _cut,
    _drop,
    _repeat,
    _token,
    _value,
    _value,
    _splice,
    _random_bytes,
)
BYTES_MAX = 200_000
"""Repeated repetition grows quickly; longer inputs only make the run slower."""


def mutate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """``data`` with one to four faults; one time in twenty with none, to keep the good path honest."""
    if rng.random() < 0.05:
        return data
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        data = rng.choice(_MUTATIONS)(rng, data, corpus)[:BYTES_MAX]
    return data
