"""Run a flow in a simulated world and compare it with its sequential run; find the smallest thing that goes wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.flow.copies import Replication
from headrace.flow.effects import Deliver
from headrace.flow.graph import Graph
from headrace.flow.queue_ends import QueueEnd, outside
from headrace.flow.sequential import run_sequentially
from headrace.flow.task import Task
from headrace.model import frames
from headrace.simulate.faults import KINDS, draw_faults
from headrace.simulate.world import Received, Setup, Violation, World


@dataclass(frozen=True)
class Failure:
    """A run that went wrong, and how to see it again."""

    setup: Setup
    problem: str
    trace: tuple[tuple[float, str, str], ...]

    def story(self, last: int = 30) -> str:
        faults = " ".join(map(str, self.setup.faults)) or "none"
        lines = [self.problem, f"seed {self.setup.seed}, {self.setup.workers} workers, faults: {faults}", ""]
        if len(self.trace) > last:
            lines.append(f"  … {len(self.trace) - last} lines before")
        lines += [f"  {at:9.3f} s  {who:<14} {what}" for at, who, what in self.trace[-last:]]
        return "\n".join(lines)


class Simulation:
    """Of one flow, under any number of seeds. `checks` are further things that must hold of what a sink has got.

    Sinks in `but` may get something else than in a sequential run, though the same after a restart. `watch` looks at
    what a sink is given, before any commit, and at the world by then.
    """

    def __init__(
        self,
        graph: Graph,
        checks: Sequence[Callable[[dict[str, list[Any]]], None]] = (),
        but: Sequence[str] = (),
        watch: Callable[[Deliver, World], None] | None = None,
    ):
        self.graph = graph
        self._checks = checks
        self._watch = watch
        self._expected = {
            name: _multiset(table.to_pylist()) for name, table in run_sequentially(graph).items() if name not in but
        }

    def setup(
        self,
        seed: int,
        kinds: Sequence[str] = tuple(KINDS),
        workers: int | None = None,
        replication: Replication | None = None,
    ) -> Setup:
        """All that a seed stands for."""
        copies = replication or Replication()
        count = workers if workers is not None else max(1 + seed % 4, copies.most)
        return Setup(seed, draw_faults(seed, kinds), count, (1, 3, 10)[seed % 3], copies)

    def run(self, setup: Setup) -> Failure | None:
        world = World(self.graph, setup)
        world.watch = self._watch
        try:
            received = world.run()
            found = {name: _got(world, received, name) for name in self._expected}
            for name, expected in self._expected.items():
                _compare(name, _multiset(found[name]), expected)
            for check in self._checks:
                check(found)
        except Exception as error:
            return Failure(setup, f"{type(error).__name__}: {error}", tuple(world.trace))
        return None

    def shrink(self, failure: Failure, most_runs: int = 300) -> Failure:
        """Fewer workers, fewer faults, until nothing can be left out any more."""
        runs = 0
        smaller = True
        while smaller and runs < most_runs:
            smaller = False
            for setup in _smaller(failure.setup):
                runs += 1
                found = self.run(setup)
                if found is not None:
                    failure, smaller = found, True
                    break
                if runs >= most_runs:
                    break
        return failure


def _got(world: World, received: Received, sink: str) -> list[Any]:
    """The records of a sink; those of a queue as a reader takes them."""
    end = world.graph.node(sink).sink
    if not isinstance(end, QueueEnd):
        return received.of(sink)
    found: list[Any] = []
    had: dict[int, int] = {}
    for content in world.disk.queue(outside(end.name)).frames:
        frame = frames.decode(content)
        if frame.first > had.get(frame.channel, 0):
            raise Violation(f"queue {end.name}: numbers are missing before {frame.first} of channel {frame.channel}")
        if frame.end > had.get(frame.channel, 0):
            part = frame.since(had.get(frame.channel, 0)).batch
            had[frame.channel] = frame.end
            found += part.to_pylist() if part is not None else []
    return found


def _smaller(setup: Setup) -> Iterator[Setup]:
    for at in range(len(setup.faults)):
        yield replace(setup, faults=setup.faults[:at] + setup.faults[at + 1 :])
    for workers in range(setup.replication.most, setup.workers):
        yield replace(setup, workers=workers)


def _multiset(records: list[Any]) -> Counter[str]:
    return Counter(json.dumps(record, sort_keys=True, default=str) for record in records)


def _compare(sink: str, found: Counter[str], expected: Counter[str]) -> None:
    lost, extra = expected - found, found - expected
    if not (lost or extra):
        return
    said = [f"sink {sink}: {found.total()} records, not {expected.total()}"]
    said += [f"{lost.total()} are missing, such as {next(iter(lost))}"] if lost else []
    said += [f"{extra.total()} are too many, such as {next(iter(extra))}"] if extra else []
    raise Violation("; ".join(said))


# ------------------------------------------------------------------ planted bugs


@contextmanager
def _forget(*names: str) -> Iterator[None]:
    """Tasks that do not remember something over a restart."""
    right = Task.restore

    def wrong(self: Task, values: Any, read: Any) -> None:
        right(self, {**values, **{name: type(values[name])() for name in names}}, read)

    Task.restore = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        Task.restore = right  # type: ignore[method-assign]


PLANTS: Final[dict[str, tuple[str, ...]]] = {
    "forget-routing": ("routed",),
    "forget-numbers": ("sent",),
    "forget-received": ("next",),
}
"""Mistakes to try the simulator with: what tasks forget."""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With a mistake in the machines, to see that it is found."""
    with ExitStack() as stack:
        if name is not None:
            stack.enter_context(_forget(*PLANTS[name]))
        yield
