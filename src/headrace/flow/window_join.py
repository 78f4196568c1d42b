"""Two kinds of records of a stream, joined within each substream when it has ended: a window join that misses nothing.

```python
ten_s = hr.windows("ts", 10)
Entered = window_join(
    SCHEMA, by=ten_s, kind="kind", left="person", right="auction", on=("id", "seller"), how="semi",
    given={"window": "window", "id": "left.id", "name": "left.name"},
)
windows = events.tracked(by=ten_s, ends=hr.rising())
entered = flow.stage("join", Entered, windows, parallelism=4, route=Entered.route, schema=Entered.gives)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FlowError
from headrace.flow.hashing import can_hash, hash_rows
from headrace.flow.labelling import Labels
from headrace.flow.operators import Stage, empty
from headrace.flow.routing import Rebalance, Rescale, Route, Shuffle, custom
from headrace.flow.substreams import Tracked, Windows
from headrace.model.failures import problem_of
from headrace.model.moments import moment

Ints = npt.NDArray[np.int64]
How = Literal["inner", "left", "semi", "anti"]

_MOST_BATCHES: Final = 64
_MOST_RECORDS: Final = 1 << 16
"""Records that have come are looked at together: so many at most."""
_WINDOW: Final = "window"


def window_join(
    schema: pa.Schema,
    *,
    by: str | Labels,
    kind: str,
    left: Any,
    right: Any,
    on: str | tuple[str | Sequence[str], str | Sequence[str]],
    given: Mapping[str, str],
    how: How = "inner",
) -> type[WindowJoin]:
    """A class of `hr.Stage` for a stream of these columns that is tracked by the same `by`.

    `kind`   the column that tells both kinds apart, by its values `left` and `right`; others are left aside
    `on`     the columns that must be equal: of the left kind, and of the right; null equals nothing; one name for both
    `given`  what it gives, by name: "left.COLUMN", "right.COLUMN", or "window" for the substream itself
    `how`    "inner" gives every pair; "left" also what has no other, with nulls; "semi" each left one that has another,
             once; "anti" each that has none

    Records that belong to no substream are joined with nothing, and give nothing. What a window gives leaves when it
    has ended, in the order of its columns, whatever order it came in and wherever that was cut: the same always.

    Several tasks need `route=` its `route`, which brings records with equal keys together; `schema=` its `gives`.
    """
    on = (on, on) if isinstance(on, str) else on
    if not isinstance(on, Sequence) or len(on) != 2:
        raise FlowError(
            f"window_join(on={on!r}): give a column, or two: those of the left kind, and those of the right"
        )
    join = _checked(Join(by, kind, left, right, _names(on[0]), _names(on[1]), dict(given), how, schema))
    values = {"join": join, "route": custom(join.route), "gives": join.gives}
    return type(f"{left} joined with {right}", (WindowJoin,), values)


@dataclass(frozen=True)
class Join:
    """What is joined with what, of records with the columns of `schema`."""

    by: str | Labels
    kind: str
    left: Any
    right: Any
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    given: Mapping[str, str]
    how: How
    schema: pa.Schema

    @cached_property
    def window_type(self) -> pa.DataType:
        return Tracked(self.by).type_in(self.schema)

    @property
    def gives(self) -> pa.Schema:
        return pa.schema([pa.field(name, self._type(source)) for name, source in self.given.items()])

    @property
    def kept(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns that must be kept of each kind."""
        return self._kept("left", self.left_on), self._kept("right", self.right_on)

    def _kept(self, side: str, on: Sequence[str]) -> pa.Schema:
        names = dict.fromkeys([*on, *(column for of, column in map(_parted, self.given.values()) if of == side)])
        return pa.schema([self.schema.field(name) for name in names])

    def _type(self, source: str) -> pa.DataType:
        side, column = _parted(source)
        return self.window_type if side == _WINDOW else self.schema.field(column).type

    @property
    def route(self) -> Together:
        return Together(self.kind, self.left, self.left_on, self.right_on)

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, int, pa.RecordBatch]]:
        """Of each window and each kind, 0 for left: what there is of it, in its order."""
        labels = Tracked(self.by, label=self.window_type).labels_of(batch).dictionary_encode()
        codes, names = labels.indices.fill_null(-1).to_numpy(zero_copy_only=False), labels.dictionary.to_pylist()
        kinds = batch.column(self.kind)
        for side, (value, schema) in enumerate(zip((self.left, self.right), self.kept, strict=True)):
            is_wanted = pc.equal(kinds, value).fill_null(False).to_numpy(zero_copy_only=False) & (codes >= 0)
            rows = np.flatnonzero(is_wanted)
            if not len(rows):
                continue
            rows = rows[np.argsort(codes[rows], kind="stable")]
            taken, own = batch.select(schema.names).take(pa.array(rows)), codes[rows]
            starts = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), len(own)]
            for start, stop in pairwise(starts):
                yield names[own[start]], side, taken.slice(start, stop - start)

    def result(self, window: Any, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch | None:
        """Of all that a window has; None for nothing."""
        left_rows, right_rows = _pairs(self.how, *_codes(left, self.left_on, right, self.right_on))
        if not len(left_rows):
            return None
        taken = {"left": pa.array(left_rows), "right": pa.array(right_rows, mask=right_rows < 0)}
        columns = []
        for source in self.given.values():
            side, column = _parted(source)
            if side == _WINDOW:
                columns.append(pa.repeat(pa.scalar(window, self.window_type), len(left_rows)))
            else:
                columns.append((left if side == "left" else right).column(column).take(taken[side]))
        return _sorted(pa.RecordBatch.from_arrays(columns, schema=self.gives))


@dataclass(frozen=True)
class Together:
    """A route: records of both kinds with equal keys to one task."""

    kind: str
    left: Any
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch, tasks: int) -> Ints:
        is_left = pc.equal(batch.column(self.kind), self.left).fill_null(False)
        pairs = enumerate(zip(self.left_on, self.right_on, strict=True))
        keys = {str(at): pc.if_else(is_left, batch.column(own), batch.column(other)) for at, (own, other) in pairs}
        return (hash_rows(pa.record_batch(keys), list(keys)) % np.uint64(tasks)).astype(np.int64)

    @property
    def __name__(self) -> str:
        return f"key {', '.join(self.left_on)} = {', '.join(self.right_on)}"


class WindowJoin(Stage):
    """What `window_join` gives, with a `join` of its own. It keeps what open windows have, and nothing else."""

    join: ClassVar[Join]
    route: ClassVar[Route]
    gives: ClassVar[pa.Schema]

    @classmethod
    def reading_problem(cls, tracked: Sequence[Tracked | None], route: Route | None, tasks: int) -> str | None:
        """Why it would join something else than windows, with the fix. `tracked`: how its inputs are."""
        for each in tracked:
            if each is None:
                return "would join what it reads of no tracked stream with nothing; say stream.tracked(by=...)"
            if each.by != cls.join.by:
                return (
                    f"joins by {_by_text(cls.join.by)}, and what it reads is tracked by {_by_text(each.by)}: other "
                    f"windows would end than it joins; give both the same by=, and where that is a function, the same "
                    f"function object"
                )
        if tasks > 1 and (route is None or isinstance(route, Rebalance | Rescale | Shuffle)):
            return (
                f"runs in {tasks} tasks, and nothing brings what belongs together to one of them; give the stage the "
                f"route of its class: joined = hr.window_join(...), and route=joined.route"
            )
        return None

    def __init__(self) -> None:
        self._new: list[pa.RecordBatch] = []
        self._new_records = 0
        self._open: dict[Any, tuple[_Kept, _Kept]] = {}
        """By the `moment` of a window."""

    def on_batch(self, batch: pa.RecordBatch) -> None:
        self._new.append(batch)
        self._new_records += batch.num_rows
        if len(self._new) >= _MOST_BATCHES or self._new_records >= _MOST_RECORDS:
            self._sort_in()

    def on_ended(self, substream: Any) -> pa.RecordBatch | None:
        self._sort_in()
        kept = self._open.pop(moment(substream), None)
        if kept is None:
            return None
        left, right = (side.all(schema) for side, schema in zip(kept, self.join.kept, strict=True))
        return self.join.result(substream, left, right)

    def on_end(self) -> None:
        self._sort_in()
        if self._open:
            raise FlowError(
                f"{type(self).__name__}: all records have come, and window {next(iter(self._open))!r} has not ended; "
                f"let it read a tracked stream: stream.tracked(by=...), with the same by as the join"
            )

    def _sort_in(self) -> None:
        if not self._new_records:
            return
        batch = self._new[0] if len(self._new) == 1 else pa.concat_batches(self._new)
        self._new, self._new_records = [], 0
        for window, side, part in self.join.parts(batch):
            self._open.setdefault(moment(window), (_Kept(), _Kept()))[side].add(part)

    def snapshot(self) -> list[Any]:
        self._sort_in()
        schemas = self.join.kept
        return [
            [window, *(_written(side.all(schema)) for side, schema in zip(kept, schemas, strict=True))]
            for window, kept in self._open.items()
        ]

    def restore(self, state: list[Any]) -> None:
        for window, *sides in state:
            left, right = (_Kept([batch for batch in pa.ipc.open_stream(each) if batch.num_rows]) for each in sides)
            self._open[moment(window)] = left, right


@dataclass
class _Kept:
    """Records of one kind in one window."""

    parts: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, part: pa.RecordBatch) -> None:
        """Each part is more than twice as large as the next: so they are few, and no record is copied often."""
        self.parts.append(part)
        while len(self.parts) > 1 and self.parts[-2].num_rows <= 2 * self.parts[-1].num_rows:
            self.parts[-2:] = [pa.concat_batches(self.parts[-2:])]

    def all(self, schema: pa.Schema) -> pa.RecordBatch:
        self.parts = [pa.concat_batches(self.parts)] if len(self.parts) > 1 else self.parts
        return self.parts[0] if self.parts else empty(schema)


def _written(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


# -------------------------------------------------------------------------- join


def _codes(
    left: pa.RecordBatch, left_on: Sequence[str], right: pa.RecordBatch, right_on: Sequence[str]
) -> tuple[Ints, Ints]:
    """A number for each key, the same for equal ones of both sides; -1 where some of it is null."""
    found: Ints | None = None
    for own, other in zip(left_on, right_on, strict=True):
        coded = pa.concat_arrays([left.column(own), right.column(other)]).dictionary_encode()
        numbers = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if found is not None:
            is_null = (numbers < 0) | (found < 0)
            # Numbered anew, there are never more than records.
            numbers = np.unique(found * len(numbers) + numbers, return_inverse=True)[1].astype(np.int64)
            numbers[is_null] = -1
        found = numbers
    assert found is not None
    return found[: left.num_rows], found[left.num_rows :]


def _pairs(how: How, left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Rows of the left and of the right that belong together; -1 for none."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left, "left")
    counts = np.where(left < 0, 0, np.searchsorted(ordered, left, "right") - first)
    if how in ("semi", "anti"):
        rows = np.flatnonzero((counts > 0) == (how == "semi"))
        return rows, np.full(len(rows), -1, np.int64)
    is_alone = (counts == 0) & (how == "left")
    counts = counts + is_alone
    rows = np.repeat(np.arange(len(left)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = first[rows] + within
    others: Ints = np.full(len(rows), -1, np.int64)
    others[~is_alone[rows]] = order[places[~is_alone[rows]]]
    return rows, others


def _sorted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """By the columns that have an order; ties stay as they came."""
    keys = [(entry.name, "ascending") for entry in batch.schema if can_hash(entry.type)]
    return batch.take(pc.sort_indices(batch, sort_keys=keys)) if keys else batch


# ------------------------------------------------------------------------- check


def _by_text(by: str | Labels) -> str:
    return f'hr.windows("{by.column}", {by.size_us / 1e6:g})' if isinstance(by, Windows) else Tracked(by).name


def _names(on: str | Sequence[str]) -> tuple[str, ...]:
    return (on,) if isinstance(on, str) else tuple(on)


def _parted(source: str) -> tuple[str, str]:
    side, _, column = source.partition(".")
    return side, column


def _checked(join: Join) -> Join:
    """Raises FlowError that says what is wrong with it."""
    problem = Tracked(join.by).problem(join.schema) or _problem(join)
    if problem is not None:
        raise FlowError(f"window_join: {problem}")
    return join


def _problem(join: Join) -> str | None:
    known = ", ".join(join.schema.names)
    if join.how not in get_args(How):
        return f"how={join.how!r}; use {', '.join(map(repr, get_args(How)))}"
    for name in (join.kind, *join.left_on, *join.right_on):
        if name not in join.schema.names:
            return f"there is no column {name}; there are {known}"
    try:
        kinds = [pa.scalar(value, join.schema.field(join.kind).type) for value in (join.left, join.right)]
    except (pa.ArrowException, TypeError, ValueError) as error:
        return f"column {join.kind} has other values than {join.left!r} and {join.right!r}: {problem_of(error)}"
    if not all(kind.is_valid for kind in kinds) or kinds[0] == kinds[1]:
        return f"left={join.left!r} and right={join.right!r} must be two kinds"
    if not join.left_on or len(join.left_on) != len(join.right_on):
        return f"on= needs as many columns of the left as of the right, not {join.left_on} and {join.right_on}"
    for own, other in zip(join.left_on, join.right_on, strict=True):
        of, others = join.schema.field(own).type, join.schema.field(other).type
        if of != others or not can_hash(of) or pa.types.is_floating(of):
            return (
                f"on= joins {own}, which is {of}, with {other}, which is {others}; keys are of one type: whole "
                f"numbers, texts, dates, time stamps or decimals"
            )
    return _given_problem(join)


def _given_problem(join: Join) -> str | None:
    if not join.given:
        return 'given= says what it gives, for example {"id": "left.id", "window": "window"}'
    for name, source in join.given.items():
        side, column = _parted(source)
        if source == _WINDOW or (side in ("left", "right") and column in join.schema.names):
            if side == "right" and join.how in ("semi", "anti"):
                return f"{name} is {source}, and how={join.how!r} gives left records as they are"
            continue
        known = ", ".join(join.schema.names)
        return f'{name} is {source!r}; give "left.COLUMN", "right.COLUMN" or "window"; there are the columns {known}'
    return None
