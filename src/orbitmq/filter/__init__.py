"""SQL92 expressions over message properties: grammar, meaning, compiled form. Pure."""

from orbitmq.filter.coercion import Unreadable
from orbitmq.filter.compiler import Selector, compile_selector
from orbitmq.filter.evaluation import evaluate
from orbitmq.filter.parsing import Parsed, parse

__all__ = ["Parsed", "Selector", "Unreadable", "compile_selector", "evaluate", "parse"]
