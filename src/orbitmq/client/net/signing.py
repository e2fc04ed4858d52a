"""Signs requests to brokers with access lists (Apache: ``AclClientRPCHook``, ``AclUtils``)."""

from __future__ import annotations

import base64
import hashlib
import hmac

from orbitmq.client.options import Credentials
from orbitmq.model.route import utf16_key

__all__ = ["sign"]


def sign(fields: dict[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """Returns the fields with access key and signature added. The signature covers the values of all fields, in the
    order of their names, and then the body."""
    signed = dict(fields)
    signed["AccessKey"] = credentials.access_key
    if credentials.security_token:
        signed["SecurityToken"] = credentials.security_token
    signed.pop("Signature", None)
    content = "".join(signed[name] for name in sorted(signed, key=utf16_key)).encode() + body
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    signed["Signature"] = base64.b64encode(digest).decode()
    return signed
