"""Decodes Avro, Protobuf and JSON bodies into columns, with schemas from files or a schema registry."""

from orbitmq.spark.decoding.columns import decode
from orbitmq.spark.decoding.registry import RegistryAccess

__all__ = ["RegistryAccess", "decode"]
