"""Many machines in virtual time: the tree's own workers, one task a node, with costs that were measured on this one.

What workers do is done (results are checked); how long it takes is reckoned: every batch that a node takes, every run
of events, every fork, join and message has its measured cost, and a message is under way for as long as the network
takes. A node does one thing at a time, as `GangTask` has it: it takes what it was sent, reads its next batch, works,
and sends; what it sends leaves before its leaf works on.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from bench.support.tree_costs import Costs
from headrace.synchronize.mailbox import LAST, Events, Key
from headrace.synchronize.node import Message
from headrace.synchronize.plan import Plan
from headrace.synchronize.tree import TreeTask

NETWORK_S: Final = 100e-6
"""One way between two nodes of a data centre."""
LIMIT_ROWS: Final = 1 << 16
_TELLINGS: Final = 16


@dataclass(frozen=True)
class Part:
    """What a source of a node has to say at a time: events, or only how far it is."""

    due_s: float
    source: int
    events: Events | None
    key: Key


@dataclass(frozen=True)
class Done:
    """An event of an inner worker that was updated with."""

    time: int
    at_s: float


class Node:
    """One machine with its task."""

    def __init__(self, cluster: Cluster, task: int, sources: Sequence[str], parts: Iterator[Part]):
        self.cluster, self.task = cluster, task
        self.clock = 0.0
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.heard: list[tuple[float, int, Message]] = []
        self.parts = deque(parts)
        self.read: Key = (-1, -1)
        self._told_rows = 0
        self.tree = TreeTask(cluster.plan, task, cluster.schema, sources)
        self.tree.flush = self.flush
        self._wrap()

    def _wrap(self) -> None:
        """Whatever the program does costs time."""
        running, costs = self.tree._running, self.cluster.costs
        run, run_rows, fork, join = running.run, running.run_rows, running.fork, running.join
        receive = self.tree.receive
        line = costs.columnar if self.cluster.is_columnar else costs.update

        def timed_run(state: Any, batch: pa.RecordBatch) -> Any:
            self.spend("update", line.of(batch.num_rows))
            return run(state, batch)

        def timed_rows(state: Any, batch: pa.RecordBatch) -> Any:
            """Of an inner worker."""
            self.spend("update", costs.update.of(batch.num_rows))
            self.cluster.done.append(Done(batch.column("time")[0].as_py(), self.clock))
            return run_rows(state, batch)

        def timed_fork(*given: Any) -> Any:
            self.spend("fork and join", costs.fork)
            return fork(*given)

        def timed_join(*given: Any) -> Any:
            self.spend("fork and join", costs.join)
            return join(*given)

        def timed_receive(message: Message) -> None:
            self.spend("messages", costs.handle)
            receive(message)

        hands: Any = running
        hands.run, hands.run_rows, hands.fork, hands.join = timed_run, timed_rows, timed_fork, timed_join
        tree: Any = self.tree
        tree.receive = timed_receive

    def spend(self, what: str, seconds: float) -> None:
        self.clock += seconds
        self.spent[what] += seconds

    def flush(self) -> None:
        costs, said = self.cluster.costs, set()
        for task, message in self.tree.outbox:
            self.spend("messages", costs.encode + (0.0 if task in said else costs.say))
            said.add(task)
            self.cluster.send(task, self.clock, message)
        self.tree.outbox.clear()

    # -------------------------------------------------------------------- steps

    @property
    def may_read(self) -> bool:
        """As in a gang: while few rows wait, or if none has read less far."""
        return bool(self.parts) and (self.tree.rows <= LIMIT_ROWS or self.read <= self.cluster.least_read)

    def next_at(self) -> float | None:
        """When there is something to do; None where there is nothing."""
        times = [self.heard[0][0]] if self.heard else []
        times += [self.parts[0].due_s] if self.may_read else []
        return max(self.clock, min(times)) if times else None

    def step(self) -> None:
        costs = self.cluster.costs
        at = self.next_at()
        assert at is not None
        self.spent["waiting"] += at - self.clock
        self.clock = at
        while self.heard and self.heard[0][0] <= self.clock:
            _, _, message = heapq.heappop(self.heard)
            self.spend("messages", costs.hear + costs.decode)
            self.tree.receive(message)
        if self.may_read and self.parts[0].due_s <= self.clock:
            self._take(self.parts.popleft())
        self.cluster.given += self.tree.work()
        self.flush()

    def _take(self, part: Part) -> None:
        costs = self.cluster.costs
        if part.events is not None:
            # The last look comes with no batch; each worker here looks.
            self.spend("reading", costs.take.of(len(part.events)))
            self.tree.push(part.source, part.events)
            self._told_rows += len(part.events)
            if self._told_rows * _TELLINGS > LIMIT_ROWS:
                self._told_rows = 0
                self.spend("messages", costs.say * (self.cluster.plan.tasks - 1))
        else:
            self.spend("messages", costs.hear + costs.handle)
        self.read = max(self.read, part.key)
        self.tree.complete(part.source, part.key)


class Cluster:
    """Nodes, and what is under way between them."""

    def __init__(self, plan: Plan, schema: pa.Schema, costs: Costs, is_columnar: bool, network_s: float = NETWORK_S):
        self.plan, self.schema, self.costs, self.is_columnar = plan, schema, costs, is_columnar
        self._network_s = network_s
        self.nodes: list[Node] = []
        self.given: list[pa.RecordBatch] = []
        self.done: list[Done] = []
        self.messages = 0

    def add(self, sources: Sequence[str], parts: Iterator[Part]) -> None:
        self.nodes.append(Node(self, len(self.nodes), sources, parts))

    def send(self, task: int, at_s: float, message: Message) -> None:
        # Numbers keep those of one line in their order.
        self.messages += 1
        heapq.heappush(self.nodes[task].heard, (at_s + self._network_s, self.messages, message))
        self._wake(self.nodes[task])

    @property
    def least_read(self) -> Key:
        return min((node.read for node in self.nodes if node.parts), default=LAST)

    def _wake(self, node: Node) -> None:
        at = node.next_at()
        if at is not None:
            heapq.heappush(self._agenda, (at, node.task))

    def run(self) -> float:
        """Seconds of virtual time until all is done. Raises AssertionError where it gets stuck."""
        self._agenda: list[tuple[float, int]] = []
        for node in self.nodes:
            node.tree.start(self.plan.space.program.init())
            node.flush()
        while True:
            for node in self.nodes:
                self._wake(node)
            if not self._agenda:
                break
            while self._agenda:
                at, task = heapq.heappop(self._agenda)
                due = self.nodes[task].next_at()
                if due is not None and due <= at:
                    self.nodes[task].step()
                    self._wake(self.nodes[task])
        if not all(node.tree.is_done for node in self.nodes):
            raise AssertionError("the tree is stuck")
        return max(node.clock for node in self.nodes)

    def shares(self, task: int) -> dict[str, float]:
        """What a node spent its time with."""
        spent = self.nodes[task].spent
        total = sum(spent.values()) or 1.0
        return {what: seconds / total for what, seconds in spent.items()}


def at_once(events: Events, rows: int) -> Iterator[Part]:
    """As fast as a node takes them: batches of so many rows, and that nothing more will come."""
    for start in range(0, len(events), rows):
        part = events.slice(start, min(start + rows, len(events)))
        yield Part(0.0, 0, part, part.key(len(part) - 1))
    yield Part(0.0, 0, None, LAST)
