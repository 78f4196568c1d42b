"""What is checked for determinism: stages, as they are drawn, what comes to them, and how they are run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.errors import FlowError, HeadraceError
from headrace.flow.batch_stages import ForBatch
from headrace.flow.builder import Flow
from headrace.flow.graph import Graph, Node
from headrace.flow.io import Feed, Opening, Source, SplitReader
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape, Wrapped
from headrace.flow.record_stages import ForRecord, Keyed
from headrace.flow.sequential import run_sequentially
from headrace.model.failures import name_of
from headrace.order import columns
from headrace.order.columns import Keys

Batches: TypeAlias = Sequence[pa.RecordBatch]
Event: TypeAlias = tuple[str, Any]
"""What comes to a stage: ("records", a batch), ("started", a substream) or ("ended", a substream)."""

RECORDS: Final = "records"
_ONE_BY_ONE: Final = 500
"""So many records come one by one, and the others in small batches: the check of many is to end, too."""


@dataclass(frozen=True)
class Case:
    """A stage, and what comes to it: once, and where its inputs may come in any order, in other ones as well."""

    stage: str
    behaviour: Behaviour
    outputs: Mapping[str, pa.Schema]
    orders: tuple[tuple[Event, ...], ...]

    def run(self, events: Sequence[Event]) -> dict[str, pa.Table]:
        """What a new copy of the stage gives, by output."""
        operator = self.behaviour.open(Shape(self.stage, self.outputs))
        calls = {RECORDS: operator.apply, "started": operator.started, "ended": operator.ended}
        found: dict[str, list[pa.RecordBatch]] = {output: [] for output in self.outputs}
        for kind, what in (*events, ("", None)):
            for output, batch in calls[kind](what) if kind else operator.finish():
                found[output].append(batch)
        return {output: pa.Table.from_batches(batches, self.outputs[output]) for output, batches in found.items()}


@dataclass(frozen=True)
class Variation:
    """One run of a stage: how it differs from the first one. `cause` is what a difference would come of."""

    cause: str
    cuts: str = "whole"
    later_s: int = 0
    seed: int = 0
    order: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a stage gave, or how it failed."""

    tables: dict[str, pa.Table]
    error: HeadraceError | None = None


# ----------------------------------------------------------------------- a stage


def case_of(
    stage: Any,
    batches: Batches | Mapping[str, Batches],
    *,
    name: str | None = None,
    by: str | tuple[str, ...] | None = None,
    any_interleaving: bool = False,
    **drawn: Any,
) -> Case:
    """A stage as it is given to `flow.stage`, or with `by` to `flow.keyed`. Raises FlowError as these do."""
    inputs = {"": list(batches)} if not isinstance(batches, Mapping) else {k: list(v) for k, v in batches.items()}
    given = [batch for each in inputs.values() for batch in each]
    if not given:
        raise FlowError(f"stage {name or stage!r}: there are no records to check it with; give some batches")
    flow = Flow("determinism")
    stream = flow.source("given", Given(given[0].schema, ()))
    if by is None:
        flow.stage(name or "stage", stage, stream, **drawn)
    else:
        flow.keyed(name or "stage", stage, stream, by=by, **drawn)
    node = flow.drawn(name or "stage")
    assert node.behaviour is not None
    orders = _orders(list(inputs.values())) if any_interleaving else [_in_turn(list(inputs.values()))]
    events = tuple(tuple((RECORDS, batch) for batch in order) for order in orders)
    return Case(name or name_of(stage), node.behaviour, {MAIN: node.schema, **node.sides}, events)


def _in_turn(inputs: list[list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    most = max(len(each) for each in inputs)
    return [each[at] for at in range(most) for each in inputs if at < len(each)]


def _orders(inputs: list[list[pa.RecordBatch]]) -> list[list[pa.RecordBatch]]:
    """Each input keeps its own order in all of them."""
    rng = random.Random(len(inputs))
    rows = [[batch.slice(at, 1) for batch in each for at in range(batch.num_rows)] for each in inputs]
    turns = [number for number, each in enumerate(rows) for _ in each]
    rng.shuffle(turns)
    each = [iter(found) for found in rows]
    return [_in_turn(inputs), [b for found in reversed(inputs) for b in found], [next(each[turn]) for turn in turns]]


# ------------------------------------------------------------------------ a flow


def cases_of(flow: Flow | Graph, batches: Batches | Mapping[str, Batches] | None) -> list[Case]:
    """Every stage of a flow that has a function or a class of a user, with what comes to it in a sequential run."""
    graph = _fed(flow.graph() if isinstance(flow, Flow) else flow, batches)
    events: dict[str, list[Event]] = {}
    own = [node for node in graph.nodes if isinstance(node.behaviour, ForBatch | ForRecord | Keyed)]
    seen = {node.name: _Watched(node.behaviour, events.setdefault(node.name, [])) for node in own if node.behaviour}
    nodes = tuple(replace(node, behaviour=seen.get(node.name, node.behaviour)) for node in graph.nodes)
    run_sequentially(Graph(graph.name, nodes))
    return [
        Case(node.name, node.behaviour, {MAIN: node.schema, **node.sides}, (tuple(events[node.name]),))
        for node in own
        if node.behaviour is not None and node.schema is not None
    ]


def _fed(graph: Graph, batches: Batches | Mapping[str, Batches] | None) -> Graph:
    sources = [node.name for node in graph.nodes if node.source is not None]
    if batches is not None and not isinstance(batches, Mapping):
        if len(sources) != 1:
            raise FlowError(f"flow {graph.name} has several sources; give batches by their names, {', '.join(sources)}")
        batches = {sources[0]: batches}
    unknown = [name for name in batches or () if name not in sources]
    if unknown:
        raise FlowError(f"flow {graph.name} has no source {unknown[0]}; it has {', '.join(sources)}")

    def fed(node: Node) -> Node:
        given = (batches or {}).get(node.name)
        if given is None or node.schema is None:
            return node
        return replace(node, source=Given(node.schema, tuple(batch.cast(node.schema) for batch in given)))

    return Graph(graph.name, tuple(fed(node) for node in graph.nodes))


@dataclass(frozen=True)
class Given(Source):
    """Batches, to one task of it."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _Reader(self.batches if opening.split == 0 else ())


class _Reader(SplitReader):
    def __init__(self, batches: Batches):
        self._batches, self._at = batches, 0

    def poll(self, most_records: int) -> Feed | None:
        if self._at == len(self._batches):
            return Feed(None, self._at, ended=True)
        self._at += 1
        return Feed(self._batches[self._at - 1], self._at)


@dataclass(frozen=True)
class _Watched(Behaviour):
    """Another behaviour, of which it is noted what comes to it."""

    inner: Behaviour
    events: list[Event]

    def open(self, shape: Shape) -> Operator:
        return _Watching(self.inner.open(shape), self.events)

    def open_ordered(self, shape: Shape, keys: Keys, with_path: bool) -> Operator:
        return _Watching(self.inner.open_ordered(shape, keys, with_path), self.events)

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        return self.inner.schema(stage, given)

    @property
    def is_stateful(self) -> bool:
        return self.inner.is_stateful

    @property
    def is_one_to_one(self) -> bool:
        return self.inner.is_one_to_one

    @property
    def may_multiply(self) -> bool:
        return self.inner.may_multiply

    def order_problem(self, given: pa.Schema | None) -> str | None:
        return self.inner.order_problem(given)

    def __str__(self) -> str:
        return str(self.inner)


class _Watching(Wrapped):
    def __init__(self, inner: Operator, events: list[Event]):
        super().__init__(inner)
        self._events = events

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        self._events.append((RECORDS, columns.without(batch)))
        return self.inner.apply(batch)

    def finish(self) -> Outputs:
        return self.inner.finish()

    def started(self, substream: Any) -> Outputs:
        self._events.append(("started", substream))
        return self.inner.started(substream)

    def ended(self, substream: Any) -> Outputs:
        self._events.append(("ended", substream))
        return self.inner.ended(substream)


# -------------------------------------------------------------------------- cuts


def cut(events: Sequence[Event], how: str, seed: int) -> list[Event]:
    """The same records in other batches: "whole" as few as can be, "single" one by one, "random" as a seed has it."""
    rng = random.Random(f"cuts {seed}")
    found: list[Event] = []
    run: list[pa.RecordBatch] = []
    for kind, what in (*events, ("", None)):
        if kind == RECORDS:
            run += [what] if what.num_rows else []
            continue
        if run:
            found += [(RECORDS, part) for part in _parts(pa.concat_batches(run), how, rng)]
            run = []
        found += [(kind, what)] if kind else []
    return found


def _parts(batch: pa.RecordBatch, how: str, rng: random.Random) -> list[pa.RecordBatch]:
    if how == "whole":
        return [batch]
    found, at = [], 0
    while at < batch.num_rows:
        size = 1 if how == "single" and at < _ONE_BY_ONE else rng.randint(1, 1 + rng.choice((3, 30, batch.num_rows)))
        found.append(batch.slice(at, size))
        at += size
    return found
