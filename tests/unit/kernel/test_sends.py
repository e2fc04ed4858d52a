"""Plain sends as one value of the kernel: each case on both kernels, any input with equal results."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.apache.kernels import Kernel
from tests.fuzz.send_pairs import compare_reads, compare_turns
from tests.unit.kernel.test_frames import ADDED, FIELDS, FORMS, LONG
from tests.unit.kernel.test_records import PROPERTIES, V4, V6, message

from orbitmq.codes import SerializeType
from orbitmq.errors import RecordError
from orbitmq.record.batch import encode_batch
from orbitmq.wire.frame import FRAME_BYTES_MAX, encode_oneway, encode_request, encode_response

BODY_MAX = 4 << 20
SIZES = (1, 5, 128, 1024, 16_384)
KEYS = ("k", "7F0000014676C0DEE0B0000000000001", "FD00" * 14, "k\u00e9y")


def request(
    opaque: int = 1,
    code: int = 310,
    form: SerializeType = SerializeType.JSON,
    body: bytes = b"body",
    **fields: str,
) -> bytes:
    names = LONG if code == 10 else FIELDS
    short = {FIELDS_LONG[key] if code == 10 else key: value for key, value in fields.items()}
    return encode_request(code, opaque, names | short, body, form)


FIELDS_LONG = dict(zip("abcdefghijklm", LONG, strict=True))


def split(kernel: Kernel, data: bytes, sends_max: int = 64) -> list[Any]:
    found, end, _, error = kernel.split_requests(data, FRAME_BYTES_MAX, sends_max)
    assert (end, error) == (len(data), "")
    return list(found)


def sends(kernel: Kernel, data: bytes) -> Any:
    """Returns the only value of a read, stamped."""
    (found,) = split(kernel, data)
    assert isinstance(found, kernel.Sends)
    assert found.stamp(V4, ADDED, BODY_MAX)
    return found


def made(kernel: Kernel, wanted: tuple[Any, ...], *, is_batch: bool = False, opaque: int = 1) -> Any:
    return kernel.sends_of(wanted, is_batch, (0, opaque, 0), True, wanted[1], b"key", "")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", [10, 310, 320])
def test_consecutive_sends_are_one_value_with_the_frames_of_the_read(
    kernel: Kernel, code: int, form: SerializeType
) -> None:
    body = encode_batch([(0, b"x", PROPERTIES)])
    data = b"".join(request(opaque, code, form, body, e=str(opaque % 2)) for opaque in range(5))
    found = sends(kernel, data)
    assert found.frames() == kernel.split_frames(data, FRAME_BYTES_MAX)[0]
    assert (len(found), found.code, found.flag, found.pull) == (5, code, 0, None)
    assert found.queues == [("topic", 0), ("topic", 1)]
    assert found.requests() == [(form, opaque, 0) for opaque in range(5)]
    assert found.size_bytes == 5 * len(body)
    assert found.body_bytes_max == (1 if code == 320 else len(body))
    assert (found.is_batch, found.waits) == (code == 320, True)
    assert (found.has_key(b"FD0000"), found.has_key(b"FD000")) == (True, False)


def test_other_requests_stay_frames_in_their_place(kernel: Kernel) -> None:
    other = encode_request(34, 9, {}, b"heartbeat")
    answer = encode_response(0, 9, FIELDS, b"body")
    data = b"".join((request(1), request(2), other, request(3), answer, request(4)))
    found = split(kernel, data)
    assert [len(each) if isinstance(each, kernel.Sends) else each.code for each in found] == [2, 34, 1, 0, 1]
    assert [len(each) for each in split(kernel, request() * 7, 3)] == [3, 3, 1]
    assert split(kernel, request() * 2, 0) == kernel.split_frames(request() * 2, FRAME_BYTES_MAX)[0]


def test_sends_before_an_incomplete_or_malformed_frame_are_returned(kernel: Kernel) -> None:
    whole = request(1) + request(2)
    found, end, needed, error = kernel.split_requests(whole + request(3)[:50], FRAME_BYTES_MAX, 64)
    assert ([len(each) for each in found], end, needed, error) == ([2], len(whole), len(request(3)), "")
    found, end, needed, error = kernel.split_requests(whole + b"\0\0\0\1", FRAME_BYTES_MAX, 64)
    assert ([len(each) for each in found], end, needed) == ([2], len(whole), 0)
    assert "outside" in error


MORE = {
    "no body": {"body": b""},
    "any queue": {"e": "-1"},
    "a retry topic": {"b": "%RETRY%group"},
    "no unique key": {"i": "TAGS\x01a\x02"},
    "a delay": {"i": "UNIQ_KEY\x01k\x02DELAY\x013\x02"},
    "a timer": {"i": "UNIQ_KEY\x01k\x02TIMER_DELIVER_MS\x0199\x02"},
    "a transaction": {"i": "UNIQ_KEY\x01k\x02TRAN_MSG\x01true\x02"},
    "a transaction's bit": {"f": "4"},
    "an idempotent send": {"i": "UNIQ_KEY\x01k\x02ORBITMQ_IDEMPOTENT\x01true\x02"},
    "a priority": {"i": "UNIQ_KEY\x01k\x02_SYS_MSG_PRIORITY_\x013\x02"},
    "a property that the broker sets": {"i": "UNIQ_KEY\x01k\x02CLUSTER\x01mine\x02"},
    "a property that is removed": {"i": "UNIQ_KEY\x01k\x02POP_CK\x01x\x02"},
    "a name twice": {"i": "UNIQ_KEY\x01k\x02a\x01b\x02a\x01c\x02"},
    "an empty value": {"i": "UNIQ_KEY\x01k\x02a\x01\x02"},
    "a malformed number": {"h": "x"},
    "no topic": {"b": ""},
    "properties too long": {"i": "UNIQ_KEY\x01" + "k" * 32_767 + "\x02"},
}


@pytest.mark.parametrize("fields", MORE.values(), ids=MORE.keys())
def test_a_send_that_asks_for_more_is_a_frame(kernel: Kernel, fields: dict[str, Any]) -> None:
    for form in FORMS:
        found = split(kernel, request(form=form) + request(**{"form": form, **fields}) + request(form=form))
        assert [isinstance(each, kernel.Sends) for each in found] == [True, False, True]


@pytest.mark.parametrize("shape", ["cut", "empty", "with a delay", "idempotent", "a long topic"])
def test_a_batch_that_is_refused_is_a_frame(kernel: Kernel, shape: str) -> None:
    body = encode_batch([(0, b"one", PROPERTIES)])
    shapes: dict[str, dict[str, Any]] = {
        "cut": {"body": body[:-1]},
        "empty": {"body": b""},
        "with a delay": {"body": body, "i": "DELAY\x013\x02"},
        "idempotent": {"body": body, "i": "ORBITMQ_IDEMPOTENT\x01true\x02"},
        "a long topic": {"body": body, "b": "t" * 128},
    }
    fields: dict[str, Any]
    for fields in ({"code": 320}, {"m": "true"}):
        (found,) = split(kernel, request(**shapes[shape], **fields))
        assert not isinstance(found, kernel.Sends)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("end", ["\x02", ""], ids=["terminated", "as of 4.9"])
def test_records_are_those_of_the_messages(
    kernel: Kernel, form: SerializeType, code: int, key: str, end: str
) -> None:
    """Messages of any size, key and properties, from both kinds of hosts, into several queues."""
    reads, messages = [], []
    for number, size in enumerate(SIZES):
        properties = f"KEYS\x01a b{number}\x02UNIQ_KEY\x01{key}\x02TAGS\x01{'t' * number or 'x'}" + end
        body = bytes([65 + number]) * size
        asked = {
            "e": str(number % 3),
            "f": "1",
            "g": str(1000 + number),
            "h": str(number),
            "j": "2",
            "i": properties,
        }
        reads.append(request(number, code, form, body, **asked))
        stored = kernel.stored_properties(properties.encode(), ADDED)[0]
        messages.append(
            (
                "topic" if code != 10 else LONG["topic"],
                number % 3,
                body,
                stored,
                1000 + number,
                V6,
                number,
                1,
                2,
                0,
            )
        )
    found = sends(kernel, b"".join(reads))
    assert found.stamp(V6, ADDED, BODY_MAX)
    assert list(map(tuple, found.messages())) == messages
    slots = [number % 3 for number in range(len(SIZES))]
    expected = kernel.encode_records(messages, slots, [7, 8, 9], 4096, 5, V4, 2)
    records, units, keys, counts = kernel.encode_sends([found], [7, 8, 9], 4096, 5, V4, 2)
    assert (records, units, keys) == (expected[0], expected[3], expected[4])
    assert sum(size for _, size, _ in counts) == len(records)
    assert [(count, times) for count, _, times in counts] == [(2, 2), (2, 2), (1, 1)]


def test_batches_and_single_messages_of_many_senders_are_numbered_in_their_order(kernel: Kernel) -> None:
    entries = [(n, b"b%d" % n, PROPERTIES[: 20 * (n % 3)]) for n in range(3)]
    batch = message(body=encode_batch(entries), properties=b"", flag=0)
    flat = [
        message(),
        *(message(body=body, properties=text, flag=flag) for flag, body, text in entries),
        message(topic="other"),
        message(),
    ]
    expected = kernel.encode_records(flat, [0, 0, 0, 0, 1, 0], [7, 9], 64, 5, V4, 2)
    turn = [
        made(kernel, flat[0], opaque=1),
        made(kernel, batch, is_batch=True, opaque=2),
        made(kernel, flat[4], opaque=3),
        made(kernel, flat[5], opaque=4),
    ]
    assert kernel.queues_of_sends(turn) == [("orders", 3), ("other", 3)]
    records, units, keys, counts = kernel.encode_sends(turn, [7, 9], 64, 5, V4, 2)
    assert (records, units, keys) == (expected[0], expected[3], expected[4])
    assert [(count, times) for count, _, times in counts] == [(5, 3), (1, 1)]
    answers = kernel.split_frames(kernel.encode_send_answers(turn, 0, None, V4, "r", True), FRAME_BYTES_MAX)[
        0
    ]
    ids = [f"{V4.hex().upper()}{offset:016X}" for offset in expected[1]]
    assert [(each.opaque, each.ext_fields["msgId"], each.ext_fields["queueOffset"]) for each in answers] == [
        (1, ids[0], "7"),
        (2, ",".join(ids[1:4]), "8"),
        (3, ids[4], "9"),
        (4, ids[5], "11"),
    ]


def test_batch_takes_properties_and_flag_from_its_entries_alone(kernel: Kernel) -> None:
    body = encode_batch([(7, b"one", PROPERTIES)])
    expected = kernel.encode_sends([made(kernel, message(body=body), is_batch=True)], [0], 0, 5, V4, 2)
    bare = made(kernel, message(body=body, properties=None, flag=1 << 40), is_batch=True)
    assert kernel.encode_sends([bare], [0], 0, 5, V4, 2) == expected


@pytest.mark.parametrize("cut", [0, 1, 19, 25, 60])
def test_batch_body_that_is_cut_is_refused(kernel: Kernel, cut: int) -> None:
    body = encode_batch([(0, b"one", PROPERTIES), (0, b"two", b"")])
    found = made(kernel, message(body=body[:cut]), is_batch=True)
    assert found.body_bytes_max == 0
    for call in (found.messages, lambda: kernel.encode_sends([found], [0], 0, 5, V4, 2)):
        with pytest.raises(RecordError, match="batch"):
            call()


@pytest.mark.parametrize("offsets", [[], [0, 0], [1 << 63], ["0"]])
def test_turn_without_an_offset_for_each_queue_is_refused(kernel: Kernel, offsets: list[Any]) -> None:
    with pytest.raises(RecordError):
        kernel.encode_sends([made(kernel, message())], offsets, 0, 5, V4, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": None},
        {"topic": ""},
        {"topic": "\ud800"},
        {"queue_id": 1 << 31},
        {"sys_flag": "0"},
        {"properties": None},
    ],
    ids=repr,
)
def test_message_with_a_field_that_no_record_has_is_refused(kernel: Kernel, changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        kernel.sends_of(message(**changes), False, (0, 1, 0), True, 3, b"", "")


def test_too_large_messages_are_seen_when_stamped(kernel: Kernel) -> None:
    (found,) = split(kernel, request(body=b"x" * 300) + request())
    assert found.stamp(V4, ADDED, 300)
    assert not found.stamp(V4, ADDED, 299)
    room = 32_767 - len("UNIQ_KEY\x01\x02") - len(ADDED)
    for extra in (0, 1):
        for end in ("\x02", ""):
            (found,) = split(kernel, request(i=f"UNIQ_KEY\x01{'k' * (room + extra)}{end}"))
            assert found.stamp(V4, ADDED, BODY_MAX) is (extra == 0)
    (batch,) = split(kernel, request(code=320, body=encode_batch([(0, b"x" * 9, b""), (0, b"y" * 9, b"")])))
    assert (batch.stamp(V4, ADDED, 18), batch.stamp(V4, ADDED, 17)) == (True, False)


def test_part_is_encoded_on_its_own(kernel: Kernel) -> None:
    found = sends(kernel, b"".join(request(n, e=str(n % 3), b=f"t{n % 2}") for n in range(6)))
    part = found.part(2, 4)
    assert part.queues == [("t0", 2), ("t1", 0)]
    assert part.messages() == found.messages()[2:4]
    kernel.encode_sends([found], [0] * 6, 0, 5, V4, 2)
    with pytest.raises(ValueError, match="not stored"):
        kernel.encode_send_answers([part], 0, None, V4, "r", True)
    with pytest.raises(IndexError):
        found.part(2, 7)


def test_a_send_stored_elsewhere_is_answered_with_its_place(kernel: Kernel) -> None:
    batch = made(kernel, message(body=encode_batch([(0, b"a", b""), (0, b"b", b"")])), is_batch=True)
    batch.stored_at([16, 64], 5)
    (answer,) = kernel.split_frames(
        kernel.encode_send_answers([batch], 0, None, V4, "r", True), FRAME_BYTES_MAX
    )[0]
    assert answer.ext_fields["msgId"].count(",") == 1
    assert answer.ext_fields["queueOffset"] == "5"
    with pytest.raises(ValueError, match="one send"):
        sends(kernel, request() * 2).stored_at([1], 0)


@pytest.mark.parametrize("form", FORMS)
def test_answers_to_waiting_senders_are_apart_and_oneway_gets_none(
    kernel: Kernel, form: SerializeType
) -> None:
    hasty = "UNIQ_KEY\x01k\x02WAIT\x01false\x02"
    oneway = encode_oneway(310, 3, FIELDS, b"body", form)
    found = sends(kernel, request(1, form=form) + request(2, form=form, i=hasty) + oneway)
    kernel.encode_sends([found], [0], 0, 5, V4, 0)

    def opaques(waiting: bool | None, code: int = 0) -> list[int]:
        data = kernel.encode_send_answers([found], code, waiting, V4, "r", True)
        frames = kernel.split_frames(data, FRAME_BYTES_MAX)[0]
        assert all(frame.code == code for frame in frames)
        return [frame.opaque for frame in frames]

    assert (opaques(None), opaques(True, 10), opaques(False)) == ([1, 2], [1], [2])
    assert found.waits
    assert not found.part(1, 3).waits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("key", "handle"),
    [
        (b"K" * 32, ""),
        (b"F" * 56, "aGFuZGxl"),
        (b'"\\\n\x01\x7f/', ""),
        (b"\xff\xe9k", ""),
        (b"", ""),
    ],
)
def test_answer_to_a_send_says_where_it_is(
    kernel: Kernel, form: SerializeType, key: bytes, handle: str
) -> None:
    found = kernel.sends_of(message(), False, (int(form), 5, 0), True, 3, key, handle)
    kernel.encode_sends([found], [99], 4096, 5, V4, 0)
    data = kernel.encode_send_answers([found], 10, None, V4, 'Re"gion', False)
    (answer,) = kernel.split_frames(data, FRAME_BYTES_MAX)[0]
    assert (answer.code, answer.opaque, answer.is_response) == (10, 5, True)
    expected = {
        "msgId": f"{V4.hex().upper()}{4096:016X}",
        "queueId": "3",
        "queueOffset": "99",
        "transactionId": key.decode("utf-8", "replace"),
        "TRACE_ON": "false",
        "MSG_REGION": 'Re"gion',
        "recallHandle": handle,
    }
    assert {name: value for name, value in answer.ext_fields.items() if value} == {
        name: value for name, value in expected.items() if value
    }
    fields = kernel.read_send_answer(form, answer.ext_raw)
    assert (fields.queue_id, fields.queue_offset, fields.message_id) == (3, 99, expected["msgId"])
    assert (fields.region, fields.traced, fields.recall_handle) == ('Re"gion', False, handle or None)


def test_damaged_reads_and_turns_are_treated_alike_by_both_kernels() -> None:
    for seed in range(1_000):
        compare_reads(random.Random(seed))
    results = [compare_turns(random.Random(seed)) for seed in range(1_000)]
    assert sum(isinstance(result, tuple) for result in results) > 300, "too many were refused"
    assert any(isinstance(result, type) for result in results)


@pytest.mark.soak
def test_100_000_damaged_reads_and_turns_are_treated_alike_by_both_kernels() -> None:
    for seed in range(1_000_000, 1_100_000):
        compare_reads(random.Random(seed))
        compare_turns(random.Random(seed))
