"""Loads and checks a ``Pipeline`` from a YAML, TOML or JSON file. Errors name the path of the field."""

from __future__ import annotations

import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec

from orbitmq.pipeline import spec
from orbitmq.spark.errors import EnvironmentFault, SpecError, did_you_mean

__all__ = ["load_pipeline", "parse_pipeline", "read_document", "substitute"]

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_PARAMETER: Final = re.compile(r"\$(\$)?\{([A-Za-z_]\w*)(?::-([^}]*))?\}")
_ERROR: Final = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")


def load_pipeline(
    path: Path, given: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> spec.Pipeline:
    """Returns the pipeline of a file. ``given`` are values for its parameters, which take precedence over
    ``environment``."""
    return parse_pipeline(read_document(path), given or {}, environment or {})


def parse_pipeline(
    document: object, given: Mapping[str, str], environment: Mapping[str, str]
) -> spec.Pipeline:
    """Returns the pipeline of a parsed document. Raises ``SpecError``."""
    if not isinstance(document, dict):
        raise SpecError("", "a pipeline is a mapping with name, sources, steps and sinks")
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise SpecError("parameters", "expected a mapping of names to values")
    unknown = sorted(set(given) - {str(name) for name in parameters} - set(_names(document)))
    if unknown:
        raise SpecError("", f"there is no parameter {unknown[0]!r}{did_you_mean(unknown[0], parameters)}")
    values = {str(name): _text(value) for name, value in parameters.items()}
    values.update({name: value for name, value in environment.items() if name in values})
    values.update(given)
    filled = {
        key: value if key == "parameters" else substitute(value, values, environment, str(key))
        for key, value in document.items()
    }
    # Parsed part by part, so that an error names the source it is in, because msgspec omits the keys of mappings.
    sources = filled.get("sources")
    if isinstance(sources, dict):
        for name, value in sources.items():
            _convert(value, spec.Source, f"sources.{name}")
    for section, kind in (("steps", spec.Step), ("sinks", spec.Sink)):
        entries = filled.get(section)
        if isinstance(entries, list):
            for number, value in enumerate(entries):
                _convert(value, kind, f"{section}[{number}]")
    pipeline: spec.Pipeline = _convert(filled, spec.Pipeline, "")
    return pipeline


def read_document(path: Path) -> object:
    """Returns the content of a YAML, TOML or JSON file. Raises ``SpecError`` with line and column."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SpecError(str(path), f"more than {FILE_BYTES_MAX} bytes: not a pipeline file")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise SpecError(str(path), "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), f"cannot be read: {error}") from error
    if path.suffix == ".toml":
        try:
            return _plain(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise SpecError(str(path), f"not TOML: {error}") from error
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise SpecError(str(path), f"not JSON: {error}") from error
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(str(path), text)
    raise SpecError(str(path), "the name of a pipeline file ends with .yaml, .yml, .toml or .json")


def _read_yaml(path: str, text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise EnvironmentFault(
            f"{path}: reading YAML needs pyyaml: pip install 'orbitmq[spark]' (TOML and JSON do without)"
        ) from None

    class Loader(yaml.SafeLoader):
        """A YAML loader that rejects duplicate keys and keeps times as text."""

        yaml_implicit_resolvers = {
            first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
            for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value!r} stands here twice", problem_mark=key.start_mark
                    )
                if isinstance(key.value, str):
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise SpecError(where, f"not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SpecError(path, f"not YAML: {error}") from error


def _plain(value: object) -> object:
    """Returns the value with TOML's time values as text, which a pipeline expects."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime | date) else value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _names(value: object) -> Iterator[str]:
    """Yields the names of all parameters used in a document."""
    if isinstance(value, dict):
        for one in value.values():
            yield from _names(one)
    elif isinstance(value, list):
        for one in value:
            yield from _names(one)
    elif isinstance(value, str):
        yield from (name for escaped, name, _ in _PARAMETER.findall(value) if not escaped)


def substitute(value: object, values: Mapping[str, str], environment: Mapping[str, str], path: str) -> object:
    """Returns ``value`` with all ``${name}`` and ``${name:-default}`` substituted. ``$${`` stands for ``${``."""
    if isinstance(value, dict):
        return {key: substitute(one, values, environment, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, list):
        return [substitute(one, values, environment, f"{path}[{i}]") for i, one in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replacement(found: re.Match[str]) -> str:
        escaped, name, default = found.groups()
        if escaped:
            return found.group()[1:]
        for place in (values, environment):
            if name in place:
                return place[name]
        if default is not None:
            return str(default)
        raise SpecError(
            path, f"parameter {name!r} has no value: --set {name}=..., or name it under parameters"
        )

    return _PARAMETER.sub(replacement, value)


def _convert(value: object, kind: Any, path: str) -> Any:
    try:
        # Lax, because parameters and the environment are only text, so "8" is accepted where a number is expected.
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value, kind, path) from None


def _explained(text: str, value: object, kind: Any, prefix: str) -> SpecError:
    found = _ERROR.match(text)
    assert found is not None, "the pattern takes any text"
    what, below = found["what"], found["path"] or ""
    at = (prefix + below).lstrip(".")
    tokens = re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", below)
    names = [key or index for key, index in tokens]
    if unknown := _UNKNOWN.search(what):
        known = _fields(*_walk(value, kind, names))
        return SpecError(
            f"{at}.{unknown[1]}".lstrip("."), f"there is no such field{did_you_mean(unknown[1], known)}"
        )
    if missing := _MISSING.search(what):
        hint = f"; one of {', '.join(_tags(kind))}" if missing[1] == "kind" else ""
        return SpecError(f"{at}.{missing[1]}".lstrip("."), f"this field is required{hint}")
    if what.startswith(("Invalid value", "Invalid enum value")):
        bad = what.partition("value ")[2].strip("'")
        holder, parent = _walk(value, kind, names[:-1])
        accepted = _tags(parent) if names[-1:] == ["kind"] else _literals(holder, parent, names[-1])
        return SpecError(at, f"{bad!r} is not accepted{did_you_mean(bad, accepted)}")
    if found["key"]:
        return SpecError(at, "a name here has letters, digits and _, and does not begin with a digit")
    what = what[:1].lower() + what[1:]
    return SpecError(at, what.replace("`", "").replace("matching regex", "of the form"))


def _members(kind: Any) -> list[Any]:
    """Returns the members of a union, or the type itself if it is none. Annotations are removed."""
    if get_origin(kind) is typing.Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (typing.Union, types.UnionType):
        return [member for one in get_args(kind) for member in _members(one)]
    return [kind]


def _tags(kind: Any) -> list[str]:
    return [one.__struct_config__.tag for one in _members(kind) if hasattr(one, "__struct_config__")]


def _struct(value: object, kind: Any) -> Any:
    """Returns the class that describes ``value``, chosen by its ``kind`` if there are several, or None if there is
    none."""
    structs = [one for one in _members(kind) if hasattr(one, "__struct_config__")]
    tag = value.get("kind") if isinstance(value, dict) else None
    chosen = [one for one in structs if one.__struct_config__.tag == tag]
    return (chosen or structs or [None])[0]


def _walk(value: object, kind: Any, names: list[str]) -> tuple[object, Any]:
    """Returns the value and the type at the path ``names``. The value is None where the document ends earlier."""
    for name in names:
        struct = _struct(value, kind)
        if struct is not None:
            by_name = {one.encode_name: one.type for one in msgspec.structs.fields(struct)}
            kind = by_name.get(name, Any)
            value = value.get(name) if isinstance(value, dict) else None
        else:
            inner = [one for one in _members(kind) if get_origin(one) in (list, dict)]
            kind = get_args(inner[0])[-1] if inner else Any
            value = value[int(name)] if isinstance(value, list) and name.isdigit() else None
    return value, kind


def _fields(value: object, kind: Any) -> list[str]:
    struct = _struct(value, kind)
    if struct is None:
        return []
    tag_field = struct.__struct_config__.tag_field
    return [*([tag_field] if tag_field else []), *struct.__struct_encode_fields__]


def _literals(value: object, kind: Any, name: str) -> list[str]:
    struct = _struct(value, kind)
    if struct is None:
        return []
    for one in msgspec.structs.fields(struct):
        if one.encode_name == name:
            return [str(choice) for member in _members(one.type) for choice in get_args(member)]
    return []
