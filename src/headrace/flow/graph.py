"""A flow as a frozen graph: sources, stages and sinks, and the arrows between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from headrace.flow.io import Sink, Source
from headrace.flow.operators import MAIN, Behaviour
from headrace.flow.routing import Route
from headrace.flow.substreams import Tracked


@dataclass(frozen=True)
class Ordering:
    """In the order of the source; `by` is a column of the sources that comes before their own order.

    `wait_s` is how long a record waits for those before it, if not for as long as it takes.
    """

    by: str | None = None
    wait_s: float | None = None

    def __str__(self) -> str:
        order = "in source order" if self.by is None else f"in the order of {self.by}"
        return order if self.wait_s is None else f"{order} as far as {self.wait_s:g} s of waiting make it"


@dataclass(frozen=True)
class Input:
    """An arrow of the graph: from an output of a node, by a route. `back` closes a declared loop.

    `ordering`: what comes is put in order first.
    """

    node: str
    output: str
    route: Route | None
    back: bool = False
    ordering: Ordering | None = None
    tracked: Tracked | None = None
    """Its reader is told of substreams."""
    notices: bool = False
    """To a tracker or from it: no data."""
    of: tuple[str, str] | None = None
    """Where it gives the ends of a stream: which node, which output."""


@dataclass(frozen=True)
class Node:
    """A source, a stage or a sink."""

    name: str
    parallelism: int
    inputs: tuple[Input, ...] = ()
    source: Source | None = None
    behaviour: Behaviour | None = None
    sink: Sink | None = None
    schema: pa.Schema | None = None
    """Of what it gives; None until it is known."""
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "source" if self.source is not None else "sink" if self.sink is not None else "stage"

    def schema_of(self, output: str) -> pa.Schema | None:
        return self.schema if output == MAIN else self.sides[output]


@dataclass(frozen=True)
class Graph:
    """A flow that will not change any more. Nodes are in the order in which they were drawn."""

    name: str
    nodes: tuple[Node, ...]
    agreement: str = "queue"
    """How copies of a task agree on the order of their inputs: by one queue, in turns, or by a leader."""

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node:
        return self._by_name[name]

    def consumers(self, name: str) -> list[tuple[Node, Input]]:
        return [(node, arrow) for node in self.nodes for arrow in node.inputs if arrow.node == name]


def reached(starts: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """All that can be reached from these names, with themselves."""
    found: set[str] = set()
    waiting = [*starts]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += following(each)
    return found
