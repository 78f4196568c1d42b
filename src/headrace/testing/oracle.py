"""A literal, slow implementation of `measure`: the yardstick for every other one.

For every event it looks at all events, keeps those that the definition of the window names, and computes each
aggregation from nothing (`headrace.testing.definitions`). Time grows with the square of the number of rows:
use it for some hundred rows, and `headrace.testing.duckdb_oracle` for a million.

```python
expected = oracle_table("SELECT sum(x) AS s FROM t GROUP BY k OVER sliding 5m", table, time="ts", id="txn")
```
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.language import evaluate, parse, type_of
from headrace.language.nodes import Expr, Infinite, Item, LastEvents, Literal, Sliding, Statement, Tumbling, Window
from headrace.model.ticks import FARTHEST
from headrace.testing.definitions import ULPS, answer, canonical, identity, order, result_type


def oracle_table(
    text: str | Sequence[Statement], table: pa.Table, *, time: str, id: str | None = None, arrival: str | None = None
) -> pa.Table:
    """The rows of `table` in their order, plus one column for each metric of `text`.

    Names must be spelled as in the table and every metric needs an AS. The order of arrival, which is (arrival, time,
    id), must be total: the oracle takes no sides between rows that tie, it refuses them with a ValueError.
    """
    return Oracle(text, table, time=time, id=id, arrival=arrival).table()


@dataclass(frozen=True)
class Event:
    """A row that takes part: its number in the table, its place in the order of arrival, its time in microseconds."""

    row: int
    place: int
    time: int


@dataclass(frozen=True)
class Question:
    """One metric, with what each row of the table brings to it."""

    name: str
    function: str
    parameters: tuple[float, ...]
    window: Window
    keys: list[tuple[Any, ...]]
    counted: list[bool]
    values: list[Any]
    type: pa.DataType


class Oracle:
    """The brute-force answers of one text over one table, and the reasons for them."""

    def __init__(
        self,
        text: str | Sequence[Statement],
        table: pa.Table,
        *,
        time: str,
        id: str | None = None,
        arrival: str | None = None,
    ):
        self.input = table
        statements = parse(text) if isinstance(text, str) else text
        self.events = arrival_order(table, time, id, arrival)
        self.questions = [_question(item, statement, table) for statement in statements for item in statement.items]

    def table(self) -> pa.Table:
        """The input and one column for each metric."""
        result = self.input
        for question in self.questions:
            column = pa.array(self.answers(question), question.type)
            result = result.append_column(question.name, column)
        return result

    def answers(self, question: Question) -> list[Any]:
        """One answer for each row of the table; null for a row without a time."""
        answers: list[Any] = [None] * self.input.num_rows
        for event in self.events:
            values = [question.values[other.row] for other in self.window(question, event)]
            answers[event.row] = answer(question.function, values, question.parameters, question.type, question.name)
        return answers

    def window(self, question: Question, event: Event) -> list[Event]:
        """The events that the answer to `event` is over, oldest first."""
        arrived = [
            other
            for other in self.events
            if other.place <= event.place
            and question.counted[other.row]
            and question.keys[other.row] == question.keys[event.row]
        ]
        if isinstance(question.window, LastEvents):
            return arrived[-question.window.count :]
        inside = [other for other in arrived if in_window(question.window, other.time, event.time)]
        return sorted(inside, key=lambda other: (other.time, other.place))

    def inputs(self, metric: str, row: int) -> list[tuple[int, Any]]:
        """For a failure message: (time, argument) of every event in the window of `row`."""
        question = next(question for question in self.questions if question.name == metric)
        event = next((event for event in self.events if event.row == row), None)
        if event is None:
            return []
        return [(other.time, question.values[other.row]) for other in self.window(question, event)]

    def ulps(self) -> dict[str, int]:
        """For each metric, how far a double may be from the exact answer, in units in the last place."""
        return {question.name: ULPS.get(canonical(question.function), 0) for question in self.questions}


def in_window(window: Window, time: int, now: int) -> bool:
    """Is `time` in the window of an event at `now`?"""
    if isinstance(window, LastEvents):
        raise TypeError("a count window knows no times")
    newest = now - window.delay
    if isinstance(window, Sliding):
        return newest - window.width < time <= newest
    if isinstance(window, Tumbling):
        return newest // window.width * window.width <= time <= newest
    assert isinstance(window, Infinite)
    return time <= newest


def arrival_order(table: pa.Table, time: str, id: str | None, arrival: str | None) -> list[Event]:
    """The rows that have a time (and an arrival), in the order in which they arrived.

    A time farther from the epoch than FARTHEST is as good as none.
    """
    times = [
        None if moment is None or abs(moment) > FARTHEST else moment for moment in microseconds(table.column(time))
    ]
    columns = [
        *([table.column(arrival).to_pylist()] if arrival is not None else []),
        times,
        *([table.column(id).to_pylist()] if id is not None else []),
    ]
    rows = [row for row in range(table.num_rows) if times[row] is not None and columns[0][row] is not None]
    keys = {row: tuple(order(column[row]) for column in columns) for row in rows}
    rows.sort(key=lambda row: keys[row])
    for older, newer in itertools.pairwise(rows):
        if keys[older] == keys[newer]:
            raise ValueError(f"rows {older} and {newer} arrive together; give the oracle an id that tells them apart")
    return [Event(row, place, moment) for place, row in enumerate(rows) if (moment := times[row]) is not None]


def microseconds(times: pa.ChunkedArray) -> list[int | None]:
    """Moments as whole microseconds since the epoch."""
    zone = getattr(times.type, "tz", None)
    return pc.cast(times, pa.timestamp("us", zone)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _question(item: Item, statement: Statement, table: pa.Table) -> Question:
    if item.name is None:
        raise ValueError(f"{item.function}: the oracle wants a name for every metric, as in `{item.function}(…) AS n`")
    rows = range(table.num_rows)
    keys = [table.column(column.name).to_pylist() for column in statement.group_by]
    passes = _evaluated(statement.where, table) if statement.where is not None else [True for _ in rows]
    counted = [row for row in rows if passes[row] is True]
    values: list[Any] = [None for _ in rows]
    if item.args:
        # Only for the rows that pass: WHERE may be there to keep an argument from failing.
        argued = _evaluated(item.args[0], table.take(pa.array(counted, pa.int64())))
        for row, value in zip(counted, argued, strict=True):
            values[row] = value
    return Question(
        name=item.name,
        function=item.function if item.args else "count(*)",
        parameters=tuple(_constant(arg) for arg in item.args[1:]),
        window=statement.window,
        keys=[tuple(identity(column[row]) for column in keys) for row in rows],
        counted=[passed is True for passed in passes],
        values=values,
        type=result_type(item.function, type_of(item.args[0], table.schema) if item.args else None),
    )


def _evaluated(expr: Expr, table: pa.Table) -> list[Any]:
    """The expression for each row."""
    batches = table.combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    return evaluate(expr, batch).to_pylist()  # type: ignore[no-any-return]


def _constant(expr: Expr) -> float:
    if not isinstance(expr, Literal) or isinstance(expr.value, str | None):
        raise ValueError(f"a parameter must be a number, not {expr}")
    return float(expr.value)
