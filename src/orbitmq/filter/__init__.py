"""SQL92 expressions over message properties: their grammar, trees and programs. Does no I/O. The kernel evaluates
programs."""

from orbitmq.filter.parsing import Parsed, parse
from orbitmq.filter.program import Expression, compile_expression, encode_program

__all__ = ["Expression", "Parsed", "compile_expression", "encode_program", "parse"]
