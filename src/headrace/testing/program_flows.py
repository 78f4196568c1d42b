"""The programs of `headrace.demo.programs` in flows that are drawn at random, in simulated worlds."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.demo.programs import PROGRAMS, Outliers
from headrace.flow.builder import Flow, Stream
from headrace.flow.graph import Graph
from headrace.flow.routing import rebalance
from headrace.flow.sinks import callback
from headrace.flow.sources import generate
from headrace.simulate.check import Failure, Simulation
from headrace.synchronize.program import Program
from headrace.synchronize.sequential import run_sequentially
from headrace.testing.trees import rows_of

TINY: Final[dict[str, dict[str, int]]] = {
    "key_counters": {"increments": 48, "increments_per_reset": 8, "keys": 3, "streams": 2},
    "event_windows": {"windows": 4, "values_per_window": 6, "streams": 2},
    "page_views": {"views": 48, "views_per_update": 8},
    "fraud": {"windows": 4, "transactions_per_window": 8},
    "outliers": {"windows": 3, "connections_per_window": 10, "streams": 2},
    "smart_home": {"slices": 3, "loads_per_slice": 1, "houses": 2},
}
LEAVES: Final = (1, 2, 4, 8)


def program_of(name: str) -> Program:
    """With few events, an outlier has to be found among few."""
    return Outliers(support=2, times=1) if name == "outliers" else PROGRAMS[name].program()


def events_by_stream(name: str, seed: int, ties: bool) -> list[pa.RecordBatch]:
    events = PROGRAMS[name].generate(**TINY[name], seed=seed, ties=ties)
    streams = np.array(events.column("stream").to_pylist(), object)
    rows = [pa.array(np.flatnonzero(streams == each)) for each in sorted(set(streams))]
    return [events.take(each).combine_chunks().to_batches()[0] for each in rows]


def in_order(streams: list[pa.RecordBatch]) -> pa.Table:
    """As a flow takes them: by time, by stream, and as they come."""
    whole = pa.Table.from_batches(streams)
    numbers = np.repeat(np.arange(len(streams)), [each.num_rows for each in streams])
    return whole.take(pa.array(np.lexsort((numbers, whole.column("time").to_numpy()))))


def rates_of(name: str, streams: list[pa.RecordBatch]) -> dict[Any, float]:
    """How often each tag comes."""
    tag: Any = PROGRAMS[name].program().tag  # type: ignore[attr-defined]
    names = [tag] if isinstance(tag, str) else list(tag)
    rows = [row for part in streams for row in zip(*(part.column(each).to_pylist() for each in names), strict=True)]
    counts = Counter(row[0] if len(names) == 1 else row for row in rows)
    return {each: float(count) for each, count in counts.items()}


def _piece(rows: pa.RecordBatch, first: int, count: int) -> pa.RecordBatch:
    return rows.slice(first, count)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def program_flow(name: str, seed: int, leaves: int) -> tuple[Graph, Counter[tuple[Any, ...]]]:
    """A source for each stream, of which some are shared out to two tasks; and what a sink must get."""
    rng = random.Random(f"program {name} {seed} {leaves}")
    streams = events_by_stream(name, seed, ties=rng.random() < 0.7)
    program = program_of(name)
    flow = Flow(f"{name}-{seed}".replace("_", "-"))
    drawn: list[Stream] = []
    taken: list[pa.RecordBatch] = []
    for number, rows in enumerate(streams):
        stream = flow.source(f"s{number}", generate(partial(_piece, rows), rows.num_rows))
        taken.append(rows)
        if rng.random() < 0.2:
            stream = flow.stage(f"spread{number}", _same, stream, parallelism=2, route=rebalance())
            taken[-1:] = [rows.take(pa.array(np.arange(at, rows.num_rows, 2))) for at in (0, 1)]
        drawn.append(stream)
    is_known = name == "smart_home" or rng.random() < 0.5
    rates = rates_of(name, streams) if is_known else None
    # Times of smart homes are in microseconds, and minutes apart.
    beat = rng.choice((1, 8, 64)) * (60_000_000 if name == "smart_home" else 1)
    given = flow.synchronize("tree", program, *drawn, parallelism=leaves, rates=rates, heartbeat=beat)
    flow.sink(
        "out", given, callback(_ignored), parallelism=rng.choice((None, 1)), route=rng.choice((None, rebalance()))
    )
    return flow.graph(), rows_of(run_sequentially(program, in_order(taken))[1])


def check_program_flow(seed: int) -> Failure | None:
    """With the faults of the seed: a sink gets what the sequential program gives, in any order."""
    names = list(PROGRAMS)
    graph, expected = program_flow(names[seed % len(names)], seed, LEAVES[seed // len(names) % len(LEAVES)])

    def as_sequential(found: dict[str, list[Any]]) -> None:
        rows = Counter(tuple(row.values()) for row in found["out"])
        assert rows == expected, f"{rows - expected} are too many, {expected - rows} are missing"

    simulation = Simulation(graph, [as_sequential])
    return simulation.run(simulation.setup(seed))
