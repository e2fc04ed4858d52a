"""Keeps unknown JSON members through a rewrite.

msgspec drops members that a struct does not declare, and has no field that would collect them. So a table that is
loaded, changed and written back (topics.json, subscriptionGroup.json) keeps them next to the struct:
``unknown_members`` when reading, ``to_object`` when writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["to_object", "unknown_members"]


def unknown_members(struct_type: type[msgspec.Struct], members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those members of a parsed JSON object that the struct does not declare."""
    known = _member_names(struct_type)
    return {name: value for name, value in members.items() if name not in known}


def to_object(value: msgspec.Struct, unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the struct as a JSON object, including the unknown members. All members are in alphabetical order, like
    in Apache."""
    members: dict[str, Any] = {**unknown, **msgspec.to_builtins(value)}
    return dict(sorted(members.items()))


@lru_cache(maxsize=64)
def _member_names(struct_type: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(struct_type))
