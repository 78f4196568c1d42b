"""The scalar functions of the language: how many arguments, which type, and how to compute them by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from headrace.errors import BindError
from headrace.language import kernels
from headrace.language.casts import keep, round_doubles, try_cast
from headrace.language.nodes import Call, Literal
from headrace.language.plain_types import is_number, wider
from headrace.language.type_names import spark_name

Datum = Any
"""A pyarrow Array or Scalar; pyarrow ships no types."""

_MANY: Final = 10**9


@dataclass(frozen=True)
class Scalar:
    """One function. `type_rule` raises BindError; `compute` gets arguments of the types the rule has seen."""

    least: int
    most: int
    type_rule: Callable[[Call, Sequence[pa.DataType]], pa.DataType]
    compute: Callable[[Call, Sequence[Datum], pa.DataType], Datum]


def call_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a call; the function is known and has the right number of arguments."""
    return SCALARS[call.function].type_rule(call, parts)


def call_value(call: Call, parts: Sequence[Datum]) -> Datum:
    """The value of a call over columns; at least one argument is an array."""
    result = call_type(call, [part.type for part in parts])
    return SCALARS[call.function].compute(call, parts, result)


# ------------------------------------------------------------------------ types


def _need(call: Call, index: int, parts: Sequence[pa.DataType], what: str, test: Callable[[pa.DataType], bool]) -> None:
    found = parts[index]
    if not test(found) and not kinds.is_null(found):
        raise BindError(f"{call.function} needs {what}, not {spark_name(found)}", "", call.args[index].at)


def _constant(call: Call, index: int, what: str, low: int, high: int) -> int:
    arg = call.args[index]
    value = arg.value if isinstance(arg, Literal) else None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BindError(f"{call.function} needs {what} as a whole number from {low} to {high}", "", arg.at)
    return value


def _strings(result: pa.DataType) -> Callable[[Call, Sequence[pa.DataType]], pa.DataType]:
    def rule(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
        for index in range(len(parts)):
            _need(call, index, parts, "a string", kinds.is_string)
        return result

    return rule


def _doubles(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    for index in range(len(parts)):
        _need(call, index, parts, "a number", is_number)
    return pa.float64()


def _common(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    found = pa.null()
    for arg, part in zip(call.args, parts, strict=True):
        both = wider(found, part)
        if both is None:
            clash = f"{spark_name(found)} and {spark_name(part)}"
            problem = f"the arguments of {call.function} have no common type: {clash}"
            raise BindError(problem, "", arg.at, "cast them to one type")
        found = both
    return found


def _length_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _need(call, 0, parts, "a string or binary", lambda t: kinds.is_string(t) or kinds.is_binary(t))
    return pa.int32()


def _abs_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _need(call, 0, parts, "a number", is_number)
    if kinds.is_decimal(parts[0]):
        return parts[0]
    return pa.float64() if kinds.is_floating(parts[0]) else pa.int64()


def _floor_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _need(call, 0, parts, "a number", is_number)
    if not kinds.is_decimal(parts[0]):
        return pa.int64()
    return pa.decimal128(min(38, parts[0].precision - parts[0].scale + 1), 0)


def _places(call: Call) -> int:
    return _constant(call, 1, "the number of places", 0, 15) if len(call.args) > 1 else 0


def _round_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _need(call, 0, parts, "a number", is_number)
    places, found = _places(call), parts[0]
    if not kinds.is_decimal(found):
        return pa.float64() if kinds.is_floating(found) else pa.int64()
    scale = min(found.scale, places)
    return pa.decimal128(min(38, found.precision - found.scale + scale + 1), scale)


def _substr_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _need(call, 0, parts, "a string", kinds.is_string)
    _substr_range(call)
    return pa.string()


def _substr_range(call: Call) -> tuple[int, int | None]:
    """Where the slice starts and stops, in Python's way of counting. SQL counts from 1, and from the end below 0."""
    edge = 2**31 - 1
    position = _constant(call, 1, "the position", -edge, edge)
    start = position - 1 if position > 0 else position
    if len(call.args) == 2:
        return start, None
    stop = start + _constant(call, 2, "the length", 0, edge)
    return start, None if start < 0 <= stop else stop


def _nullif_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _common(call, parts)
    return parts[0]


def _if_type(call: Call, parts: Sequence[pa.DataType]) -> pa.DataType:
    _need(call, 0, parts, "a condition", kinds.is_boolean)
    return _common(Call(call.function, call.args[1:], call.at), parts[1:])


# --------------------------------------------------------------------- computing


def _coalesce(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    return pc.coalesce(*(kernels.coerce(part, result) for part in parts))


def _extreme(op: str) -> Callable[[Call, Sequence[Datum], pa.DataType], Datum]:
    def compute(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
        best, *others = (kernels.coerce(part, result) for part in parts)
        if kinds.is_null(result):
            return best
        for other in others:
            better = pc.fill_null(kernels.compare(op, other, best), False)
            best = pc.if_else(pc.or_(better, pc.is_null(best)), other, best)
        return best

    return compute


def _abs(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    return pc.abs_checked(kernels.coerce(parts[0], result))


def _floor(kernel: Callable[[Datum], Datum]) -> Callable[[Call, Sequence[Datum], pa.DataType], Datum]:
    def compute(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
        value = parts[0]
        if kinds.is_decimal(value.type):
            # The next whole number may have one digit more than the value.
            value = pc.cast(value, pa.decimal256(value.type.precision + 1, value.type.scale))
        is_whole = kinds.is_integer(value.type) or kinds.is_null(value.type)
        return try_cast(value if is_whole else kernel(value), result)

    return compute


def _round(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    value = parts[0]
    if not kinds.is_floating(result):
        return try_cast(value, result)
    return round_doubles(kernels.coerce(value, result), _places(call))


def _substr(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    start, stop = _substr_range(call)
    text = kernels.coerce(parts[0], result)
    return pc.utf8_slice_codeunits(text, start=start, stop=stop)


def _length(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    if kinds.is_null(parts[0].type):
        return pa.nulls(len(parts[0]), result)
    return pc.utf8_length(parts[0]) if kinds.is_string(parts[0].type) else pc.binary_length(parts[0])


def _on_text(kernel: Callable[[Datum], Datum]) -> Callable[[Call, Sequence[Datum], pa.DataType], Datum]:
    return lambda call, parts, result: kernel(kernels.coerce(parts[0], result))


def _concat(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    return pc.binary_join_element_wise(*(kernels.coerce(part, result) for part in parts), "")


def _nullif(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    both = wider(parts[0].type, parts[1].type)
    equal = kernels.compare("=", *(kernels.coerce(part, both) for part in parts)) if not kinds.is_null(both) else None
    if equal is None:
        return parts[0]
    return pc.if_else(pc.fill_null(equal, False), pa.scalar(None, result), parts[0])


def _if(call: Call, parts: Sequence[Datum], result: pa.DataType) -> Datum:
    condition = pc.fill_null(kernels.coerce(parts[0], pa.bool_()), False)
    return pc.if_else(condition, *(kernels.coerce(part, result) for part in parts[1:]))


def _on_doubles(kernel: Callable[..., Datum]) -> Callable[[Call, Sequence[Datum], pa.DataType], Datum]:
    return lambda call, parts, result: kernel(*(kernels.coerce(part, result) for part in parts))


def _ln(value: Datum) -> Datum:
    return pc.ln(keep(value, pc.or_(pc.greater(value, 0.0), pc.is_nan(value))))


SCALARS: Final[dict[str, Scalar]] = {
    "abs": Scalar(1, 1, _abs_type, _abs),
    "ceil": Scalar(1, 1, _floor_type, _floor(pc.ceil)),
    "coalesce": Scalar(1, _MANY, _common, _coalesce),
    "concat": Scalar(1, _MANY, _strings(pa.string()), _concat),
    "exp": Scalar(1, 1, _doubles, _on_doubles(pc.exp)),
    "floor": Scalar(1, 1, _floor_type, _floor(pc.floor)),
    "greatest": Scalar(2, _MANY, _common, _extreme(">")),
    "if": Scalar(3, 3, _if_type, _if),
    "least": Scalar(2, _MANY, _common, _extreme("<")),
    "length": Scalar(1, 1, _length_type, _length),
    "ln": Scalar(1, 1, _doubles, _on_doubles(_ln)),
    "lower": Scalar(1, 1, _strings(pa.string()), _on_text(pc.utf8_lower)),
    "nullif": Scalar(2, 2, _nullif_type, _nullif),
    "power": Scalar(2, 2, _doubles, _on_doubles(pc.power)),
    "round": Scalar(1, 2, _round_type, _round),
    "sqrt": Scalar(1, 1, _doubles, _on_doubles(pc.sqrt)),
    "substr": Scalar(2, 3, _substr_type, _substr),
    "trim": Scalar(1, 1, _strings(pa.string()), _on_text(pc.utf8_trim_whitespace)),
    "upper": Scalar(1, 1, _strings(pa.string()), _on_text(pc.utf8_upper)),
}
ALIASES: Final = {
    "ceiling": "ceil", "substring": "substr", "nvl": "coalesce", "ifnull": "coalesce", "lcase": "lower",
    "ucase": "upper", "char_length": "length", "pow": "power",
}  # fmt: skip
SCALARS.update({alias: SCALARS[name] for alias, name in ALIASES.items()})
