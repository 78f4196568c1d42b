"""What a metric text means, as frozen values.

Every node knows its place in the text (`at`), which never takes part in equality:
two texts that mean the same give equal nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from headrace.errors import NOWHERE, Span
from headrace.model.ticks import Ticks


def _at() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Column:
    name: str
    at: Span = _at()


@dataclass(frozen=True, eq=False)
class Literal:
    """A constant. A number without a point is an int, with a point a Decimal, with an exponent a float.

    Python says 1 == 1.0 == True; here they differ, for they have different types. So do 1.5 and 1.50.
    """

    value: bool | int | float | Decimal | str | None
    at: Span = _at()

    def _identity(self) -> tuple[type, str]:
        # The spelling tells 1.5 from 1.50 and 0.0 from -0.0 where == does not.
        return type(self.value), str(self.value)

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Literal) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())


@dataclass(frozen=True)
class Negate:
    operand: Expr
    at: Span = _at()


@dataclass(frozen=True)
class Not:
    operand: Expr
    at: Span = _at()


@dataclass(frozen=True)
class Binary:
    """Arithmetic (+ - * / %), comparison (= <> < <= > >=) or || on two operands."""

    op: str
    left: Expr
    right: Expr
    at: Span = _at()


@dataclass(frozen=True)
class And:
    terms: tuple[Expr, ...]
    at: Span = _at()


@dataclass(frozen=True)
class Or:
    terms: tuple[Expr, ...]
    at: Span = _at()


@dataclass(frozen=True)
class IsNull:
    operand: Expr
    negated: bool = False
    at: Span = _at()


@dataclass(frozen=True)
class In:
    operand: Expr
    options: tuple[Expr, ...]
    negated: bool = False
    at: Span = _at()


@dataclass(frozen=True)
class Between:
    operand: Expr
    low: Expr
    high: Expr
    negated: bool = False
    at: Span = _at()


@dataclass(frozen=True)
class Like:
    operand: Expr
    pattern: str
    negated: bool = False
    at: Span = _at()


@dataclass(frozen=True)
class Case:
    """`CASE WHEN condition THEN result … [ELSE otherwise] END`.

    The form `CASE x WHEN value THEN …` is read as conditions `x = value`.
    """

    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None = None
    at: Span = _at()


@dataclass(frozen=True)
class Call:
    """A scalar function: coalesce, abs, lower, upper, length, … The name is lower case."""

    function: str
    args: tuple[Expr, ...]
    at: Span = _at()


@dataclass(frozen=True)
class Cast:
    """`CAST(x AS type)`; `type_name` is a Spark SQL type in lower case, as `decimal(10,2)`."""

    operand: Expr
    type_name: str
    at: Span = _at()


Expr: TypeAlias = (
    Column | Literal | Negate | Not | Binary | And | Or | IsNull | In | Between | Like | Case | Call | Cast
)

# -------------------------------------------------------------------- windows


@dataclass(frozen=True)
class Sliding:
    """Events with times in (t - delay - width, t - delay]."""

    width: Ticks
    delay: Ticks = Ticks(0)
    at: Span = _at()


@dataclass(frozen=True)
class Tumbling:
    """Events with times in [start of the bucket of t - delay, t - delay]; buckets are aligned to the epoch."""

    width: Ticks
    delay: Ticks = Ticks(0)
    at: Span = _at()


@dataclass(frozen=True)
class Infinite:
    """Events with times up to t - delay."""

    delay: Ticks = Ticks(0)
    at: Span = _at()


@dataclass(frozen=True)
class LastEvents:
    """The last `count` counted events of the group, in the order of arrival."""

    count: int
    at: Span = _at()


Window: TypeAlias = Sliding | Tumbling | Infinite | LastEvents

# ----------------------------------------------------------------- statements


@dataclass(frozen=True)
class Item:
    """One aggregation in a SELECT: `percentile(amount, 0.9) AS p90`.

    `function` is spelled as in the text (functions are found without regard to case).
    `count(*)` has no arguments.
    """

    function: str
    args: tuple[Expr, ...]
    name: str | None = None
    at: Span = _at()


@dataclass(frozen=True)
class Statement:
    """One SELECT: items that share stream, filter, grouping and window."""

    items: tuple[Item, ...]
    stream: str
    where: Expr | None
    group_by: tuple[Column, ...]
    window: Window
    order_by: Column | None = field(default=None, compare=False)
    """The ORDER BY of the SQL form: the binder checks that it is the time column."""
    at: Span = _at()
