"""A worker in a real process: gives the worker machine what queues and sources have, and does what it wants."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from headrace.errors import HeadraceError, QueueUnreachable
from headrace.flow.busy import BusyVoice
from headrace.flow.copies import copy_of
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
    OpenSinks,
    Report,
    Save,
    Saved,
    Stimulus,
    Ticked,
    Told,
)
from headrace.flow.io import Opening, SinkWriter, SplitReader
from headrace.flow.manifests import FlowStore
from headrace.flow.pieces import MOST_RECORDS, in_parts
from headrace.flow.plan import make_plan
from headrace.flow.queue_ends import QueueEnd
from headrace.flow.rooms import ROOM_BYTES, Rooms
from headrace.flow.talk import control_queue, report_queue
from headrace.flow.worker import Worker
from headrace.flow.worker_setup import WorkerSetup
from headrace.model import frames
from headrace.model.failures import RAISED, place_of, problem_of
from headrace.model.pauses import few_pauses
from headrace.model.progress import PROGRESS
from headrace.queues.protocol import Entry

_TICK_S: Final = 0.01
_NO_ROOM_S: Final = 0.001
PACE_S: Final = 0.001
"""One that has taken few records looks for more after so long only: frames of a record each cost those who read them
as much as frames of hundreds, and a task that is behind could never catch up with them."""
FEW_RECORDS: Final = 64
_FRAMES_AT_ONCE: Final = 256
"""What came is worked off in so many frames at a time, so that the first need not wait for the last."""
_FEW_BYTES: Final = 1
"""A frame of each queue, to begin with: it is not known yet how long they take."""
_MOST_BYTES: Final = 4 << 20
"""Of each queue that it takes at a time: between, a worker commits, and hears what it is told."""
_LONG_S: Final = 0.5
"""What takes longer is more than it should take at a time: a stage may be slow."""
_FEW_ROWS: Final = 64
_LONG_CALL_S: Final = 10.0
"""No call of a function of the user should be longer: batches of more rows are cut. Here too it begins with few."""
_PATIENCE_COMMITS: Final = 1.5
"""After how many commits in which nothing leaves a queue it is taken to be stuck."""


def run_worker(setup: WorkerSetup) -> None:
    """Until it is told to leave. Raises what goes wrong, after it has told the coordinator."""
    try:
        with BusyVoice(lambda busy: _tell(setup, "busy", busy)) as voice:
            voice.begin(lambda: "the start of its stages")
            host = Host(setup, voice)
            voice.end()
            try:
                gc.collect()
                with few_pauses():
                    host.run()
            finally:
                host.close()
    except QueueUnreachable:
        raise  # there is no telling anybody: the coordinator starts another one
    except HeadraceError as error:
        # Where even this fails, as on a full disk, the error itself tells whoever started the worker.
        with suppress(HeadraceError):
            _tell(setup, "failed", {"type": type(error).__name__, "message": str(error)})
        raise
    except RAISED as error:
        # Another try may help. If not, this is what there is to be said.
        with suppress(HeadraceError):
            _tell(setup, "raised", f"{problem_of(error)} ({place_of(error)})")
        raise


def _tell(setup: WorkerSetup, what: str, said: Any) -> None:
    """The coordinator, with a writer of its own."""
    message = {"worker": setup.worker, "epoch": setup.epoch, what: said}
    with setup.queues.writer() as writer:
        writer.append(report_queue(setup.graph.name), [frames.encode(frames.control(setup.worker, 0, message))])
        writer.sync([report_queue(setup.graph.name)])


def fitting(most: int, taken: int, took_s: float, long_s: float, limit: int) -> int:
    """How much to take at a time, after so much took so long: what fits into `long_s`, and at most twice as before."""
    return max(1, min(limit, 2 * most, int(taken * long_s / max(took_s, 1e-6))))


def _source_of(task: str) -> str:
    return f"the source of {task}"


class Host:
    """One thread that runs the machine, and one that makes commits safe."""

    def __init__(self, setup: WorkerSetup, busy: BusyVoice | None = None):
        self._setup = setup
        self._busy = BusyVoice(lambda busy: None) if busy is None else busy
        self._flow = setup.graph.name
        self._plan = make_plan(setup.graph)
        self._store = FlowStore(setup.location, self._flow)
        files = lambda task: self._store.files(task, setup.epoch)  # noqa: E731
        self._worker = Worker(
            self._plan,
            setup.worker,
            setup.epoch,
            setup.tasks,
            setup.pace,
            setup.losses,
            files,
            setup.silent,
            setup.has_copies,
            max(setup.room_bytes, ROOM_BYTES),  # files of a few records are worse than some memory
        )
        self._sinks: dict[tuple[str, str], SinkWriter] = {}
        self._had: dict[tuple[str, str], int] = {}
        """How many records sinks had before this copy began to speak."""
        self._sources: dict[str, SplitReader] = {}
        self._asleep: dict[str, float] = {}
        self._writer = setup.queues.writer()
        if setup.has_copies:
            self._act(Report({"worker": setup.worker, "epoch": setup.epoch, "restoring": True}))
        restored = self._restore()
        control = control_queue(self._flow)
        # One that waited for a slot for long: what was said before is gone, and was not for it.
        heard = max(setup.control_position, setup.queues.bounds(control)[0])
        positions = {**self._worker.positions, control: heard}
        if self._worker.beats is not None:
            positions[self._worker.beats] = setup.queues.bounds(self._worker.beats)[1]
        # One that starts again is behind the other copies: no reason for those who send to wait for it.
        self._behind = {q: setup.queues.bounds(q)[1] for q in self._worker.positions} if setup.has_copies else {}
        # One name for all workers: a task may have another worker in the next run, and its queue has one reader still.
        self._reader = setup.queues.reader(self._flow, positions)
        self._open_ends(restored)
        self._rooms = Rooms(setup.room_bytes, self._plan.shares, _PATIENCE_COMMITS * setup.pace.commit_s)
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="headrace-commit")
        self._saves: list[tuple[Save, Future[None]]] = []
        self._looks: list[tuple[str, Future[Mapping[str, Any] | None]]] = []
        self._ticked_at = 0.0
        self._most_bytes = _FEW_BYTES
        for task in self._worker.tasks.values():
            task.most_rows = _FEW_ROWS
        region = self._plan.region
        self._tick_s = _TICK_S if region is None else min(_TICK_S, max(region.tracked.flush_s, 0.001))
        if setup.graph.agreement != "queue":
            self._tick_s = min(self._tick_s, max(setup.pace.beat_s / 5, 0.001))
        self._left = False

    def _restore(self) -> dict[str, Mapping[str, Any]]:
        committed: dict[str, Mapping[str, Any]] = {}
        for task in self._setup.tasks:
            found = self._store.restore(task, holds=True)
            if found is not None:
                self._worker.restore(task, found.version, found.values, found.read)
                if found.copy != copy_of(task):
                    self._worker.tasks[task].files.begin_anew()
                committed[task] = found.sinks
        return committed

    def _open_ends(self, committed: Mapping[str, Mapping[str, Any]]) -> None:
        for name, task in self._worker.tasks.items():
            vertex = task.plan.vertex
            for each in vertex.nodes:
                node = self._setup.graph.node(each)
                opening = self._opening(name, each)
                if node.source is not None and not isinstance(node.source, QueueEnd) and not task.source_ended:
                    self._sources[name] = node.source.open(opening, task.fed)
                if node.sink is not None and not isinstance(node.sink, QueueEnd) and name not in self._setup.silent:
                    self._sinks[name, each] = node.sink.open(opening, committed.get(name, {}).get(each))

    def _open_sinks(self, name: str) -> None:
        """Of a copy that begins to speak: as another one left them."""
        committed = self._store.committed(name)
        task = self._worker.tasks[name]
        for each in task.plan.vertex.nodes:
            sink = self._setup.graph.node(each).sink
            if sink is not None and not isinstance(sink, QueueEnd):
                found = None if committed is None else committed["sinks"].get(each)
                self._sinks[name, each] = sink.open(self._opening(name, each), found)
                # It may not have looked at this commit yet, or be behind it.
                self._had[name, each] = 0 if committed is None else committed["values"]["delivered"].get(each, 0)

    def _opening(self, name: str, node: str) -> Opening:
        task = self._worker.tasks[name].plan
        return Opening(
            self._flow,
            name,
            task.index,
            task.vertex.parallelism,
            self._setup.began_us,
            node=node,
            wake=lambda: self._wake(name),
            beginning=self._setup.beginnings.get(node),
        )

    def _wake(self, task: str) -> None:
        self._asleep.pop(task, None)
        self._reader.wake()

    def close(self) -> None:
        self._saver.shutdown(wait=True)
        for reader in self._sources.values():
            reader.close()
        for writer in self._sinks.values():
            writer.close()
        self._reader.close()
        self._writer.close()

    # --------------------------------------------------------------------- run

    def run(self) -> None:
        self._give(Told({"say": "begin"}))
        while not self._left:
            now = time.monotonic()
            had = self._worker.records_in
            full = [q for q in self._worker.blocking if self._rooms.is_full(q, self._writer.backlog(q), now)]
            waits = self._feed(full, now)
            if full:
                waits = min(waits, _NO_ROOM_S)
            self._take(full, waits)
            self._look_at_saves()
            self._tick()
            left_s = now + PACE_S - time.monotonic()
            if 0 < self._worker.records_in - had < FEW_RECORDS and left_s > 0:
                time.sleep(left_s)

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= self._tick_s:
            self._ticked_at = now
            self._give(Ticked(now, time.time()))

    def _feed(self, full: list[str], now: float) -> float:
        """Give the tasks what their sources have; gives how long there is nothing to do for sources."""
        waits = self._tick_s
        for task in self._worker.sources(full):
            asleep_until = self._asleep.get(task, 0.0)
            if asleep_until > now:
                waits = min(waits, asleep_until - now)
                continue
            self._busy.begin(partial(_source_of, task))
            feed = self._sources[task].poll(self._setup.batch_records)
            self._busy.end()
            if feed is None:
                due = self._sources[task].due_s()
                self._asleep[task] = now + due
                waits = min(waits, due)
            else:
                self._give(Fed(task, feed))
                waits = 0.0
        return waits

    def _take(self, full: list[str], waits_s: float) -> None:
        control = control_queue(self._flow)
        found: dict[str, list[Entry]] = {}
        for entry in self._reader.poll([*self._worker.inboxes(full), control], waits_s, self._most_bytes):
            found.setdefault(entry.queue, []).append(entry)
        began, size = time.monotonic(), sum(len(entry.frame) for entries in found.values() for entry in entries)
        for entry in found.pop(control, ()):
            message = frames.decode(entry.frame).message
            if message is not None:
                self._give(Told(message))
        for queue, entries in found.items():
            for at in range(0, len(entries), _FRAMES_AT_ONCE):
                if at:
                    self._tick()
                self._give(Arrived(queue, entries[at : at + _FRAMES_AT_ONCE]))
        if size:
            self._most_bytes = fitting(self._most_bytes, size, time.monotonic() - began, _LONG_S, _MOST_BYTES)

    def _give(self, stimulus: Stimulus) -> None:
        task = self._worker.tasks.get(self._worker.task_of(stimulus)) if isinstance(stimulus, Arrived | Fed) else None
        began, had = time.monotonic(), 0 if task is None else task.records_in
        self._busy.begin(self._worker.at)
        for effect in self._worker.on(stimulus):
            self._act(effect)
        self._busy.end()
        if task is not None and task.records_in > had:
            took_s = time.monotonic() - began
            task.most_rows = fitting(task.most_rows, task.records_in - had, took_s, _LONG_CALL_S, MOST_RECORDS)

    def _act(self, effect: Effect) -> None:
        if isinstance(effect, Append):
            self._writer.append(effect.queue, effect.frames)
        elif isinstance(effect, Deliver):
            self._deliver(effect)
        elif isinstance(effect, Acknowledge):
            if effect.position >= self._behind.get(effect.queue, 0):
                self._reader.acknowledge(effect.queue, effect.position)
        elif isinstance(effect, Save):
            self._save(effect)
        elif isinstance(effect, Report):
            message = {**effect.message, "pid": os.getpid(), "host": platform.node()}
            frame = frames.control(self._setup.worker, 0, message)
            self._writer.append(report_queue(self._flow), [frames.encode(frame)])
        elif isinstance(effect, LookAtCommit):
            self._looks.append((effect.task, self._saver.submit(self._look_at, effect)))
        elif isinstance(effect, OpenSinks):
            self._open_sinks(effect.task)
        elif isinstance(effect, Leave):
            self._left = True

    def _deliver(self, deliver: Deliver) -> None:
        sink = deliver.task, deliver.node
        had = max(0, self._had.get(sink, 0) - deliver.first)
        first, most_rows = deliver.first + had, self._worker.tasks[deliver.task].most_rows
        for part in in_parts(deliver.batch.slice(had) if had else deliver.batch, most_rows):
            if part.num_rows:
                PROGRESS.calls += 1
                self._sinks[sink].write(first, part)
                first += part.num_rows

    # -------------------------------------------------------------------- save

    def _save(self, save: Save) -> None:
        task = save.snapshot.task
        cuts = {node: writer.cut() for (name, node), writer in self._sinks.items() if name == task}
        # After all that it took and sent was stamped.
        moment = time.monotonic_ns()
        self._saves.append((save, self._saver.submit(self._commit, save, moment, cuts)))

    def _commit(self, save: Save, moment: int, cuts: Mapping[str, Callable[[], Any]]) -> None:
        """First what the commit will say is there, then the commit."""
        self._writer.sync(save.queues)
        incarnation = self._setup.queues.incarnation()
        if cuts and incarnation:
            self._store.note_moment(save.snapshot.task, moment, incarnation)
        sinks = {node: cut() for node, cut in cuts.items()}
        self._store.commit(save.snapshot, sinks, moment, incarnation)

    def _look_at(self, look: LookAtCommit) -> Mapping[str, Any] | None:
        self._store.hold(look.copy, look.kept)
        return self._store.committed(look.task)

    def _look_at_saves(self) -> None:
        for looked in [look for look in self._looks if look[1].done()]:
            self._looks.remove(looked)
            commit = looked[1].result()
            self._give(Looked(looked[0], None if commit is None else commit["values"]))
        done = [pair for pair in self._saves if pair[1].done()]
        for pair in done:
            self._saves.remove(pair)
            pair[1].result()
            self._give(Saved(pair[0].snapshot.task, pair[0].snapshot.version))
