"""Signatures: vectors accepted by real brokers, and every kind of invalid signature."""

from __future__ import annotations

import pytest

from orbitmq.auth.signature import is_signed, sign_fields, signature_of
from orbitmq.codes import Version

VECTORS = [
    (
        {"topic": "T1", "queueId": "0", "AccessKey": "rootuser"},
        b"x",
        "root-secret-1",
        "nqCjbhaWYXQ3fyY0FuJ9ZqrmoSM=",
    ),
    (
        {
            "topic": "主题",
            "b": "2",
            "B": "1",
            "_UNIQUE_KEY_QUERY": "true",
            "AccessKey": "user-a",
            "SecurityToken": "tok",
        },
        b"",
        "密钥-1",
        "iFFgh+SWshvE41pjrarQbCndoEA=",
    ),
]


@pytest.mark.parametrize(("fields", "body", "secret", "signature"), VECTORS)
def test_signature_is_what_real_brokers_accept(
    fields: dict[str, str], body: bytes, secret: str, signature: str
) -> None:
    assert signature_of(fields, body, secret) == signature
    signed = fields | {"Signature": signature}
    assert is_signed(signed, body, secret, version=Version.OURS)
    assert not is_signed(signed, body + b"!", secret, version=Version.OURS)
    assert not is_signed(signed, body, secret + "!", version=Version.OURS)
    assert not is_signed(signed | {"added": "1"}, body, secret, version=Version.OURS)
    assert not is_signed(fields, body, secret, version=Version.OURS)
    assert not is_signed(fields | {"Signature": ""}, body, secret, version=Version.OURS)
    assert not is_signed(fields | {"Signature": "ä"}, body, secret, version=Version.OURS)


def test_field_added_by_old_clients_after_signing_is_left_out_for_them_only() -> None:
    signed = sign_fields({"topic": "T"}, b"", "user", "secret") | {"_UNIQUE_KEY_QUERY": "true"}
    assert is_signed(signed, b"", "secret", version=Version.V4_9_3)
    assert not is_signed(signed, b"", "secret", version=435)
    assert is_signed(signed, b"", "secret", version=435, always_skip=True)


def test_names_beyond_the_basic_plane_are_ordered_as_java_orders_them() -> None:
    fields = {"\uffff": "1", "\U0001f600": "2"}
    assert signature_of(fields, b"", "k") == signature_of({"a": "2", "b": "1"}, b"", "k")
