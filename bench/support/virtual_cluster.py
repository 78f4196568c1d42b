"""A flow on many machines in virtual time: the real workers and the real coordinator, with costs measured on this one.

What workers do is done, and can be checked; how long it takes is reckoned. A machine has one worker, which does one
thing at a time, as `flow/host.py` has it: it looks at its sources and queues, gives each task what has come, and
ticks; where few records came it looks again only after a while. Every look, frame and record has its cost. What is
appended can be read after the latency of the network. Nothing is lost and nobody dies; queues have room for everything.

Frames are passed as they are, and not as bytes: to encode and to decode them is in their cost. What a stage reckons is
not: the costs are for stages that do nothing. With `is_real` frames are bytes, and each thing costs the time of the
processor that it took just now, stages and all: never the same twice, and for flows that do more. Queues and the
network have the measured costs in any case.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from bench.support.virtual_costs import Costs, whole
from headrace.flow import effects as fx
from headrace.flow.coordinator import Coordinator
from headrace.flow.graph import Graph
from headrace.flow.host import FEW_RECORDS, PACE_S
from headrace.flow.io import Opening, SplitReader
from headrace.flow.plan import Plan, make_plan
from headrace.flow.queue_ends import QueueEnd
from headrace.flow.worker import Pace, Worker
from headrace.flow.worker_setup import BATCH_RECORDS
from headrace.model import frames
from headrace.model.pauses import few_pauses
from headrace.queues.protocol import Entry

NETWORK_S: Final = 100e-6  # one way between two machines of a data centre
_SAFE_S: Final = 5e-3  # a commit, in another thread
_NEVER: Final = float("inf")
_GOLDEN: Final = 0.6180339887


Service = Callable[[str, frames.Frame], tuple[str, int]]


def no_service(queue: str, frame: frames.Frame) -> tuple[str, int]:
    return "", 0


@dataclass
class Tally:
    """What was sent. Keys are the kind of a frame and its queue; `between` is what went to another machine."""

    frames: Counter[tuple[str, str]] = field(default_factory=Counter)
    between: Counter[tuple[str, str]] = field(default_factory=Counter)
    service: Counter[str] = field(default_factory=Counter)
    """What is there only for tracking, by what it is."""
    service_between: Counter[str] = field(default_factory=Counter)
    service_frames: Counter[str] = field(default_factory=Counter)
    """Frames that have nothing else."""

    def of_kind(self, kind: str) -> int:
        return sum(count for (each, _), count in self.frames.items() if each == kind)


@dataclass(frozen=True)
class Given:
    """Records that a task had from its source, when it had sent them on; or that a sink got."""

    at_s: float
    task: str
    node: str
    batch: pa.RecordBatch


class Node:
    """A machine with its worker."""

    def __init__(self, cluster: VirtualCluster, start: fx.StartWorker):
        self.cluster, self.number, self.epoch = cluster, start.worker, start.epoch
        self.worker = Worker(cluster.plan, start.worker, start.epoch, start.tasks, cluster.pace)
        self.clock, self.busy_s, self.scheduled_s, self._paced_s = 0.0, 0.0, _NEVER, 0.0
        self.slowness, self.has_left = cluster.slowness(start.worker), False
        self.arrived, self.heard = list[tuple[float, int, str, Any]](), list[tuple[float, int, fx.Stimulus]]()
        self._positions: Counter[str] = Counter()
        # Machines start at different moments: no two tick or commit at the same one.
        ago = 1 - start.worker * _GOLDEN % 1
        self._ticked_s = -ago * cluster.tick_s
        self.worker._saved_at = dict.fromkeys(start.tasks, -ago * cluster.pace.commit_s)
        self._readers: dict[str, SplitReader] = {}
        self._due: dict[str, float] = {}
        for name, task in self.worker.tasks.items():
            assert cluster.is_real or not task.plan.merges, f"{name} merges: what that costs is known of real runs only"
            source = cluster.plan.graph.node(task.plan.vertex.name).source
            if source is not None and not isinstance(source, QueueEnd):
                splits = task.plan.vertex.parallelism
                opening = Opening(cluster.plan.graph.name, name, task.plan.index, splits, 0, lambda: self.clock)
                self._readers[name], self._due[name] = source.open(opening, None), 0.0

    def hear(self, stimulus: fx.Stimulus, at_s: float) -> None:
        heapq.heappush(self.heard, (at_s, self.cluster.count(), stimulus))

    def next_at(self) -> float:
        """When there is something to do."""
        at = min(self._ticked_s + self.cluster.tick_s, *self._due.values(), _NEVER)
        at = min(at, self.arrived[0][0]) if self.arrived else at
        at = min(at, self.heard[0][0]) if self.heard else at
        return max(self.clock, self._paced_s, at)

    def step(self, began: float) -> None:
        """Look at everything once."""
        self.clock, had = began, self.worker.records_in
        self._spend(self.cluster.costs.look)
        while self.heard and self.heard[0][0] <= began:
            self._give(heapq.heappop(self.heard)[2])
        self._feed(began)
        found: dict[str, list[Entry]] = {}
        while self.arrived and self.arrived[0][0] <= began:
            _, _, queue, content = heapq.heappop(self.arrived)
            self._positions[queue] += 1
            found.setdefault(queue, []).append(Entry(queue, content, self._positions[queue]))
        for queue, entries in found.items():
            self._spend(self.cluster.costs.read * len(entries))
            self._give(fx.Arrived(queue, entries))
        if began >= self._ticked_s + self.cluster.tick_s:
            self._ticked_s = self.clock
            self._give(fx.Ticked(self.clock))
        if 0 < self.worker.records_in - had < FEW_RECORDS:
            self._paced_s = began + PACE_S

    def _feed(self, now_s: float) -> None:
        for task in [task for task in self.worker.sources(()) if self._due[task] <= now_s]:
            feed = self._readers[task].poll(BATCH_RECORDS)
            if feed is None:
                # At least a microsecond: a moment may be due, and not quite be there.
                self._due[task] = now_s + max(1e-6, self._readers[task].due_s())
                continue
            self._give(fx.Fed(task, feed))
            if feed.batch is not None:
                self.cluster.fed.append(Given(self.clock, task, "", feed.batch))
            if feed.ended:
                del self._due[task]

    def _spend(self, seconds: float) -> None:
        self.clock += seconds * self.slowness
        self.busy_s += seconds * self.slowness

    def _give(self, stimulus: fx.Stimulus) -> None:
        if self.has_left:
            return
        start = time.thread_time()
        effects = self.worker.on(stimulus)
        took, tasks = time.thread_time() - start, len(self.worker.tasks)
        self._spend(took if self.cluster.is_real else self.cluster.costs.of(stimulus, effects, tasks))
        for effect in effects:
            self._act(effect)

    def _act(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Append):
            self._spend(self.cluster.costs.append)
            self.cluster.send(self, effect)
        elif isinstance(effect, fx.Deliver):
            self.cluster.delivered.append(Given(self.clock, effect.task, effect.node, effect.batch))
        elif isinstance(effect, fx.Save):
            self.hear(fx.Saved(effect.snapshot.task, effect.snapshot.version), self.clock + _SAFE_S)
        elif isinstance(effect, fx.Report):
            self.cluster.tell_driver(fx.Reported(effect.message), self.clock)
        elif isinstance(effect, fx.Leave):
            self.has_left = True
            self.cluster.tell_driver(fx.Exited(self.number, self.epoch), self.clock)
        else:
            assert isinstance(effect, fx.Acknowledge), f"an effect that is not known here: {effect}"


class VirtualCluster:
    """`run` it, and see what it has then: `tally`, `fed`, `delivered`, `busy`."""

    def __init__(
        self,
        graph: Graph,
        workers: int,
        costs: Costs,
        *,
        network_s: float = NETWORK_S,
        tick_s: float | None = None,
        pace: Pace | None = None,
        service: Service = no_service,
        slowness: Callable[[int], float] = lambda worker: 1.0,
        is_real: bool = False,
    ):
        """`service`: what in a frame of a queue is there only for tracking, and how many messages. `slowness` of a
        machine is how many times the costs it takes. `tick_s`: how often a machine ticks, if not as a real one."""
        self.plan, self.slowness = make_plan(graph), slowness
        # Nobody dies, so nothing must be made safe; and for 1500 tasks it takes 20 seconds to see what.
        object.__setattr__(self.plan, "synced_with", lambda task: [])
        self.tick_s = _tick_s(self.plan) if tick_s is None else tick_s
        self.costs, self.pace, self.is_real = costs, pace or Pace(), is_real
        self.tally, self.nodes, self.now = Tally(), list[Node](), 0.0
        self.fed, self.delivered = list[Given](), list[Given]()
        self._service, self._network_s = service, network_s
        self._coordinator = Coordinator(self.plan, workers, 0)
        self._readers: dict[str, Node] = {}
        self._agenda: list[tuple[float, int, Node | Callable[[], None]]] = []
        self._counted, self._over = 0, False

    def run(self) -> float:
        """Seconds of virtual time until the flow is over."""
        gc.collect()
        with few_pauses() if self.is_real else _as_they_are():
            self._act(self._coordinator.start(0.0))
            self._tick_driver()
            while not self._over:
                self.now, _, what = heapq.heappop(self._agenda)
                if not isinstance(what, Node):
                    what()
                elif self.now == what.scheduled_s:
                    what.step(self.now)
                    what.scheduled_s = _NEVER
                    self._schedule(what, what.next_at())
        return self.now

    @property
    def busy(self) -> list[float]:
        """The share of its time that each machine was busy."""
        return [node.busy_s / max(self.now, node.clock) for node in self.nodes]

    def count(self) -> int:
        """Keeps in order what happens at the same time."""
        self._counted += 1
        return self._counted

    def send(self, sender: Node, append: fx.Append) -> None:
        reader, ready_s = self._readers.get(append.queue), sender.clock + self._network_s
        is_last = whole(append.frames[-1]).kind == frames.Kind.END
        for content in append.frames:
            self._note(append.queue, whole(content), reader is not sender, is_last)
            if reader is not None:
                heapq.heappush(reader.arrived, (ready_s, self.count(), append.queue, content))
        if reader is not None:
            self._schedule(reader, max(reader.next_at(), ready_s))

    def _note(self, queue: str, frame: frames.Frame, is_between: bool, is_last: bool) -> None:
        tally, key, (what, service) = self.tally, (frame.kind.name, queue), self._service(queue, frame)
        tally.frames[key] += 1
        tally.between[key] += is_between
        # What a task says when it ends is of the end of the flow, as an END is.
        if service and not (is_last and frame.kind == frames.Kind.REPORT):
            tally.service[what] += service
            tally.service_between[what] += service * is_between
            tally.service_frames[what] += service >= frame.count

    def _schedule(self, node: Node, at_s: float) -> None:
        if at_s < node.scheduled_s and not node.has_left:
            node.scheduled_s = at_s
            self._at(at_s, node)

    def _at(self, at_s: float, what: Node | Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, self.count(), what))

    def tell_driver(self, stimulus: fx.Reported | fx.Exited, at_s: float) -> None:
        self._at(at_s + self._network_s, lambda: self._act(self._coordinator.on(stimulus)))

    def _tick_driver(self) -> None:
        self._act(self._coordinator.on(fx.Ticked(self.now)))
        self._at(self.now + 0.02, self._tick_driver)

    def _act(self, effects: list[fx.CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.StartWorker):
                node = Node(self, effect)
                self.nodes.append(node)
                self._readers.update(dict.fromkeys(node.worker.inboxes(()), node))
                self._schedule(node, 0.0)
            elif isinstance(effect, fx.Tell):
                for node in self.nodes:
                    node.hear(fx.Told(effect.message), self.now + self._network_s)
                    self._schedule(node, max(node.clock, self.now + self._network_s))
            elif isinstance(effect, fx.Finish):
                assert effect.problem is None, effect.problem
                self._over = True
            else:
                assert isinstance(effect, fx.Truncate), f"nobody dies here: {effect}"


def _tick_s(plan: Plan) -> float:
    """As `flow/host.py` has it."""
    return 0.01 if plan.region is None else min(0.01, max(plan.region.tracked.flush_s, 0.001))


@contextmanager
def _as_they_are() -> Iterator[None]:
    """Frames that nobody encodes."""
    encode, decode = frames.encode, frames.decode
    frames.encode = frames.decode = lambda frame: frame  # type: ignore[assignment, return-value]
    try:
        yield
    finally:
        frames.encode, frames.decode = encode, decode
