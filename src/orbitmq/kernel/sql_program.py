"""The byte format of SQL92 expressions, written by ``orbitmq.filter`` and read by both kernels.

A program is one node in prefix notation: an operation code, then its operands. ::

    node    code 1 | operands
    text    size 4 | UTF-8
    count   4, big-endian

Values: ``PROPERTY text``; ``NULL``, ``TRUE``, ``FALSE``; ``INT`` and ``LONG`` with 8 bytes, signed; ``DOUBLE`` with 8
bytes; ``TEXT text``; ``VOID condition`` (evaluated because it may be unreadable, then null).

Conditions: ``EQUAL``, ``LESS``, ``LESS_EQUAL``, ``GREATER``, ``GREATER_EQUAL`` with two nodes; ``NOT condition``;
``AND`` and ``OR`` with a count and that many conditions; ``IN`` and ``NOT_IN`` with the name of a property, a count
and that many texts; the text tests with a node and a text; ``CAST text``: a property used as a truth value, false
when it exists, else null. ``NULL``, ``TRUE``, ``FALSE`` and the whole program are conditions, too.

Programs are never stored or sent, so codes may change with any release.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["DEPTH_MAX", "Op"]

DEPTH_MAX: Final = 256
"""Maximum depth of nested nodes; deeper programs are refused."""


class Op(IntEnum):
    """The operation codes of nodes."""

    PROPERTY = 1
    NULL = 2
    TRUE = 3
    FALSE = 4
    INT = 5
    LONG = 6
    DOUBLE = 7
    TEXT = 8
    VOID = 9
    EQUAL = 10
    LESS = 11
    LESS_EQUAL = 12
    GREATER = 13
    GREATER_EQUAL = 14
    NOT = 15
    AND = 16
    OR = 17
    IN = 18
    NOT_IN = 19
    CONTAINS = 20
    NOT_CONTAINS = 21
    STARTSWITH = 22
    NOT_STARTSWITH = 23
    ENDSWITH = 24
    NOT_ENDSWITH = 25
    CAST = 26
