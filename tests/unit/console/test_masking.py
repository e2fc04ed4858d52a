"""What is shown of bodies."""

from __future__ import annotations

import base64

import msgspec

from orbitmq.admin.messages import MessageView
from orbitmq.console.masking import Masking, hex_dump
from orbitmq.console.settings import Bodies


def message(body: bytes) -> MessageView:
    fields = dict.fromkeys(MessageView.__struct_fields__, 0)
    texts = dict.fromkeys(
        ("message_id", "offset_msg_id", "broker_name", "topic", "tags", "keys", "born_host", "store_host"), ""
    )
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    made = fields | texts | {"properties": {"token": "t", "size": "1"}, "body": text}
    renamed = {msgspec.structs.fields(MessageView)[i].encode_name: made[n] for i, n in enumerate(fields)}
    renamed["bodyBase64"] = base64.b64encode(body).decode()
    return msgspec.convert(renamed, MessageView)


def test_secrets_are_hidden_at_any_depth() -> None:
    masking = Masking(Bodies.MASK)
    shown = masking.text(message(b'{"a": [{"Password": "x1", "n": "mail a@b.example"}]}'))
    assert shown is not None
    assert "x1" not in shown
    assert "a@b.example" not in shown
    assert masking.properties(message(b""))["token"] != "t"
    assert "hex" not in masking.forms(message(b"x"))


def test_own_names_replace_the_usual_ones() -> None:
    masking = Masking(Bodies.MASK, ("salary",))
    shown = masking.text(message(b'{"salary": 9000, "password": "seen"}')) or ""
    assert "9000" not in shown
    assert "seen" in shown


def test_bytes_are_dumped_and_nothing_is_shown_when_off() -> None:
    assert hex_dump(b"a\x00").startswith("00000000  61 00")
    assert Masking(Bodies.SHOW).text(message(b"\xff")) is None
    assert Masking(Bodies.OFF).forms(message(b"secret")) == {"text": "(bodies are switched off)"}
