"""The body of REGISTER_BROKER (103) in its three forms, and the topic table it contains.

Corresponds to Apache's RegisterBrokerBody and TopicConfigAndMappingSerializeWrapper.

    plain        JSON of RegisterBrokerBody
    compressed   one zlib stream: length and data version as JSON, number of topics, for each length and text,
                 length and JSON array of filter servers, and from 5.0 on a number of static-topic mappings,
                 for each length and JSON. Every number is an int32. ``order`` and ``topicSysFlag`` are lost.
    old          before 3.0.11: JSON of the topic table alone
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from orbitmq.codes import Version
from orbitmq.errors import BodyError, InvalidParameter
from orbitmq.model.data_version import DataVersion
from orbitmq.model.topic import TopicConfig
from orbitmq.wire import javajson
from orbitmq.wire.bodies.base import Body, always, encode_body

__all__ = ["RegisterBrokerBody", "TopicConfigWrapper", "decode_registration", "encode_registration"]

_INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A registration of 200,000 topics needs 20 MiB; a longer one is a mistake or an attack."""
_LENGTH: Final = struct.Struct(">i")
_LEVEL: Final = 9


class TopicConfigWrapper(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_TOPIC_CONFIG (21), and the content of topics.json. Static topics are kept without parsing
    them."""

    data_version: DataVersion = always(DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = always(dict)
    topic_queue_mapping_detail_map: dict[str, msgspec.Raw] | None = None
    topic_queue_mapping_info_map: dict[str, msgspec.Raw] | None = None


class RegisterBrokerBody(Body, frozen=True, kw_only=True):
    filter_server_list: list[str] = always(list)
    topic_config_serialize_wrapper: TopicConfigWrapper = always(TopicConfigWrapper)


def encode_registration(
    body: RegisterBrokerBody, *, compressed: bool = False, version: int = Version.OURS
) -> bytes:
    """Returns the body in the form that a broker of ``version`` sends."""
    if not compressed:
        return body.encode()
    wrapper = body.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table.values()
    raw = [_sized(encode_body(wrapper.data_version)), _LENGTH.pack(len(topics))]
    raw += (_sized(topic.to_text().encode()) for topic in topics)
    raw.append(_sized(javajson.encode(body.filter_server_list)))
    if version >= Version.V5_0_0:
        mappings = (wrapper.topic_queue_mapping_info_map or {}).values()
        raw.append(_LENGTH.pack(len(mappings)))
        raw += (_sized(bytes(mapping)) for mapping in mappings)
    return zlib.compress(b"".join(raw), _LEVEL)


def _sized(part: bytes) -> bytes:
    return _LENGTH.pack(len(part)) + part


def decode_registration(data: bytes, *, compressed: bool, version: int) -> RegisterBrokerBody:
    """Decode the body sent by a broker of ``version``. An empty body means an empty table. Raises ``BodyError``."""
    if not data:
        return RegisterBrokerBody()
    if version < Version.V3_0_11:
        return RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigWrapper.decode(data))
    if not compressed:
        return RegisterBrokerBody.decode(data)
    return _decode_compressed(_inflate(data), has_mappings=version >= Version.V5_0_0)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, _INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(f"registration cannot be inflated: {error}") from None
    if inflater.unconsumed_tail:
        raise BodyError(f"registration is longer than {_INFLATED_BYTES_MAX} bytes")
    if not inflater.eof:
        raise BodyError("registration ends inside its zlib stream")
    return raw


def _decode_compressed(raw: bytes, *, has_mappings: bool) -> RegisterBrokerBody:
    reader = _Reader(raw)
    data_version = javajson.decode(reader.part(), DataVersion)
    topics: dict[str, TopicConfig] = {}
    for _ in range(reader.number()):
        try:
            topic = TopicConfig.from_text(reader.part().decode())
        except (InvalidParameter, UnicodeDecodeError) as error:
            raise BodyError(f"registration has a broken topic: {error}") from None
        topics[topic.topic_name] = topic
    filter_servers = javajson.decode(reader.part(), list[str])
    mappings: dict[str, msgspec.Raw] = {}
    if has_mappings:
        for _ in range(reader.number()):
            text = javajson.standardize(reader.part())
            mappings[javajson.decode(text, _MappingName).topic] = msgspec.Raw(text)
    return RegisterBrokerBody(
        filter_server_list=filter_servers,
        topic_config_serialize_wrapper=TopicConfigWrapper(
            data_version=data_version,
            topic_config_table=topics,
            topic_queue_mapping_info_map=mappings if has_mappings else None,
        ),
    )


class _MappingName(msgspec.Struct):
    topic: str


class _Reader:
    """Reads lengths and parts of an inflated registration. Each length is checked against the remaining bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    def number(self) -> int:
        """Returns a count or a length, which is at most the number of remaining bytes."""
        end = self._position + _LENGTH.size
        if end > len(self._raw):
            raise BodyError("registration ends inside a number")
        (value,) = _LENGTH.unpack_from(self._raw, self._position)
        if not 0 <= value <= len(self._raw) - end:
            raise BodyError(f"registration has a length of {value} with {len(self._raw) - end} bytes left")
        self._position = end
        return int(value)

    def part(self) -> bytes:
        size = self.number()
        start = self._position
        self._position = start + size
        return self._raw[start : self._position]
