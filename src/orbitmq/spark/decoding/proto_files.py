"""Converts a registry's Protobuf schemas to descriptor sets.

A registry stores .proto files. Most registries can also return them compiled (``format=serialized``). For the others,
the compiler of the package grpcio-tools is used if it is installed.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from orbitmq.spark.decoding.registry import RegisteredSchema, Registry, RegistryError
from orbitmq.spark.errors import EnvironmentFault, SpecError

__all__ = ["descriptor_set", "message_at"]

_MAIN: Final = "registered.proto"
_FILES_MAX: Final = 500
_WELL_KNOWN: Final = "google/protobuf/"


def descriptor_set(registry: Registry, schema: RegisteredSchema) -> bytes:
    """Returns the descriptors of a schema and everything it imports, imports first, so the schema itself is the last
    file.

    Raises ``RegistryError``, and ``SpecError`` for a schema that is not Protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2
    except ImportError:
        raise EnvironmentFault("decoding Protobuf needs protobuf: pip install 'orbitmq[decode]'") from None
    sources: dict[str, RegisteredSchema] = {}
    _collect(registry, schema, sources)
    sources[_MAIN] = schema
    files = descriptor_pb2.FileDescriptorSet()
    added: set[str] = set()
    for name, one in sources.items():
        file = _compiled(registry, one, name)
        if file is None:
            return _by_compiler(sources)
        file.name = name
        for imported in file.dependency:
            if imported.startswith(_WELL_KNOWN) and imported not in sources:
                _add_well_known(files, imported, added)
        files.file.append(file)
    return files.SerializeToString()


def _collect(registry: Registry, schema: RegisteredSchema, into: dict[str, RegisteredSchema]) -> None:
    """Adds a schema's imports to ``into`` in dependency order."""
    for name, subject, version in schema.references:
        if name in into:
            continue
        if len(into) >= _FILES_MAX:
            raise RegistryError(f"schema {schema.schema_id} imports more than {_FILES_MAX} others")
        imported = registry.version(subject, version)
        _collect(registry, imported, into)
        into[name] = imported


def _compiled(registry: Registry, schema: RegisteredSchema, name: str) -> Any:
    """Returns the file as compiled by the registry, or None if the registry only has its text."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    text = registry.serialized(schema)
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    return file if file.message_type or file.enum_type or name != _MAIN else None


def _add_well_known(files: Any, name: str, added: set[str]) -> None:
    if name in added:
        return
    added.add(name)
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        import importlib

        found = importlib.import_module(module).DESCRIPTOR
    except ImportError:
        raise SpecError("", f"the schema imports {name}, which is not registered") from None
    for imported in found.dependencies:
        _add_well_known(files, imported.name, added)
    found.CopyToProto(files.file.add())


def _by_compiler(sources: dict[str, RegisteredSchema]) -> bytes:
    try:
        import grpc_tools  # type: ignore[import-untyped]  # no types of its own
        from grpc_tools import protoc
    except ImportError:
        raise EnvironmentFault(
            "the registry does not compile Protobuf schemas (format=serialized): pip install grpcio-tools"
        ) from None
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        for name, schema in sources.items():
            place = (root / name).resolve()
            if not place.is_relative_to(root.resolve()):
                raise SpecError("", f"the schema imports {name!r}, which is not a file name")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(schema.text, "utf-8")
        target = root / "compiled.desc"
        include = Path(grpc_tools.__file__).parent / "_proto"
        command = ["protoc", f"-I{root}", f"-I{include}", f"--descriptor_set_out={target}"]
        if protoc.main([*command, "--include_imports", str(root / _MAIN)]):
            raise SpecError("", "the registered schema is not Protobuf: protoc refuses it")
        return target.read_bytes()


def message_at(files: bytes, path: Sequence[int]) -> str:
    """Returns the full name of the message at an index path within the schema's own file. Raises ``IndexError``."""
    from google.protobuf import descriptor_pb2

    parsed = descriptor_pb2.FileDescriptorSet.FromString(files)
    main = parsed.file[-1]
    names = [main.package] if main.package else []
    kinds: Any = main.message_type
    for index in path:
        if not 0 <= index < len(kinds):
            raise IndexError(f"the schema has no message at {'/'.join(map(str, path))}")
        names.append(kinds[index].name)
        kinds = kinds[index].nested_type
    return ".".join(names)
