"""What runs for `track_queries`: batches of the ledger, looks at the checkpoints, and the answers to people."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from itertools import islice
from numbers import Integral
from types import TracebackType
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import FlowError, HeadraceError, QueueError, StateError
from headrace.spark.tracked_journal import Journal
from headrace.spark.tracked_topics import Checkpoint, Topics, ledger_batch, positions
from headrace.state.places import place_of
from headrace.track.link_words import why
from headrace.track.links import (
    AskEnds,
    Committed,
    Done,
    Effect,
    Ends,
    LinkAgent,
    Looked,
    Notice,
    Offsets,
    Phase,
    Read,
    Stimulus,
    Told,
)

_SHOWN: Final = 10
_ALONE_S: Final = 1.0
_REASON: Final = 500
OnDone = Callable[[str], object]


@dataclass(frozen=True)
class LinkStatus:
    """How far a topic is read: `ledger_lag` and `query_lag` are records; None where Kafka or the query is not there."""

    topic: str
    checkpoint: str
    ledger_lag: int | None
    query_lag: int | None


@dataclass(frozen=True)
class Noticed:
    """Substreams that are not as they should be, and why, of the newest."""

    count: int
    newest: tuple[str, ...]


@dataclass(frozen=True)
class TrackStatus:
    """What a tracker of queries knows."""

    open: int
    done: int
    unpromised: int
    """Of the open ones: no record with ends= was seen of them."""
    oldest: tuple[str, ...]
    """Why the open ones that were seen first are not done."""
    links: tuple[LinkStatus, ...]
    strangers: Noticed
    """They begin on a later link: made of records of no substream, or of another one. They are not tracked."""
    late: Noticed
    """Records came on a link that they had left."""
    after_end: Noticed
    """Records came on the first link after the marker, or in several partitions."""
    trouble: str | None
    """What is being tried again."""


class QueryTracker:
    """Tells of each substream whether it has left the last query: right within a micro-batch, and never too early."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        topics: Topics,
        journal: Journal,
        agent: LinkAgent,
        on_done: OnDone | None,
    ):
        self._checkpoints, self._topics, self._journal, self._agent = checkpoints, topics, journal, agent
        self._on_done = on_done
        self._numbers = {link.topic: number for number, link in enumerate(agent.links)}
        self._fresh: dict[int, Committed] = {}
        self._changed = threading.Condition()
        self._in_batch, self._stopping = threading.Lock(), threading.Event()
        self._problem: Exception | None = None
        self._trouble: str | None = None
        self._given = 0
        self._awaited: Counter[str] = Counter()
        self._heard: set[str] = set()
        """Those of them that are done: many may be done and forgotten at one moment."""

    def start(self, rows: DataFrame, trigger: Mapping[str, Any], look_s: float) -> None:
        """Called once, by `track_queries`."""
        writer = rows.writeStream.foreachBatch(self._on_batch).option("checkpointLocation", self._journal.ledger)
        self._ledger: StreamingQuery = (
            writer.queryName(f"headrace-ledger-{self._journal.run}").trigger(**trigger).start()
        )
        self._thread = threading.Thread(target=self._run, args=(look_s,), name="headrace-tracker", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------- for people

    def is_done(self, substream: str) -> bool:
        """True once all of it has left the last query. Raises what has stopped the tracker."""
        substream = _name(substream)
        with self._changed:
            return self._is_done(substream)

    def wait_for(self, substream: str, timeout_s: float | None = None) -> bool:
        """Until it is done; False if not in time."""
        substream, deadline = _name(substream), None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed, self._awaiting(substream):
            while not (substream in self._heard or self._is_done(substream)):
                if self._stopping.is_set():
                    raise FlowError(f"the tracker is stopped, and {why(self._agent, substream)}")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
            return True

    @contextmanager
    def _awaiting(self, substream: str) -> Iterator[None]:
        self._awaited[substream] += 1
        try:
            yield
        finally:
            self._awaited[substream] -= 1
            if not self._awaited[substream]:
                del self._awaited[substream]
                self._heard.discard(substream)

    def why(self, substream: str) -> str:
        """What it waits for, in a sentence."""
        substream = _name(substream)
        with self._changed:
            trouble = f"; being tried again: {self._trouble}" if self._trouble else ""
            return why(self._agent, substream) + trouble

    def done(self) -> list[str]:
        """Those found done since the last call, in the order in which they were found; each once, over all restarts.

        A call takes what the call before gave as received, and so does `stop`: after a crash, what was given last is
        given again. From the first call on none is forgotten before it is given.
        """
        if self._on_done is not None:
            raise FlowError("this tracker tells its function, on_done=, what is done; done() is for trackers without")
        with self._changed:
            self._raise_problem()
            if self._stopping.is_set():
                raise FlowError("the tracker is stopped; what was found done since the last done(), the next one gives")
            self._take_given()
            found = list(self._agent.untold)
            self._given = len(found)
            return found

    def status(self) -> TrackStatus:
        try:
            ends, trouble = self._topics.ends(range(len(self._numbers))), self._trouble
        except HeadraceError as problem:
            ends, trouble = {}, str(problem)
        with self._changed:
            agent = self._agent
            if self._problem is not None:
                trouble = f"the tracker has stopped: {self._problem}"
            return TrackStatus(
                open=len(agent.open),
                done=agent.done_count,
                unpromised=sum(it.phase is Phase.OPEN for it in agent.open.values()),
                oldest=tuple(why(agent, name) for name in islice(agent.open, _SHOWN)),
                links=tuple(self._link_status(number, ends.get(number)) for number in range(len(agent.links))),
                strangers=_noticed(agent.strangers),
                late=_noticed(agent.late),
                after_end=_noticed(agent.after_end),
                trouble=trouble,
            )

    def stop(self) -> None:
        """Started again with the same folder it goes on where it was. The queries are not touched."""
        self._stop_ledger()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            if self._problem is None and self._given:
                self._take_given()
            self._changed.notify_all()
        self._topics.close()

    def __enter__(self) -> QueryTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _is_done(self, substream: str) -> bool:
        if substream in self._agent.done:
            return True
        self._raise_problem()
        return False

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _take_given(self) -> None:
        if self._given or not self._agent.is_asked:
            given, self._given = self._given, 0
            self._on(Told(given))

    def _link_status(self, number: int, ends: Offsets | None) -> LinkStatus:
        name, committed = self._agent.links[number], self._agent.committed[number]
        query_lag = None if committed is None else _lag(ends, committed.positions)
        return LinkStatus(name.topic, name.checkpoint, _lag(ends, self._agent.read[number]), query_lag)

    # ----------------------------------------------------------------- threads

    def _on(self, stimulus: Stimulus) -> list[Effect]:
        """The agent is told, and nobody hears of what came of it before that is safe."""
        with self._changed:
            effects = self._agent.on(stimulus)
            for effect in effects:
                if isinstance(effect, Done) and self._awaited:
                    self._heard.update(self._awaited.keys() & set(effect.substreams))
            try:
                self._journal.keep(stimulus, self._agent)
            except Exception as problem:
                self._problem = problem
                raise
            finally:
                self._changed.notify_all()
            return effects

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        """Of the ledger."""
        with self._in_batch:
            if self._stopping.is_set():
                return  # the next start reads it: its ledger begins where the journal says
            try:
                found = ledger_batch(rows, self._numbers)
                offsets = place_of(self._journal.ledger).read(f"offsets/{batch}").decode()
                read = {number: positions(offsets, topic) or {} for topic, number in self._numbers.items()}
                self._on(Read(read, found))
            except Exception as problem:
                self._problem = self._problem or FlowError(f"the ledger cannot go on: {_reason(problem)}")
                raise

    def _run(self, look_s: float) -> None:
        checked = time.monotonic()
        while not self._stopping.wait(look_s):
            try:
                if time.monotonic() - checked > _ALONE_S:
                    self._journal.check_alone()
                    checked = time.monotonic()
                self._look()
                self._trouble = None
            except Exception as problem:
                # Kafka, or a checkpoint, may be out of reach for a while; what we could not keep is lost.
                if self._problem is not None or not isinstance(problem, QueueError | StateError):
                    self._fail(problem)
                    return
                self._trouble = str(problem)

    def _look(self) -> None:
        if not self._ledger.isActive and not self._stopping.is_set():
            stopped = self._ledger.exception()
            raise self._problem or FlowError(
                f"the ledger has stopped: {_reason(stopped) if stopped else 'somebody has stopped it'}; start the "
                f"tracker again: it goes on where it was"
            )
        self._look_at_checkpoints()
        if self._fresh or self._agent.wants_ends:
            effects = self._on(Looked(self._fresh))
            self._fresh = {}
            for effect in effects:
                if isinstance(effect, AskEnds):
                    self._on(Ends(self._topics.ends(effect.links)))
        if self._on_done is not None:
            self._tell(self._on_done)

    def _look_at_checkpoints(self) -> None:
        for number, checkpoint in enumerate(self._checkpoints):
            found = checkpoint.news()
            if found is not None and found != self._agent.committed[number]:
                self._fresh[number] = found

    def _tell(self, on_done: OnDone) -> None:
        """Not under the lock: the function may ask the tracker."""
        with self._changed:
            names, told = tuple(self._agent.untold), 0
        try:
            for name in names:
                try:
                    on_done(name)
                except Exception as error:
                    kind = type(error).__name__
                    raise FlowError(f"on_done({name!r}) raised {kind}: {error}; the next start tells it") from error
                told += 1
        finally:
            if told or not self._agent.is_asked:
                self._on(Told(told))

    def _fail(self, problem: Exception) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()
        with suppress(Exception):  # the session may be gone
            self._stop_ledger()

    def _stop_ledger(self) -> None:
        self._stopping.set()
        with self._in_batch:  # a batch that has begun comes to its end; the next one returns at once
            pass
        self._ledger.stop()


def _lag(ends: Offsets | None, at: Offsets) -> int | None:
    return None if ends is None else sum(max(0, end - at.get(partition, 0)) for partition, end in ends.items())


def _noticed(notice: Notice) -> Noticed:
    newest = islice(reversed(notice.why.items()), _SHOWN)
    return Noticed(notice.count, tuple(f"{name}: {reason}" for name, reason in newest))


def _name(substream: object) -> str:
    """Substreams are known by the texts that Spark makes of their names."""
    if isinstance(substream, bool):
        return str(substream).lower()
    if isinstance(substream, str | Integral) or type(substream) is date:
        return str(substream)
    raise FlowError(
        f"substreams are known by what Spark's cast of by= to a string gives; ask by that text, not by {substream!r}"
    )


def _reason(problem: Exception) -> str:
    """Spark's errors come with the stack of Java."""
    said = str(problem)
    return said if len(said) <= _REASON else f"{said[:_REASON]}…"
