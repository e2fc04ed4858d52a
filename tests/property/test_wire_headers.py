"""Every typed header, whatever its values, in both serializations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from tests.unit.wire.declared import REQUEST_HEADERS, RESPONSE_HEADERS

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request
from orbitmq.wire.header import Header, decode_header, encode_ext

ALL_HEADERS = sorted({*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda cls: cls.__name__)
# The binary form cannot carry an empty text: it reads back as absent.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def values_of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.UnionType(types=types):
            return st.one_of([values_of(member) for member in types])
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType():
            return TEXT
        case inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
    raise AssertionError(f"no values for {info}")


def headers_of(cls: type[Header]) -> st.SearchStrategy[Header]:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return st.builds(cls, **{field.name: values_of(field.type) for field in info.fields})


HEADERS = st.sampled_from(ALL_HEADERS).flatmap(headers_of)
FIELD_NAMES = sorted({name for cls in ALL_HEADERS for name in cls.__struct_encode_fields__})


@pytest.mark.parametrize("serialize_type", list(SerializeType))
@given(data=st.data())
@settings(max_examples=300)
def test_header_reads_back(serialize_type: SerializeType, data: st.DataObject) -> None:
    header = data.draw(HEADERS)
    raw = encode_request(10, 7, encode_ext(header), b"body", serialize_type)
    (frame,) = FrameDecoder().feed(raw)
    assert frame.serialize_type == serialize_type
    assert decode_header(type(header), frame) == header


@pytest.mark.parametrize("serialize_type", list(SerializeType))
@given(
    cls=st.sampled_from(ALL_HEADERS),
    fields=st.dictionaries(st.sampled_from(FIELD_NAMES) | TEXT, TEXT | st.integers().map(str), max_size=25),
)
@settings(max_examples=300)
def test_any_fields_are_read_or_refused(
    serialize_type: SerializeType, cls: type[Header], fields: dict[str, str]
) -> None:
    (frame,) = FrameDecoder().feed(encode_request(10, 7, fields, serialize_type=serialize_type))
    try:
        header = decode_header(cls, frame)
    except HeaderFieldError:
        return
    # What is taken means what was sent: texts are the same, and only known names are kept.
    for name, value in encode_ext(header).items():
        if isinstance(_attribute(header, name), str):
            assert value == fields[name]


def _attribute(header: Header, wire_name: str) -> Any:
    names = dict(zip(header.__struct_encode_fields__, header.__struct_fields__, strict=True))
    return getattr(header, names[wire_name])


@pytest.mark.parametrize("serialize_type", list(SerializeType))
@given(cls=st.sampled_from(ALL_HEADERS), raw=st.binary(max_size=80))
@settings(max_examples=300)
def test_any_region_is_read_or_refused(serialize_type: SerializeType, cls: type[Header], raw: bytes) -> None:
    try:
        decode_header(cls, Frame(1, 1, serialize_type=serialize_type, ext_raw=raw))
    except HeaderFieldError:
        return


def test_every_header_field_has_a_type_with_bounds() -> None:
    for cls in ALL_HEADERS:
        for field in msgspec.structs.fields(cls):
            assert field.encode_name
        headers_of(cls)
