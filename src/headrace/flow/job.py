"""A flow that runs: the coordinator with its real workers, whoever starts those."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from headrace import errors
from headrace.errors import FlowError, HeadraceError
from headrace.flow.changes import MetricChanges
from headrace.flow.coordinator import Coordinator
from headrace.flow.copies import Replication
from headrace.flow.effects import (
    CancelWorker,
    CoordinatorEffect,
    Exited,
    Finish,
    Reported,
    StartWorker,
    StopAsked,
    Tell,
    Ticked,
    Truncate,
)
from headrace.flow.graph import Graph
from headrace.flow.manifests import EPOCHS_A_RUN, FlowStore
from headrace.flow.plan import make_plan
from headrace.flow.questions import why
from headrace.flow.rooms import ROOM_BYTES
from headrace.flow.talk import OldTalk, control_queue, report_queue
from headrace.flow.worker import Pace
from headrace.flow.worker_setup import BATCH_RECORDS, WorkerSetup
from headrace.model import frames
from headrace.queues.protocol import Queues

_TICK_S: Final = 0.02


class Launcher(ABC):
    """Starts workers somewhere."""

    def __init__(self) -> None:
        self.exits: deque[Exited] = deque()
        """Workers that are gone, for the coordinator."""

    @abstractmethod
    def start(self, setup: WorkerSetup) -> None:
        """Returns at once."""

    @abstractmethod
    def cancel(self, worker: int, epoch: int) -> None: ...

    def close(self) -> None:  # noqa: B027
        """Nothing of it is left running."""

    def lost(self) -> str | None:
        """Why it can start no more workers; None if it can."""
        return None


class Job:
    """A running flow. It runs until its sources end, until it is stopped, or until something goes wrong."""

    def __init__(
        self,
        graph: Graph,
        launcher: Launcher,
        queues: Queues,
        location: str,
        workers: int,
        pace: Pace | None = None,
        room_bytes: int = ROOM_BYTES,
        batch_records: int = BATCH_RECORDS,
        replication: Replication | None = None,
    ):
        self.name = graph.name
        self._replication = replication or Replication()
        self._graph, self._launcher, self._queues, self._location = graph, launcher, queues, location
        self._plan = make_plan(graph)
        for node in graph.nodes:
            for end in (node.source, node.sink):
                if end is not None:
                    end.check()
        self._pace, self._room_bytes, self._batch_records = pace or Pace(), room_bytes, batch_records
        store = FlowStore(location, graph.name)
        store.check(self._plan)
        queues.create(self.queues)
        run, self._began_us, self._losses = store.begin_run(self._plan, queues)
        self._beginnings = store.beginnings()
        self._writer = queues.writer()
        reports = report_queue(graph.name)
        said = queues.bounds(reports)[1]
        self._reader = queues.reader(f"{graph.name}.driver", {reports: said})
        self._old_talk = OldTalk(graph.name, queues, said)
        self._coordinator = Coordinator(self._plan, workers, run * EPOCHS_A_RUN, self._replication)
        self._stop: deque[StopAsked] = deque()
        self._is_finished = False
        self._over = threading.Event()
        self._problem: HeadraceError | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"headrace-{graph.name}", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- for users

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the flow is over; False if it is not in time. Raises what went wrong. Ctrl-C stops the flow at once."""
        try:
            return self.look(timeout_s)
        except KeyboardInterrupt:
            self.stop(drain=False)
            raise

    def look(self, timeout_s: float | None = None) -> bool:
        """Like `wait`, and leaves it to the caller what becomes of the flow on Ctrl-C."""
        over = self._over.wait(timeout_s)
        if over:
            self._thread.join()
            if self._problem is not None:
                raise self._problem
        return over

    def stop(self, drain: bool = True, timeout_s: float | None = None) -> bool:
        """With `drain` all that the sources gave reaches the sinks first. The same flow started again goes on there."""
        self.ask_to_stop(drain)
        return self.wait(timeout_s)

    def ask_to_stop(self, drain: bool = True) -> None:
        """Like `stop`, and does not wait."""
        self._stop.append(StopAsked(drain))

    def status(self) -> dict[str, Any]:
        """Of workers, tasks and queues, as plain values."""
        with self._lock:
            found = self._coordinator.status()
        backlog = {}
        if not self._over.is_set():
            inboxes = [queue for task in self._plan.tasks.values() for queue in task.inboxes]
            backlog = {queue: self._writer.backlog(queue) for queue in inboxes}
        state = "running" if not self._over.is_set() else "failed" if self._problem is not None else "over"
        order = [vertex.name for vertex in self._plan.vertices]
        return {"flow": self.name, "state": state, "order": order, **found, "backlog_bytes": backlog}

    def placement(self) -> str:
        """Which worker has which copies of tasks, as a table for a terminal."""
        with self._lock:
            return self._coordinator.placement()

    def forget(self) -> None:
        """After it is over: its queues, those outside too, and its commits are gone; the next start begins anew."""
        if not self._over.is_set():
            raise FlowError(f"flow {self.name} runs; stop it first")
        forget(self.name, self._location, self._queues, self.queues)

    @property
    def queues(self) -> list[str]:
        """The names of all its queues, those outside too."""
        return [*self._plan.queues, control_queue(self.name), report_queue(self.name)]

    # ------------------------------------------------------------------ metrics

    def metrics(self, name: str) -> str:
        """The text of the metrics of a stage (`flow.measure`), with what was changed since it was drawn."""
        return self._changes(name).definition().text

    def add_metrics(self, name: str, text: str, timeout_s: float = 120.0) -> dict[str, int]:
        """More metrics, backfilled from the events that are remembered; answers do not stop meanwhile.

        Gives, for each task of the stage, the position of its queue from which on every answer has them.
        """
        return self._changes(name).change(lambda before: before.adding(text), timeout_s)

    def remove_metric(self, name: str, metric: str, timeout_s: float = 120.0) -> dict[str, int]:
        """One metric less, in every answer from the positions on that this gives."""
        return self._changes(name).change(lambda before: before.removing(metric), timeout_s)

    def _changes(self, name: str) -> MetricChanges:
        return MetricChanges(self._plan, name, self._queues, self.reports)

    def why(self, substream: Any, timeout_s: float = 10.0) -> str:
        """Of a flow that is tracked: what a substream still waits for, in a sentence."""
        if self._over.is_set():
            raise FlowError(
                f"flow {self.name} does not run, and only a running one can say; start it again at the same place"
            )
        return why(self._plan, self._queues, self.reports, substream, timeout_s)

    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The newest report of each task."""
        with self._lock:
            return self._coordinator.reports()

    def needed_from(self, queue: str) -> int:
        """What is before this position of a queue, one from outside too, no copy reads again; 0 if nothing is known."""
        with self._lock:
            return self._coordinator.needed_from(queue)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    # -------------------------------------------------------------------- thread

    def _run(self) -> None:
        with ExitStack() as ends:
            # Whatever one of them raises, the others are called: who waits must not wait for ever.
            for end in (self._writer.close, self._reader.close, self._over.set, self._launcher.close):
                ends.callback(end)
            try:
                self._act(self._coordinator.start(time.monotonic()))
                while not self._is_finished:
                    self._look()
            except HeadraceError as error:
                self._problem = error
            except Exception as error:
                self._problem = self._lost() or FlowError(f"flow {self.name}: {type(error).__name__}: {error}")
                self._problem.__cause__ = error

    def _lost(self) -> FlowError | None:
        reason = self._launcher.lost()
        if reason is None:
            return None
        return FlowError(f"flow {self.name}: {reason} while it ran; start the flow again: it goes on where it was")

    def _look(self) -> None:
        for entry in self._reader.poll([report_queue(self.name)], _TICK_S):
            message = frames.decode(entry.frame).message
            self._reader.acknowledge(entry.queue, entry.next)
            self._old_talk.read = entry.next
            if message is not None:
                self._on(Reported(message))
        while self._launcher.exits:
            exited = self._launcher.exits.popleft()
            lost = self._lost() if exited.problem is not None else None
            if lost is not None:
                raise lost
            self._on(exited)
        while self._stop:
            self._on(self._stop.popleft())
        self._on(Ticked(time.monotonic()))
        self._old_talk.look(time.monotonic())

    def _on(self, stimulus: Reported | Exited | StopAsked | Ticked) -> None:
        with self._lock:
            effects = self._coordinator.on(stimulus)
        self._act(effects)

    def _act(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartWorker):
                self._launcher.start(self._setup(effect))
            elif isinstance(effect, CancelWorker):
                self._launcher.cancel(effect.worker, effect.epoch)
            elif isinstance(effect, Tell):
                frame = frames.encode(frames.control(0, 0, dict(effect.message)))
                self._writer.append(control_queue(self.name), [frame])
                self._writer.sync([control_queue(self.name)])
            elif isinstance(effect, Truncate):
                if effect.queue == self._plan.beats:
                    self._writer.sync([effect.queue])  # no commit does
                self._queues.truncate(effect.queue, effect.position)
            elif isinstance(effect, Finish):
                self._finish(effect)

    def _setup(self, start: StartWorker) -> WorkerSetup:
        heard = self._queues.bounds(control_queue(self.name))[1]
        return WorkerSetup(
            self._graph,
            self._queues,
            self._location,
            start.worker,
            start.epoch,
            start.tasks,
            self._began_us,
            heard,
            self._pace,
            self._room_bytes,
            self._batch_records,
            self._losses,
            start.silent,
            self._replication.mode != "none",
            self._beginnings,
            self._queues.incarnation(),
        )

    def _finish(self, finish: Finish) -> None:
        if finish.problem is not None:
            kind = getattr(errors, str(finish.details.get("type", "FlowError")), FlowError)
            kind = kind if isinstance(kind, type) and issubclass(kind, HeadraceError) else FlowError
            self._problem = kind.__new__(kind)
            self._problem.args = (finish.problem,)
        self._is_finished = True


def forget(flow: str, location: str, queues: Queues, names: Sequence[str]) -> None:
    """Delete what is left of a flow that does not run: these queues, and its commits. Again, where it was killed."""
    queues.delete(names)
    FlowStore(location, flow).delete()
