"""Every aggregation by its definition, over a plain list of values. Slow and obvious on purpose.

`answer("sum", values, ...)` is given the values of one window, oldest first, and recomputes the answer from nothing.
All arithmetic is exact (integers, fractions, decimals); rounding happens once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.errors import MetricOverflow

ALIASES = {
    "mean": "avg",
    "std_dev": "stdDev",
    "stddev": "stdDev",
    "stddev_samp": "stdDev",
    "countdistinct": "countDistinct",
    "count_distinct": "countDistinct",
    "topk": "topK",
    "top_k": "topK",
}

ULPS = {"stdDev": 4}
"""How far a double may be from the definition's correctly rounded value, in units in the last place; 0 if not named."""


def canonical(function: str) -> str:
    """The one spelling of a function's name, whatever the text says."""
    return ALIASES.get(function.lower(), function.lower())


def result_type(function: str, argument: pa.DataType | None) -> pa.DataType:
    """The type of the answer, as the documentation's table states it."""
    name = canonical(function)
    if name in ("count", "countDistinct"):
        return pa.int64()
    if name == "topK":
        return pa.list_(pa.struct([("value", argument), ("count", pa.int64())]))
    if name in ("stdDev", "median", "percentile"):
        return pa.float64()
    if name == "sum":
        return _sum_type(argument)
    if name == "avg":
        return _avg_type(argument)
    return argument


def _sum_type(argument: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(argument):
        return pa.decimal128(min(38, argument.precision + 10), argument.scale)
    return pa.int64() if pa.types.is_integer(argument) else pa.float64()


def _avg_type(argument: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(argument):
        return pa.decimal128(min(38, argument.precision + 4), min(37, argument.scale + 4))
    return pa.float64()


def answer(
    function: str, values: Sequence[Any], parameters: Sequence[float], kind: pa.DataType, metric: str = "metric"
) -> Any:
    """The answer over `values`, the arguments of a window's counted events, oldest first.

    For `count(*)` the values may be anything. `kind` is the type of the answer; an exact result that does not fit
    it raises MetricOverflow for `metric`.
    """
    name = canonical(function)
    if name in KEEPS_NULLS:
        return KEEPS_NULLS[name](values)
    present = [value for value in values if value is not None]
    result = SKIPS_NULLS[name](present, *parameters, *([kind] if name in ("sum", "avg") else []))
    if result is OVERFLOW:
        raise MetricOverflow(metric, str(kind))
    return result


OVERFLOW: Any = object()


def count_all(values: Sequence[Any]) -> int:
    """`count(*)`: null or not, an event is an event."""
    return len(values)


def first_of(values: Sequence[Any]) -> Any:
    """The oldest event's value."""
    return values[0] if values else None


def last_of(values: Sequence[Any]) -> Any:
    """The newest event's value."""
    return values[-1] if values else None


def prev_of(values: Sequence[Any]) -> Any:
    """The second newest event's value."""
    return values[-2] if len(values) > 1 else None


def sum_of(values: Sequence[Any], kind: pa.DataType) -> Any:
    """The exact sum, rounded once; an int64 or decimal that does not fit is an overflow."""
    if not values:
        return None
    if pa.types.is_floating(kind):
        return double_sum(values)
    total = exact_sum(values)
    if pa.types.is_integer(kind):
        return int(total) if -(2**63) <= total < 2**63 else OVERFLOW
    return _as_decimal(total, kind)


def avg_of(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Doubles: the sum, rounded to a double, divided by the count. Decimals: the exact mean, rounded half up."""
    if not values:
        return None
    if pa.types.is_floating(kind):
        return double_sum(values) / len(values)
    return _as_decimal(exact_sum(values) / len(values), kind)


def exact_sum(values: Iterable[Any]) -> Fraction:
    """The sum of integers, decimals or finite doubles, without rounding."""
    return sum((Fraction(value) for value in values), Fraction(0))


def double_sum(values: Sequence[float]) -> float:
    """What `math.fsum` gives, also where a partial sum leaves the range of a double."""
    special = [value for value in values if not math.isfinite(value)]
    if special:
        return sum(special)  # inf + inf is inf, inf - inf and anything with NaN is NaN
    return rounded(exact_sum(values))


def rounded(exact: Fraction) -> float:
    """The double nearest to `exact`; past the largest double, an infinity."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _as_decimal(exact: Fraction, kind: pa.DataType) -> Any:
    """Rounded half up (away from zero) to the type's scale."""
    scaled = abs(exact) * 10**kind.scale
    digits = math.floor(scaled + Fraction(1, 2))
    if digits >= 10**kind.precision:
        return OVERFLOW
    signed = -digits if exact < 0 else digits
    return Decimal(signed).scaleb(-kind.scale, Context(prec=100))


def std_dev(values: Sequence[Any]) -> float | None:
    """The sample standard deviation (divided by n - 1), null for fewer than two values."""
    if len(values) < 2:
        return None
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return math.nan
    mean = exact_sum(values) / len(values)
    squares = exact_sum((Fraction(value) - mean) * (Fraction(value) - mean) for value in values)
    return square_root(squares / (len(values) - 1))


def square_root(exact: Fraction | int) -> float:
    """The double nearest to the root of a fraction."""
    number = Fraction(exact)
    if number == 0:
        return 0.0
    # Shifted so that the integer root has at least 128 bits: more than twice what a double holds.
    shift = max(0, 128 + (number.denominator.bit_length() - number.numerator.bit_length()) // 2 + 1)
    shifted = (number.numerator << (2 * shift)) // number.denominator
    root = math.isqrt(shifted)
    exactly = root * root == shifted and (number.numerator << (2 * shift)) % number.denominator == 0
    # One more bit tells "just above" from "exactly at" a tie between two doubles.
    return rounded(Fraction(2 * root + (0 if exactly else 1), 2 << shift))


def min_of(values: Sequence[Any]) -> Any:
    """The smallest value; NaN is larger than every number."""
    return min(values, key=order) if values else None


def max_of(values: Sequence[Any]) -> Any:
    """The largest value; NaN is larger than every number."""
    return max(values, key=order) if values else None


def count_distinct(values: Sequence[Any]) -> int:
    """How many different values."""
    return len({identity(value) for value in values})


def percentile(values: Sequence[Any], fraction: float) -> float | None:
    """Spark's `percentile`: the place fraction * (n - 1) among the sorted values, linear between two neighbours."""
    if not values:
        return None
    ordered = sorted((float(value) for value in values), key=order)
    place = fraction * (len(ordered) - 1)
    below, above = math.floor(place), math.ceil(place)
    if identity(ordered[below]) == identity(ordered[above]):
        return ordered[below]
    return (above - place) * ordered[below] + (place - below) * ordered[above]


def median(values: Sequence[Any]) -> float | None:
    """`percentile(x, 0.5)`."""
    return percentile(values, 0.5)


def top_k(values: Sequence[Any], k: float) -> list[dict[str, Any]]:
    """The k most frequent values with their counts; of equally frequent ones the smaller first."""
    examples = {identity(value): value for value in values}
    counts = [(value, sum(identity(other) == key for other in values)) for key, value in examples.items()]
    counts.sort(key=lambda pair: (-pair[1], order(pair[0])))
    return [{"value": value, "count": count} for value, count in counts[: int(k)]]


def identity(value: Any) -> Any:
    """Two values are the same group, or the same distinct value, when their identities are equal.

    All NaNs are one value, -0.0 is 0.0, and null is null.
    """
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def order(value: Any) -> Any:
    """What values are sorted by: NaN after every number, -0.0 with 0.0, text by code points, false before true."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


KEEPS_NULLS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "count(*)": count_all,
    "first": first_of,
    "last": last_of,
    "prev": prev_of,
}
SKIPS_NULLS: dict[str, Callable[..., Any]] = {
    "count": count_all,
    "sum": sum_of,
    "avg": avg_of,
    "stdDev": std_dev,
    "min": min_of,
    "max": max_of,
    "countDistinct": count_distinct,
    "median": median,
    "percentile": percentile,
    "topK": top_k,
}
