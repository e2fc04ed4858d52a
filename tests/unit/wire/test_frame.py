"""The decoder's error for a peer that speaks another protocol."""

from __future__ import annotations

import pytest

from orbitmq.wire.frame import FrameDecoder


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "; the peer speaks HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "; the peer speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "; the peer speaks TLS"),
    ],
)
def test_frame_of_another_protocol_is_refused_by_its_name(sent: bytes, words: str) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(sent) == []
    assert str(decoder.error).endswith(words)


def test_malformed_frame_is_refused_without_a_protocol() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\x7f\xff\xff\xff\x00\x00\x00\x00")
    assert "speaks" not in str(decoder.error)
