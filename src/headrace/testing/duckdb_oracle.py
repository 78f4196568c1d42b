"""The same questions to DuckDB: an oracle for a million rows.

A text becomes one SQL query with window frames. DuckDB's frames know no order of arrival among equal times, so times
must be distinct and events arrive in order of time. What DuckDB does differently is computed beside it and documented:

- sums and averages of doubles are `math.fsum` over each window (`ExactWindows.fsums`); DuckDB's own are rounded;
- averages of decimals are divided in integers and rounded half up; DuckDB's are doubles;
- `stdDev` of integers and decimals comes from exact integer sums; of doubles it is refused, as DuckDB's is not exact:
  ask `ExactWindows.answers` for chosen rows;
- `topK` sorts DuckDB's `histogram` of the frame; `prev` takes the second of the two newest.
"""

from __future__ import annotations

import math

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.language import format_expr, parse, type_of
from headrace.language.nodes import Infinite, Item, LastEvents, Literal, Sliding, Statement, Tumbling, Window
from headrace.testing.definitions import canonical, result_type
from headrace.testing.exact_windows import ExactWindows, Ints


def duckdb_table(text: str, table: pa.Table, *, time: str) -> pa.Table:
    """The rows of `table` in their order, plus one column for each metric of `text`, all named with AS.

    Times must be distinct and not null. For `avg` and `stdDev` the sums (of squares) must fit 64 bits, decimals
    counted without their point; an assertion says so where they do not.
    """
    times = table.column(time)
    assert times.null_count == 0, "every event needs a time"
    assert len(pc.unique(times)) == table.num_rows, "DuckDB needs distinct times"
    for n, statement in enumerate(parse(text)):
        columns = _asked(statement, table, time)
        exact = ExactWindows(statement, table, time) if any(_is_fsum(item, table) for item in statement.items) else None
        for item in statement.items:
            assert item.name is not None, f"metric {n} needs a name"
            column = _exact_doubles(exact, item) if exact is not None and _is_fsum(item, table) else columns[item.name]
            table = table.append_column(item.name, column)
    return table


def _exact_doubles(windows: ExactWindows, item: Item) -> pa.Array:
    sums, counts = windows.fsums(item.args[0])
    if canonical(item.function) == "sum":
        return pa.array(sums, pa.float64())
    means = (None if total is None else total / count for total, count in zip(sums, counts.tolist(), strict=True))
    return pa.array(means, pa.float64())


def _asked(statement: Statement, table: pa.Table, time: str) -> dict[str, pa.Array]:
    """The answers DuckDB gives to one statement, by name of the metric, in the order of the table."""
    items = [item for item in statement.items if not _is_fsum(item, table)]
    if not items:
        return {}
    query = sql(statement, items, table, time)
    with duckdb.connect() as connection:
        connection.register("events", table.append_column("row__", pa.array(range(table.num_rows), pa.int64())))
        answers = connection.sql(query).to_arrow_table()
    return {str(item.name): _finish(item, n, answers, table) for n, item in enumerate(items)}


def sql(statement: Statement, items: list[Item], table: pa.Table, time: str) -> str:
    """One query for the items: a column `m0`, `m1`, … for each, sorted by the number of the row."""
    keys = ", ".join(f'"{column.name}"' for column in statement.group_by)
    by = f"PARTITION BY {keys}" if keys else ""
    where = format_expr(statement.where) if statement.where is not None else "true"
    arguments = [f"{format_expr(item.args[0])} AS x{n}" for n, item in enumerate(items) if item.args]
    asked = [f"{_call(item, n, _argument_type(item, table))} AS m{n}" for n, item in enumerate(items)]
    return f"""
        WITH timed AS (
            SELECT {", ".join(["*", *arguments])}, epoch_us("{time}") AS t__, coalesce({where}, false) AS counts__
            FROM events
        ), numbered AS (
            SELECT *, count(*) FILTER (counts__) OVER ({by} ORDER BY t__) AS place__ FROM timed
        )
        SELECT {", ".join(asked)} FROM numbered WINDOW w AS ({by} {frame(statement.window)}) ORDER BY row__"""


def frame(window: Window) -> str:
    """ORDER BY and the frame of a window. Microseconds are whole numbers, so (t - D, t] is [t - D + 1, t]."""
    if isinstance(window, LastEvents):
        # Among the counted events: a row that is not counted has the place of the last one before it.
        return f"ORDER BY place__ RANGE BETWEEN {window.count - 1} PRECEDING AND CURRENT ROW"
    if isinstance(window, Sliding):
        oldest = f"{window.delay + window.width - 1}"
    elif isinstance(window, Tumbling):
        newest = f"(t__ - {window.delay})"
        oldest = f"({window.delay} + ({newest} % {window.width} + {window.width}) % {window.width})"
    else:
        assert isinstance(window, Infinite)
        oldest = "UNBOUNDED"
    return f"ORDER BY t__ RANGE BETWEEN {oldest} PRECEDING AND {window.delay} PRECEDING"


def _call(item: Item, n: int, kind: pa.DataType | None) -> str:
    """The aggregation over frame `w`, in a form that `_finish` turns into the contract's type."""
    over, x = "FILTER (counts__) OVER w", f"x{n}"
    if kind is None:
        return f"count(*) {over}"
    unscaled = f"(x{n} * {10**kind.scale})::HUGEINT" if pa.types.is_decimal(kind) else f"x{n}::HUGEINT"
    total, squares = (f"(sum({value}) {over})::DECIMAL(38, 0)" for value in (unscaled, f"{unscaled} * {unscaled}"))
    parameter = next((arg.value for arg in item.args[1:] if isinstance(arg, Literal)), None)
    shapes = {
        "count": f"count({x}) {over}",
        "sum": f"sum({x}) {over}",
        "avg": f"{{n: count({x}) {over}, s: {total}}}",
        "stdDev": f"{{n: count({x}) {over}, s: {total}, q: {squares}}}",
        "min": f"min({x}) {over}",
        "max": f"max({x}) {over}",
        "first": f"arg_min_null({x}, t__) {over}",
        "last": f"arg_max_null({x}, t__) {over}",
        "prev": f"(arg_max({{v: {x}}}, t__, 2) {over})[2].v",
        "countDistinct": f"count(DISTINCT {x}) {over}",
        "median": f"quantile_cont({x}::DOUBLE, 0.5) {over}",
        "percentile": f"quantile_cont({x}::DOUBLE, {parameter}) {over}",
        "topK": f"list_sort([{{c: -(e.value::BIGINT), v: e.key}} FOR e IN map_entries(histogram({x}) {over})])"
        f"[1:{parameter}]",
    }
    return shapes[canonical(item.function)]


def _finish(item: Item, n: int, answers: pa.Table, table: pa.Table) -> pa.Array:
    """DuckDB's column as the contract's type."""
    column = answers.column(f"m{n}").combine_chunks()
    argument = _argument_type(item, table)
    kind = result_type(item.function, argument)
    name = canonical(item.function)
    if argument is None:
        return column
    if name == "avg":
        return _averages(column, kind, argument)
    if name == "stdDev":
        return _deviations(column, 10**argument.scale if pa.types.is_decimal(argument) else 1)
    if name == "topK":
        return _tops(column, kind)
    return column.cast(kind)


def _averages(column: pa.StructArray, kind: pa.DataType, argument: pa.DataType) -> pa.Array:
    """From exact sums: integers as double(sum) / count, decimals in integers, rounded half up."""
    counts, sums, missing = _integers(column, "n", 2**62), *_integers_or_null(column, "s", 2**53)
    some = np.maximum(counts, 1)
    if pa.types.is_floating(kind):
        return pa.array(sums / some, kind, mask=missing)
    shift = 10 ** (kind.scale - argument.scale)
    assert np.abs(sums).max(initial=0) < 2**61 // shift, "sums of this size are beyond this oracle"
    means = np.sign(sums) * ((2 * np.abs(sums) * shift + some) // (2 * some))
    return _with_scale(pa.array(means, pa.int64(), mask=missing), kind)


def _with_scale(unscaled: pa.Array, kind: pa.DataType) -> pa.Array:
    """Unscaled integers as decimals: the same digits, read with the type's scale."""
    wide = unscaled.cast(pa.decimal128(38, 0))
    return pa.Array.from_buffers(kind, len(wide), wide.buffers(), wide.null_count)


def _deviations(column: pa.StructArray, unit: int) -> pa.Array:
    """The root of (n q - s²) / (n (n - 1)) in integers up to the division; `unit` is what one is in the unscaled ones.

    Rounded in the conversion to a double, the division and the root: within two units in the last place.
    """
    counts = _integers(column, "n", 2**31)
    most = math.isqrt(2**62 // max(1, int(counts.max(initial=0))))
    sums, _ = _integers_or_null(column, "s", 2**31)
    squares, _ = _integers_or_null(column, "q", most * most)
    above, below = counts * squares - sums * sums, counts * (counts - 1) * unit * unit
    return pa.array(np.sqrt(above / np.maximum(below, 1)), pa.float64(), mask=counts < 2)


def _integers(column: pa.StructArray, field: str, limit: int) -> Ints:
    """A field without nulls as int64, all smaller than `limit`: so that what follows cannot overflow."""
    values = np.asarray(column.field(field).cast(pa.int64()))
    assert np.abs(values).max(initial=0) < limit, "sums of this size are beyond this oracle"
    return values


def _integers_or_null(column: pa.StructArray, field: str, limit: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """A field as int64, zero for null, and where it is null."""
    values = column.field(field)
    filled = pa.StructArray.from_arrays([pc.fill_null(values, 0)], [field])
    return _integers(filled, field, limit), np.asarray(values.is_null())


def _tops(column: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """`[{c: -count, v: value}]` as `[{value, count}]`; a window without values has none."""
    filled = pc.if_else(pc.is_valid(column), column, pa.scalar([], column.type))
    entries = filled.flatten()
    structs = pa.StructArray.from_arrays(
        [entries.field("v").cast(kind.value_type.field("value").type), pc.negate(entries.field("c").cast(pa.int64()))],
        fields=list(kind.value_type),
    )
    lengths = np.asarray(pc.list_value_length(filled))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=kind)


def _argument_type(item: Item, table: pa.Table) -> pa.DataType | None:
    return type_of(item.args[0], table.schema) if item.args else None


def _is_fsum(item: Item, table: pa.Table) -> bool:
    """Is it a sum or an average of doubles? Their deviations DuckDB is not asked for at all."""
    name = canonical(item.function)
    doubles = bool(item.args) and pa.types.is_floating(_argument_type(item, table))
    if doubles and name == "stdDev":
        raise ValueError("stdDev of doubles: ask ExactWindows.answers, DuckDB's is not exact")
    return bool(doubles and name in ("sum", "avg"))
