"""Statements against a schema: every name found, every type checked, before any data moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from headrace.errors import BindError, MeasureError, Span
from headrace.language.evaluate import evaluate
from headrace.language.names import default_name, did_you_mean, listed, matches
from headrace.language.nodes import Call, Column, Expr, Item, Like, Statement, Window
from headrace.language.plain_types import plain_type
from headrace.language.scalars import ALIASES, SCALARS
from headrace.language.trees import children, columns_of, rebuild
from headrace.language.type_names import spark_name
from headrace.language.types import type_of
from headrace.model.signature import Parameter, Signature


@dataclass(frozen=True)
class BoundMetric:
    """One output column: an aggregation whose names are those of the schema and whose types are known."""

    name: str
    function: Signature
    argument: Expr | None
    """None for count(*)."""
    argument_type: pa.DataType | None
    parameters: tuple[Parameter, ...]
    """The constants after the argument."""
    where: Expr | None
    group_by: tuple[str, ...]
    """Spelled as in the schema, in the order of the text."""
    window: Window
    type: pa.DataType
    """The type of the answer."""


def bind(
    statements: Sequence[Statement], text: str, schema: pa.Schema, functions: Sequence[Signature], time: str
) -> tuple[BoundMetric, ...]:
    """One metric for each item, in the order of the text.

    `text` is what the statements were parsed from, for the excerpts in errors. `time` names the time column.
    Column names are found as Spark finds them: exactly, else without regard to case. A metric without AS is named
    after its parts (`names.default_name`). Raises BindError.
    """
    try:
        return _Binder(schema, functions, time, text).bind(statements)
    except BindError as error:
        raise BindError(error.problem, text, error.at, error.hint) from None


def find_function(item: Item, functions: Sequence[Signature], text: str = "") -> Signature:
    """The aggregation that an item names, in any case and by any of its aliases. Raises BindError."""
    spellings = _spellings(functions)
    found = spellings.get(item.function.lower())
    if found is not None:
        return found
    if item.function.lower() in SCALARS:
        problem = f"{item.function} is not an aggregation: it works on one row"
        raise BindError(problem, text, item.at, f"aggregate it: max({item.function}(x))")
    names = [function.name for function in functions]
    hint = did_you_mean(item.function, [*spellings, *names]) or f"there are {listed(names, 20)}"
    raise BindError(f"there is no aggregation {item.function}", text, item.at, hint)


def _spellings(functions: Sequence[Signature]) -> dict[str, Signature]:
    return {spelling.lower(): function for function in functions for spelling in (function.name, *function.aliases)}


class _Binder:
    """Raises errors without the text; `bind` adds it."""

    def __init__(self, schema: pa.Schema, functions: Sequence[Signature], time: str, text: str):
        self._schema = schema
        self._time = time
        self._lines = text.split("\n")
        self._functions = functions
        self._spellings = _spellings(functions)

    def bind(self, statements: Sequence[Statement]) -> tuple[BoundMetric, ...]:
        metrics: list[BoundMetric] = []
        taken = {name.lower(): f"the data has a column {name}" for name in self._schema.names}
        for statement in statements:
            where, group_by = self._where(statement), self._group_by(statement)
            for item in statement.items:
                metric = self._metric(item, statement, where, group_by)
                if clash := taken.get(metric.name.lower()):
                    problem = f"a metric cannot be called {metric.name}: {clash}"
                    raise BindError(problem, "", item.at, "give it another name: AS other_name")
                taken[metric.name.lower()] = "another metric has that name"
                metrics.append(metric)
        return tuple(metrics)

    # ------------------------------------------------------------ statements

    def _where(self, statement: Statement) -> Expr | None:
        if statement.order_by is not None:
            self._check_order(statement.order_by)
        if statement.where is None:
            return None
        where = self._expr(statement.where, "WHERE")
        found = type_of(where, self._schema)
        if not kinds.is_boolean(found) and not kinds.is_null(found):
            problem = f"WHERE needs a condition, not {spark_name(found)}"
            raise BindError(problem, "", where.at, "compare it with something: x > 0")
        return where

    def _check_order(self, order_by: Column) -> None:
        if self._column(order_by).name != self._column(Column(self._time, order_by.at)).name:
            problem = f"ORDER BY must be the time column {self._time}, not {order_by.name}"
            raise BindError(problem, "", order_by.at)

    def _group_by(self, statement: Statement) -> tuple[str, ...]:
        names: list[str] = []
        for column in statement.group_by:
            name = self._column(column).name
            if name in names:
                raise BindError(f"{name} is grouped by twice", "", column.at)
            given = self._schema.field(name).type
            plain = plain_type(given)
            if plain is None or kinds.is_null(plain):
                hint = "group by booleans, numbers, strings, binary, dates or timestamps"
                raise BindError(f"cannot group by {name}: its type is {given}", "", column.at, hint)
            names.append(name)
        return tuple(names)

    # ----------------------------------------------------------------- items

    def _metric(self, item: Item, statement: Statement, where: Expr | None, group_by: tuple[str, ...]) -> BoundMetric:
        function = find_function(item, self._functions)
        values, constants = self._split(item, function)
        argument = self._expr(values[0], function.name) if values else None
        argument_type = self._argument_type(argument)
        result = function.result_type(argument_type)
        if isinstance(result, str):
            raise BindError(result, "", argument.at if argument is not None else item.at)
        parameters = tuple(
            self._parameter(function, name, arg) for name, arg in zip(function.parameters, constants, strict=True)
        )
        name, window = item.name or default_name(item, statement), statement.window
        return BoundMetric(name, function, argument, argument_type, parameters, where, group_by, window, result)

    def _split(self, item: Item, function: Signature) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """The value expressions and the constants after them."""
        for count in function.arguments:
            if len(item.args) == count + len(function.parameters):
                return item.args[:count], item.args[count:]
        usage = " or ".join(_usage(function, count) for count in function.arguments)
        given = f"{len(item.args)} argument" + ("s" if len(item.args) != 1 else "")
        raise BindError(f"{function.name} is written {usage}, not with {given}", "", item.at)

    def _argument_type(self, argument: Expr | None) -> pa.DataType | None:
        if argument is None:
            return None
        found = type_of(argument, self._schema)
        if kinds.is_null(found):
            problem = "the argument is always NULL, so it has no type"
            raise BindError(problem, "", argument.at, "give it one: CAST(NULL AS double)")
        return found

    def _parameter(self, function: Signature, name: str, arg: Expr) -> Parameter:
        bound = self._expr(arg, function.name)
        value = _constant(bound)
        if columns_of(bound) or isinstance(value, bool) or not isinstance(value, int | float):
            raise BindError(f"the {name} of {function.name} must be a constant number", "", arg.at)
        problem = function.check_parameter(value) if function.check_parameter else None
        if problem:
            raise BindError(problem, "", arg.at)
        return value

    # ----------------------------------------------------------- expressions

    def _expr(self, expr: Expr, inside: str) -> Expr:
        """The expression with columns spelled as in the schema and functions under their own names."""
        if isinstance(expr, Column):
            return self._column(expr)
        if isinstance(expr, Call):
            expr = self._call(expr, inside)
        if isinstance(expr, Like):
            _check_pattern(expr)
        return rebuild(expr, [self._expr(part, inside) for part in children(expr)])

    def _column(self, column: Column) -> Column:
        found = matches(column.name, self._schema.names)
        if len(found) == 1:
            return Column(found[0], column.at)
        if found:
            problem = f"{column.name} could be any of the columns {listed(found)}"
            raise BindError(problem, "", column.at, "rename one of them, or spell it exactly as in the data")
        hint = did_you_mean(column.name, self._schema.names) or f"the columns are {listed(self._schema.names)}"
        if self._in_double_quotes(column.at):
            hint = f"double quotes are for names; a text goes in single quotes: '{column.name}'"
        raise BindError(f"there is no column {column.name}", "", column.at, hint)

    def _in_double_quotes(self, at: Span) -> bool:
        line = self._lines[at.line - 1] if 1 <= at.line <= len(self._lines) else ""
        return line[at.column - 1 : at.column] == '"'

    def _call(self, call: Call, inside: str) -> Call:
        scalar = SCALARS.get(call.function)
        if scalar is None:
            raise self._unknown_function(call, inside)
        if not scalar.least <= len(call.args) <= scalar.most:
            most = f" to {scalar.most}" if scalar.most < 10 else " or more"
            wanted = f"{scalar.least}{most if scalar.most != scalar.least else ''}"
            plural = "" if wanted == "1" else "s"
            raise BindError(f"{call.function} takes {wanted} argument{plural}, not {len(call.args)}", "", call.at)
        return Call(ALIASES.get(call.function, call.function), call.args, call.at)

    def _unknown_function(self, call: Call, inside: str) -> BindError:
        if call.function in self._spellings:
            name = self._spellings[call.function].name
            if inside == "WHERE":
                return BindError(f"{name} cannot stand in WHERE, which looks at one row", "", call.at)
            return BindError(f"{name} cannot stand inside {inside}: aggregations do not nest", "", call.at)
        names = sorted(SCALARS.keys() - ALIASES.keys())
        hint = did_you_mean(call.function, SCALARS) or f"there are {listed(names, 30)}"
        return BindError(f"there is no function {call.function}", "", call.at, hint)


def _usage(function: Signature, count: int) -> str:
    values = ("x",) if count else ()
    return f"{function.name}({', '.join((*values, *function.parameters)) or '*'})"


def _constant(expr: Expr) -> object:
    """The value of an expression without columns; a decimal becomes a float."""
    if columns_of(expr):
        return None
    row = pa.record_batch([pa.nulls(1)], names=[""])
    type_of(expr, row.schema)
    try:
        value = evaluate(expr, row)[0].as_py()
    except MeasureError as error:
        raise BindError(str(error), "", expr.at) from None
    return float(value) if isinstance(value, Decimal) else value


def _check_pattern(expr: Like) -> None:
    """A pattern that Arrow cannot compile is refused before any data moves."""
    try:
        pc.match_like(pa.array([""]), expr.pattern)
    except pa.ArrowInvalid:
        raise BindError("the LIKE pattern is too large", "", expr.at) from None
