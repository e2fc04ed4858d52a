"""The visible parts of bodies."""

from __future__ import annotations

import base64
import time

import msgspec
import pytest

from orbitmq.admin.messages import MessageView
from orbitmq.console.masking import HIDDEN, Masking, hex_dump
from orbitmq.console.settings import Bodies


def message(body: bytes) -> MessageView:
    fields = dict.fromkeys((name for name in MessageView.__struct_fields__ if name != "body_cut"), 0)
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


def masked(body: bytes, *names: str) -> str:
    shown = Masking(Bodies.MASK, names).mask(message(body))
    return shown.body or ""


def test_secrets_are_hidden_at_any_depth() -> None:
    masking = Masking(Bodies.MASK)
    shown = masking.mask(message(b'{"a": [{"Password": "x1", "n": "mail a@b.example"}]}'))
    assert "x1" not in (shown.body or "x1")
    assert "a@b.example" not in (shown.body or "")
    assert shown.properties["token"] != "t"
    assert (shown.properties["size"], shown.body_crc) == ("1", 0)
    assert "hex" not in masking.forms(shown)


def test_property_whose_name_contains_a_masked_one_is_hidden() -> None:
    masking = Masking(Bodies.MASK)
    assert masking.property("X-Api-Token", "s3cret") == HIDDEN
    assert masking.property("trace", "t1") == "t1"


def test_own_names_replace_the_usual_ones() -> None:
    shown = masked(b'{"salary": 9000, "password": "seen"}', "salary")
    assert "9000" not in shown
    assert "seen" in shown


@pytest.mark.parametrize(
    "body",
    [
        '{"password": "s3cret"}\n{"password": "s3cret"}',
        '{"payload": "{\\"password\\": \\"s3cret\\"}"}',
        '{"pass\\u0077ord": "s3cret"}',
        "user=joe&password=s3cret",
        "<password>s3cret</password>",
        'cut off: {"PASSWORD": "s3cret", "a',
        "[" * 5000 + '{"password": "s3cret"}',
        '{"s3cret@mail.example": 1}',
        '{"list": ["from s3cret@mail.example."]}',
        "a@b.c-s3cret@mail.example",
        '{"card": {"holder": "s3cret"}}',
        '{"user_password": "s3cret", "apiToken": "s3cret", "X-Authorization": ["s3cret"]}',
    ],
)
def test_secret_in_text_that_is_not_quite_json_is_hidden(body: str) -> None:
    assert "s3cret" not in masked(body.encode())


@pytest.mark.parametrize("number", ["4111 1111 1111 1111", "4111-1111-1111-1111", "4111111111111111"])
def test_card_numbers_are_hidden(number: str) -> None:
    assert number not in masked(f'{{"n": "paid with {number}."}}'.encode())
    assert number not in masked(f"paid with {number}, thanks".encode())


def test_number_with_the_check_digit_of_a_card_is_hidden_and_a_time_is_not() -> None:
    assert (
        masked(b'{"n": 4111111111111111, "at": 1763300000001}') == f'{{"n": "{HIDDEN}", "at": 1763300000001}}'
    )


def test_text_without_secrets_stays_as_it_is() -> None:
    text = "order 17 of c-3\nsecond line, 12.5 kg @ noon"
    assert masked(text.encode()) == text


def test_half_a_character_in_json_does_not_break_the_page() -> None:
    body = message(b'{"a": "\\ud800"}')
    for bodies in Bodies:
        masking = Masking(bodies)
        forms = masking.forms(masking.mask(body))
        assert all(form.encode() for form in forms.values())


def test_body_that_was_cut_is_not_shown_masked() -> None:
    masking = Masking(Bodies.MASK)
    cut = msgspec.structs.replace(message(b'{"password": "s3c'), body_cut=True)
    assert masking.start(masking.mask(cut)) == "(too long to be masked)"


def test_bytes_are_dumped_and_nothing_is_shown_when_off() -> None:
    assert hex_dump(b"a\x00").startswith("00000000  61 00")
    show, off = Masking(Bodies.SHOW), Masking(Bodies.OFF)
    assert show.text(show.mask(message(b"\xff"))) is None
    assert off.forms(off.mask(message(b"secret"))) == {"text": "(bodies are switched off)"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a@",
        "@a",
        "a.",
        "1",
        "1 ",
        "1-",
        "a@b.",
        "+",
        "-",
        " ",
        "{",
        '"',
        '\\"',
        '{"a":',
        "password",
        "é",
        "\n",
    ],
)
def test_time_to_mask_grows_with_the_length_and_not_with_its_square(piece: str) -> None:
    """Eight times as much text; a quadratic mask takes 64 times as long."""

    def took_s(length: int) -> float:
        body = (piece * (length // len(piece))).encode()
        begin = time.process_time()
        masked(body)
        return time.process_time() - begin

    small = min(took_s(32_000) for _ in range(3))
    large = min(took_s(256_000) for _ in range(2))
    assert large < 24 * small + 0.05, f"{small * 1000:.1f} ms, then {large * 1000:.1f} ms"
