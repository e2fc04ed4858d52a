"""Header compression: examples of RFC 7541, and that no input breaks the decoder."""

from __future__ import annotations

import random

import pytest

from orbitmq.proxy.http2.hpack import HeaderDecoder, HpackError, literal, text


def _decoded(decoder: HeaderDecoder, hex_text: str) -> dict[str, str]:
    return {name: text(field) for name, field in decoder.decode(bytes.fromhex(hex_text)).items()}


def test_requests_with_huffman_codes_of_the_rfc_are_decoded_with_the_table() -> None:
    decoder = HeaderDecoder()
    first = _decoded(decoder, "828684418cf1e3c2e5f23a6ba0ab90f4ff")
    assert first == {":method": "GET", ":scheme": "http", ":path": "/", ":authority": "www.example.com"}
    second = _decoded(decoder, "828684be5886a8eb10649cbf")
    assert second == {**first, "cache-control": "no-cache"}
    third = _decoded(decoder, "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    assert third == {
        ":method": "GET",
        ":scheme": "https",
        ":path": "/index.html",
        ":authority": "www.example.com",
        "custom-key": "custom-value",
    }


def test_response_fields_that_do_not_fit_evict_the_oldest() -> None:
    decoder = HeaderDecoder()
    # A table of 256 bytes (RFC 7541, C.5): set by the first bytes of the block.
    first = _decoded(
        decoder,
        "3fe101" + "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a3231"
        "20474d546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
    )
    assert first[":status"] == "302"
    assert first["location"] == "https://www.example.com"
    second = _decoded(decoder, "4803333037c1c0bf")
    assert second == {**first, ":status": "307"}


def test_literal_is_read_back() -> None:
    for value in ("", "x", "y" * 126, "z" * 127, "ü" * 300):
        fields = HeaderDecoder().decode(literal("grpc-message", value))
        assert text(fields["grpc-message"]) == value


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # a nonexistent entry
        "40",  # ends after the first byte
        "0085",  # a name that is cut
        "00017881ff",  # a value of padding only, eight bits of it
        "3fe21f",  # a table larger than allowed
        "823fe101",  # a table size behind a field
        "ffffffffffff0f",  # a number without an end
    ],
)
def test_broken_block_raises_the_declared_error(block: str) -> None:
    with pytest.raises(HpackError):
        _decoded(HeaderDecoder(), block)


def test_random_blocks_decode_or_raise_the_declared_error() -> None:
    source = random.Random(7)
    for _ in range(5000):
        decoder = HeaderDecoder()
        try:
            for field in decoder.decode(source.randbytes(source.randrange(40))).values():
                text(field)
        except HpackError:
            pass
