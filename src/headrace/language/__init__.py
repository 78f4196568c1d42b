"""The metric language: grammar, parser, printer, binder, evaluator."""

from headrace.language.binder import BoundMetric, bind, find_function
from headrace.language.evaluate import evaluate
from headrace.language.names import default_name
from headrace.language.nodes import Statement
from headrace.language.parser import parse
from headrace.language.printer import format_expr, format_statements, format_window
from headrace.language.trees import columns_of
from headrace.language.types import type_of

__all__ = [
    "BoundMetric",
    "Statement",
    "bind",
    "columns_of",
    "default_name",
    "evaluate",
    "find_function",
    "format_expr",
    "format_statements",
    "format_window",
    "parse",
    "type_of",
]
