"""A worker process of a simulated world: the real worker machine, and a loop that does what it wants, bit by bit."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.flow.effects import (
    Acknowledge,
    Append,
    Arrived,
    Deliver,
    Effect,
    Fed,
    Leave,
    LookAtCommit,
    Looked,
    Report,
    Save,
    Saved,
    StartWorker,
    Stimulus,
    Ticked,
    Told,
)
from headrace.flow.files import FilesInMemory
from headrace.flow.io import Opening, SplitReader
from headrace.flow.queue_ends import QueueEnd
from headrace.flow.worker import Pace, Worker
from headrace.simulate.disk import Outbox

if TYPE_CHECKING:
    from headrace.simulate.world import World

PACE = Pace(commit_s=0.3, report_s=0.1)
SLOW_BEATS = Pace(commit_s=0.3, report_s=0.1, beat_s=0.3)
"""A process here takes few frames at a time: beats must not be all that it does."""


class Died(Exception):
    """The process that was running is no more."""


class Process:
    """One life of a worker."""

    def __init__(self, world: World, start: StartWorker):
        self.world, self.number, self.epoch = world, start.worker, start.epoch
        self.name = f"worker {start.worker}/{start.epoch % 1000}"
        self.is_alive = True
        self.paused_until = 0.0
        self.reports_at = 0.0
        self._tasks, self._silent = start.tasks, start.silent
        self._heard: deque[tuple[float, Mapping[str, Any]]] = deque()
        self._outbox = Outbox()
        self._deliveries: list[Deliver] = []
        self._read: dict[str, int] = {}
        self._readers: dict[str, SplitReader] = {}
        # Each process has chances of its own, so that a fault less does not change all that others do.
        self._rng = random.Random(f"{world.setup.seed} {start.worker} {start.epoch}")
        self.host = f"host {random.Random(f'{world.setup.seed} {start.epoch}').randrange(world.setup.hosts)}"
        self._slow = world.setup.step_s or self._rng.choice((0.002, 0.01, 0.05))

    def begin(self) -> None:
        """Restore, and go."""
        disk = self.world.disk
        if self.world.setup.replication.mode != "none":
            self.world.report(self, {"worker": self.number, "epoch": self.epoch, "restoring": True})
        self.worker = Worker(
            self.world.plan,
            self.number,
            self.epoch,
            self._tasks,
            PACE if self.world.plan.beats is None or self.world.setup.step_s else SLOW_BEATS,
            self.world.losses,
            lambda task: FilesInMemory(disk.files, f"{task} {self.epoch} "),
            self._silent,
            self.world.setup.replication.mode != "none",
            self.world.setup.room_bytes,
        )
        for each in self._tasks:
            found = disk.hold(each, self.epoch)
            if found is not None:
                self.worker.restore(each, found[0], found[1], disk.files.__getitem__)
                if found[2] != each:
                    self.worker.tasks[each].files.begin_anew()
        self._read = dict(self.worker.positions)
        if self.worker.beats is not None:
            self._read[self.worker.beats] = len(disk.queue(self.worker.beats).frames)
        for name, task in self.worker.tasks.items():
            source = self.world.graph.node(task.plan.vertex.name).source
            if source is not None and not isinstance(source, QueueEnd):
                splits = task.plan.vertex.parallelism
                opening = Opening(self.world.graph.name, name, task.plan.index, splits, 0, lambda: self.world.now)
                self._readers[name] = source.open(opening, task.fed)
        self.world.note(self.name, f"begins with {', '.join(self._tasks)}")
        self._later(self._step)

    def die(self, rng: random.Random) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        # What is on its way may still arrive, some of it, and long after.
        for queue in list(self._outbox.waiting):
            if rng.random() < 0.5:
                most, outbox = rng.randint(0, 5), self._outbox
                self.world.on_its_way(rng.uniform(0, 3), lambda q=queue, m=most, o=outbox: self._straggle(q, m, o))  # type: ignore[misc]

    def _straggle(self, queue: str, most: int, outbox: Outbox) -> None:
        outbox.deliver(self.world.disk.queue(queue), self.world.now, most)

    def hear(self, message: Mapping[str, Any], at: float) -> None:
        self._heard.append((max(at, self._heard[-1][0] if self._heard else 0.0), message))

    # -------------------------------------------------------------------- loop

    def _later(self, action: Callable[[], None], delay_s: float | None = None) -> None:
        def runs() -> None:
            if not self.is_alive:
                return
            if self.world.now < self.paused_until:
                self._later(action, self.paused_until - self.world.now)
                return
            try:
                action()
            except Died:
                pass
            except HeadraceError as error:
                self.world.fails(self, error)

        self.world.after(self._rng.expovariate(1 / self._slow) if delay_s is None else delay_s, runs)

    def _step(self) -> None:
        busy = False
        while self._heard and self._heard[0][0] <= self.world.now:
            self._give(Told(self._heard.popleft()[1]))
        for stimulus in self._next_stimuli():
            busy = True
            self._give(stimulus)
        self._give(Ticked(self.world.now))
        if self.is_alive:
            is_steady = busy or self.world.setup.step_s is not None
            self._later(self._step, None if is_steady else self._rng.uniform(0.01, 0.05))

    def _next_stimuli(self) -> list[Stimulus]:
        """Something that is there: as much as chance has it, of one or of several."""
        disk, room = self.world.disk, self.world.setup.room_frames
        full = {
            name
            for name in self.worker.blocking
            if name in self.world.read and len(disk.queue(name).frames) - disk.queue(name).acknowledged > room
        }
        found: list[Stimulus] = []
        for queue in self.worker.inboxes(full) if self.world.now >= self.world.broker_until else ():
            entries = disk.queue(queue).read(self._read[queue], self._rng.randint(1, 4))
            if entries and self._rng.random() < 0.7:
                self._read[queue] = entries[-1].next
                found.append(Arrived(queue, entries))
        for task in self.worker.sources(full):
            if self._rng.random() < 0.5:
                feed = self._readers[task].poll(self._rng.choice((1, 3, 10, 30)))
                if feed is not None:
                    found.append(Fed(task, feed))
        self._rng.shuffle(found)
        return found

    def _give(self, stimulus: Stimulus) -> None:
        for effect in self.worker.on(stimulus):
            self.world.does(self, type(effect).__name__)
            self._act(effect)

    def _act(self, effect: Effect) -> None:
        world = self.world
        if isinstance(effect, Append):
            self._outbox.append(effect.queue, effect.frames)
            if world.is_remote:
                self._later(lambda: self._deliver(effect.queue))
            else:
                self._outbox.deliver(world.disk.queue(effect.queue), world.now)
        elif isinstance(effect, Deliver):
            world.gives(effect)
            self._deliveries.append(effect)
        elif isinstance(effect, Save):
            self._save(effect)
        elif isinstance(effect, Acknowledge):
            queue_ = world.disk.queue(effect.queue)
            queue_.acknowledged = max(queue_.acknowledged, effect.position)
        elif isinstance(effect, Report):
            world.report(self, effect.message)
        elif isinstance(effect, LookAtCommit):
            self._later(lambda: self._look(effect))
        elif isinstance(effect, Leave):
            self.is_alive = False
            world.left(self)
            raise Died

    def _deliver(self, queue: str) -> None:
        """Some of what is on its way; a queue that stands still takes it later."""
        if self.world.now < self.world.broker_until:
            self._later(lambda: self._deliver(queue), self.world.broker_until - self.world.now)
        else:
            self._outbox.deliver(self.world.disk.queue(queue), self.world.now, self._rng.randint(1, 3))

    def _look(self, look: LookAtCommit) -> None:
        self.world.disk.holds[look.copy, self.epoch] = set(look.kept)
        found = self.world.disk.newest(look.task)
        self._give(Looked(look.task, None if found is None else found[1]))

    # -------------------------------------------------------------------- save

    def _save(self, save: Save) -> None:
        """One thing after the other, each some time later: a crash may come between any two."""
        task = save.snapshot.task
        cut = [delivery for delivery in self._deliveries if delivery.task == task]
        self._deliveries = [delivery for delivery in self._deliveries if delivery.task != task]
        disk, moment_s = self.world.disk, self.world.now
        steps: list[tuple[str, Callable[[], Any]]] = [
            *((f"syncs {queue}", lambda q=queue: self._sync(q)) for queue in save.queues),
            *([(f"notes {task}", lambda: disk.note_moment(task, moment_s))] if cut else []),
            *((f"publishes {task}", lambda d=delivery: self.world.received.take(d)) for delivery in cut),
            *(
                (f"writes {name}", lambda n=name, c=content: disk.files.__setitem__(n, c))
                for name, content in save.snapshot.new_files.items()
            ),
            (f"commits {task} {save.snapshot.version}", lambda: disk.write_manifest(save.snapshot, moment_s)),
            (f"saved {task}", lambda: self._give(Saved(task, save.snapshot.version))),
        ]
        self._do(steps)

    def _do(self, steps: list[tuple[str, Callable[[], Any]]]) -> None:
        def step() -> None:
            what, action = steps[0]
            self.world.does(self, what)
            action()
            if len(steps) > 1:
                self._do(steps[1:])

        self._later(step)

    def _sync(self, name: str) -> None:
        queue = self.world.disk.queue(name)
        self._outbox.deliver(queue, self.world.now)
        queue.synced = len(queue.frames)
