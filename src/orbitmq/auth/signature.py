"""The signature of a request (Apache: ``AclUtils``, ``DefaultAuthenticationContextBuilder``).

It covers the values of all extension fields except ``Signature``, in the order of their names, and the body; the key
is the user's secret. The signature contains no timestamp, so only TLS prevents the replay of a captured request.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from orbitmq.codes import Version
from orbitmq.model.route import utf16_key

__all__ = [
    "ACCESS_KEY",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "is_signed",
    "sign_fields",
    "signature_of",
    "without_signature",
]

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def _content(fields: Mapping[str, str], body: bytes, *, unique_query_signed: bool = True) -> bytes:
    names = sorted(fields)
    # Java sorts by UTF-16 units, Python by code points: the orders differ only beyond ASCII.
    if not "".join(names).isascii():
        names.sort(key=utf16_key)
    for name in (SIGNATURE,) if unique_query_signed else (SIGNATURE, _UNIQUE_KEY_QUERY):
        if name in fields:
            names.remove(name)
    text = "".join(map(fields.__getitem__, names))
    return text.encode("utf-8", "surrogatepass") + body


def signature_of(fields: Mapping[str, str], body: bytes, secret: str) -> str:
    """Returns the value of ``Signature`` for these fields and this body."""
    return base64.b64encode(hmac.digest(secret.encode(), _content(fields, body), "sha1")).decode()


def is_signed(
    fields: Mapping[str, str], body: bytes, secret: str, *, version: int, always_skip: bool = False
) -> bool:
    """Whether the fields carry the signature made with ``secret``, compared in constant time.

    Clients up to 4.9.3 add ``_UNIQUE_KEY_QUERY`` after signing, so it is left out for them. ``always_skip`` leaves it
    out for all clients, as access lists of 4.x do.
    """
    given = fields.get(SIGNATURE)
    if not given:
        return False
    skip = always_skip or version <= Version.V4_9_3
    content = _content(fields, body, unique_query_signed=not (skip and _UNIQUE_KEY_QUERY in fields))
    expected = base64.b64encode(hmac.digest(secret.encode(), content, "sha1"))
    return hmac.compare_digest(expected, given.encode("utf-8", "replace"))


def sign_fields(
    fields: Mapping[str, str], body: bytes, access_key: str, secret: str, security_token: str = ""
) -> dict[str, str]:
    """Returns the fields with the access key, the security token (if any) and the signature added."""
    signed = {name: value for name, value in fields.items() if name != SIGNATURE}
    signed[ACCESS_KEY] = access_key
    if security_token:
        signed[SECURITY_TOKEN] = security_token
    signed[SIGNATURE] = signature_of(signed, body, secret)
    return signed


def without_signature(fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the fields of a request without its signature and keys, for forwarding it to a client.

    A signature covers neither the request code nor the time, so a client that received an operator's signature could
    send it back as another request of the operator.
    """
    secret = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
    return {name: value for name, value in fields.items() if name not in secret}
