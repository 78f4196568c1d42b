"""A simulated world: one driver, its workers, their disk and network. One thread, one seed, the same run every time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.flow.coordinator import Coordinator
from headrace.flow.copies import Replication, task_of
from headrace.flow.effects import (
    CancelWorker,
    CoordinatorEffect,
    CoordinatorStimulus,
    Deliver,
    Exited,
    Finish,
    Reported,
    StartWorker,
    Tell,
    Ticked,
    Truncate,
)
from headrace.flow.graph import Graph
from headrace.flow.losses import Loss
from headrace.flow.plan import Plan, make_plan
from headrace.flow.rooms import ROOM_BYTES
from headrace.simulate.disk import Disk
from headrace.simulate.faults import Fault
from headrace.simulate.process import Died, Process

_LONGEST_S: Final = 2_000.0
_EPOCHS_A_RUN: Final = 1_000_000


class Violation(Exception):
    """Something happened that must not."""


@dataclass(frozen=True)
class Setup:
    """Of a simulated run: all that it depends on."""

    seed: int
    faults: tuple[Fault, ...] = ()
    workers: int = 3
    room_frames: int = 6
    replication: Replication = field(default_factory=Replication)
    hosts: int = 1
    """On how many machines workers run, wherever there is room for them."""
    step_s: float | None = None
    """How long a worker takes for each thing, about; else some are slow and some are fast."""
    room_bytes: int = ROOM_BYTES
    """How much the sinks of a task may be given between two commits."""


@dataclass
class Received:
    """What the sinks of a flow have got: by sink and task, the record of each number."""

    records: dict[tuple[str, str], dict[int, Any]] = field(default_factory=dict)

    def take(self, delivery: Deliver) -> None:
        found = self.records.setdefault((delivery.node, task_of(delivery.task)), {})
        for at, record in enumerate(delivery.batch.to_pylist()):
            number = delivery.first + at
            # By their texts: what is not a number is not equal to itself.
            if repr(found.setdefault(number, record)) != repr(record):
                raise Violation(
                    f"sink {delivery.node} of {delivery.task}: record {number} was {found[number]} and is {record} "
                    f"after a restart: a task did not do again what it did"
                )

    def of(self, sink: str) -> list[Any]:
        found = []
        for (node, task), records in self.records.items():
            if node == sink:
                if sorted(records) != list(range(len(records))):
                    raise Violation(f"sink {sink} of {task}: numbers are missing")
                found += [records[number] for number in sorted(records)]
        return found


class World:
    """`run` gives what the sinks have got. Raises Violation, or what a machine raises, if anything goes wrong."""

    def __init__(self, graph: Graph, setup: Setup):
        self.graph, self.setup = graph, setup
        self.plan: Plan = make_plan(graph)
        self.read = {queue for task in self.plan.tasks.values() for queue in task.inboxes}
        """The queues that somebody reads: others have room for all."""
        self.disk = Disk()
        self.received = Received()
        self.now = 0.0
        self.done = 0
        """How many things workers have done."""
        self.losses: tuple[Loss, ...] = ()
        self.broker_until = 0.0
        """Until then queues stand still."""
        self.trace: list[tuple[float, str, str]] = []
        self.rng = random.Random(f"world {setup.seed}")
        self.is_remote = self.rng.random() < 0.5
        """Queues in a cluster of their own, which appends reach later, and which does not lose power; else in files."""
        self.watch: Callable[[Deliver, World], None] | None = None
        """Looks at what a sink is given, before any commit."""
        self.given: dict[str, list[Any]] = {}
        """By sink, what it was ever given, committed or not: some of it twice. For who watches."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._faults = list(setup.faults)
        self._processes: dict[int, Process] = {}
        self._zombies: list[Process] = []
        self._coordinator: Coordinator | None = None
        self._generation = 0
        self._lines = 0
        """How often all lines went down: what was on its way is gone."""
        self._over = False

    # --------------------------------------------------------------------- run

    def run(self) -> Received:
        self._start_driver()
        while self._events and not self._over:
            self.now, _, action = heapq.heappop(self._events)
            if self.now > _LONGEST_S:
                raise Violation(f"not over after {_LONGEST_S:.0f} virtual seconds: {self._status()}")
            action()
        if not self._over:
            raise Violation("nothing happens any more, and it is not over")
        return self.received

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_s, self._count, action))

    def on_its_way(self, delay_s: float, action: Callable[[], None]) -> None:
        """Something on the network, which no longer needs its sender; a machine that goes down takes it along."""
        lines = self._lines
        self.after(delay_s, lambda: action() if lines == self._lines else None)

    def gives(self, delivery: Deliver) -> None:
        """To a sink. There was no commit yet: it may come again."""
        if self.watch is not None:
            self.given.setdefault(delivery.node, []).extend(delivery.batch.to_pylist())
            self.watch(delivery, self)

    def note(self, who: str, what: str) -> None:
        self.trace.append((self.now, who, what))

    def does(self, process: Process, what: str) -> None:
        """A worker is about to do something: faults strike here."""
        self.done += 1
        self.note(process.name, what)
        while self._faults and self._faults[0].at < self.done:
            self._strike(self._faults.pop(0), process)

    # ------------------------------------------------------------------ faults

    def _strike(self, fault: Fault, process: Process) -> None:
        self.note("fault", f"{fault} strikes {process.name}")
        if fault.kind in ("crash", "host"):
            struck = [each for each in self._processes.values() if fault.kind == "host" and each.host == process.host]
            for each in {process.name: process, **{other.name: other for other in struck}}.values():
                self._kill(each)
            raise Died
        if fault.kind == "broker":
            if self.is_remote:  # files do not stand still alone
                self.broker_until = max(self.broker_until, self.now + fault.length_s)
            return
        if fault.kind in ("driver", "power"):
            for each in [*self._processes.values(), *self._zombies]:
                each.die(self.rng)
            if fault.kind == "power":
                if not self.is_remote:
                    self.disk.lose_power(self.rng)
                self._lines += 1
            self._processes, self._zombies, self._coordinator = {}, [], None
            self._generation += 1
            self.after(self.rng.uniform(0.1, 5.0), self._start_driver)
            raise Died
        process.paused_until = max(process.paused_until, self.now + fault.length_s) if fault.kind == "pause" else 0.0
        if fault.kind == "lost" and self._processes.get(process.number) is process:
            del self._processes[process.number]
            self._zombies.append(process)
            self.after(fault.length_s, lambda: process.die(self.rng))
            self._exited(process, "it was taken for dead")

    def _kill(self, process: Process) -> None:
        process.die(self.rng)
        if self._processes.get(process.number) is process:
            del self._processes[process.number]
            self._exited(process, "killed")

    def _exited(self, process: Process, problem: str | None) -> None:
        self._tell_driver(Exited(process.number, process.epoch, problem), self.rng.uniform(0.01, 0.5))

    def fails(self, process: Process, error: HeadraceError) -> None:
        """A worker that was replaced may find that its queues have gone on without it; any other must not fail."""
        if self._processes.get(process.number) is process:
            raise error
        self.note(process.name, f"fails, and nobody cares: {error}")
        process.die(self.rng)

    def left(self, process: Process) -> None:
        """A worker that was asked to."""
        if self._processes.get(process.number) is process:
            del self._processes[process.number]
        self._exited(process, None)

    # ------------------------------------------------------------------ driver

    def _start_driver(self) -> None:
        if self._over:
            return
        self.losses = self.disk.begin_run(self.plan)
        self.note("driver", f"starts run {self.disk.run}")
        self._coordinator = Coordinator(
            self.plan, self.setup.workers, self.disk.run * _EPOCHS_A_RUN, self.setup.replication
        )
        self._act(self._coordinator.start(self.now))
        self._tick_driver(self._generation)

    def _tick_driver(self, generation: int) -> None:
        if generation == self._generation and self._coordinator is not None and not self._over:
            self._act(self._coordinator.on(Ticked(self.now)))
            self.after(0.02, lambda: self._tick_driver(generation))

    def _tell_driver(self, stimulus: CoordinatorStimulus, delay_s: float) -> None:
        generation = self._generation

        def arrives() -> None:
            if generation == self._generation and self._coordinator is not None and not self._over:
                self._act(self._coordinator.on(stimulus))

        self.after(delay_s, arrives)

    def report(self, process: Process, message: Any) -> None:
        process.reports_at = max(process.reports_at, self.now + self.rng.uniform(0.001, 0.05))
        self._tell_driver(Reported({**message, "host": process.host}), process.reports_at - self.now)

    def _act(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartWorker):
                self._start_worker(effect)
            elif isinstance(effect, CancelWorker):
                self._cancel(effect)
            elif isinstance(effect, Tell):
                self.note("driver", f"says {effect.message}")
                for process in self._processes.values():
                    process.hear(effect.message, self.now + self.rng.uniform(0.001, 0.05))
            elif isinstance(effect, Truncate):
                queue = self.disk.queue(effect.queue)
                queue.start = max(queue.start, effect.position)
                queue.synced = max(queue.synced, effect.position)
            elif isinstance(effect, Finish):
                self._over = True
                if effect.problem is not None:
                    raise Violation(f"the flow failed: {effect.problem}")

    def _start_worker(self, start: StartWorker) -> None:
        process = Process(self, start)
        self._processes[start.worker] = process
        generation = self._generation

        def begins() -> None:
            if generation == self._generation and process.is_alive:
                process.begin()

        self.after(self.rng.uniform(0.01, 0.6), begins)

    def _cancel(self, cancel: CancelWorker) -> None:
        process = self._processes.get(cancel.worker)
        if process is None or process.epoch != cancel.epoch:
            return
        # A process that stands still does not hear that it is to end.
        del self._processes[cancel.worker]
        if self.rng.random() < 0.5:
            process.die(self.rng)
        else:
            self._zombies.append(process)
            self.after(self.rng.uniform(1.0, 20.0), lambda: process.die(self.rng))

    def _status(self) -> Any:
        return self._coordinator.status() if self._coordinator is not None else "no driver"
