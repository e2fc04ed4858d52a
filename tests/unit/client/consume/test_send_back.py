"""The fields of a message that is sent back."""

from __future__ import annotations

import pytest

from orbitmq.client.consume.send_back import _encode_with_reason
from orbitmq.errors import RecordError
from orbitmq.record.properties import decode_properties


def test_reason_goes_along_without_separators_and_at_bounded_length() -> None:
    pairs = decode_properties(_encode_with_reason({"a": "b"}, "no\x01such\x02field" + "x" * 10_000))
    assert pairs["a"] == "b"
    assert pairs["RETRY_REASON"].startswith("no such field")
    assert len(pairs["RETRY_REASON"]) == 1_024


def test_reason_is_cut_between_characters() -> None:
    text = decode_properties(_encode_with_reason({}, "x" + "\u20ac" * 1_000))["RETRY_REASON"]
    assert text == "x" + "\u20ac" * 341


def test_reason_of_an_earlier_attempt_is_replaced() -> None:
    assert decode_properties(_encode_with_reason({"RETRY_REASON": "old"}, "new")) == {"RETRY_REASON": "new"}
    assert decode_properties(_encode_with_reason({"RETRY_REASON": "old"}, "")) == {}


def test_reason_is_left_out_where_properties_would_be_too_long() -> None:
    full = {"a": "b" * 32_500}
    assert decode_properties(_encode_with_reason(full, "x" * 500)) == full
    with pytest.raises(RecordError):
        _encode_with_reason({"a": "b" * 40_000}, "x")
