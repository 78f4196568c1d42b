"""A task: one stage of the plan over one partition. Rows in the order of arrival go in, answers come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.language.nodes import Infinite, LastEvents
from headrace.measure.admission import Admission, id_words
from headrace.measure.aggregator import Aggregator
from headrace.measure.chunk_files import ChunkFiles
from headrace.measure.chunks import CLOSURE
from headrace.measure.convert import convert
from headrace.measure.count_leaf import CountLeaf
from headrace.measure.events import TIME_ROW, EventEncoder, EventLayout, Grouping
from headrace.measure.explain import describe
from headrace.measure.functions import aggregator_of
from headrace.measure.keys import BytesIndex
from headrace.measure.leaf import Batch, WindowLeaf
from headrace.measure.plan import Leaf, Stage
from headrace.measure.policy import COUNTED_CODES, NO_ARRIVAL, NO_TIME, OK, STATUSES, Policy
from headrace.measure.reservoir import CHUNK_EVENTS, MEMORY_BYTES, EventReservoir
from headrace.measure.residents import Residents
from headrace.measure.steps import NEVER
from headrace.measure.words import is_ordered_word, reckon_ticks, time_words, to_words
from headrace.model.jit import Ints
from headrace.model.ticks import FARTHEST
from headrace.state.rocks import RocksGroups
from headrace.state.store import StoredPart
from headrace.state.tables import Tables, part_of, size_of, under

_MOST_RESIDENTS: Final = 1 << 15
_NONE: Final[Ints] = np.zeros(0, np.int64)
_FIRST: Final[Ints] = np.zeros(1, np.int64)
_NO_IDS: Final[Ints] = np.zeros((0, 3), np.int64)


@dataclass(frozen=True)
class TaskSettings:
    """What a task is told beside its metrics.

    `may_be_late`   rows may come in another order than that of their times
    `policy`        what to do with late and repeated events; None takes every event as it comes
    `kept`          columns to remember as they came, with their types, for metrics that do not exist yet
    """

    time: str
    may_be_late: bool
    id: str | None = None
    arrival: str | None = None
    policy: Policy | None = None
    memory_bytes: int = MEMORY_BYTES
    chunk_events: int = CHUNK_EVENTS
    kept: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a task reads beside those of its stage."""
        if self.policy is None:
            return (self.time,)
        id = self.id if self.policy.dedup is not None else None
        return tuple(name for name in (self.time, id, self.arrival) if name is not None)


class MeasureTask:
    """Answers every row with all metrics of the stage. How rows are cut into batches does not matter."""

    def __init__(
        self,
        stage: Stage,
        settings: TaskSettings,
        files: ChunkFiles | None = None,
        database: RocksGroups | None = None,
    ):
        """`files`: where full chunks of events stay, for a task that is dumped and restored.

        `database`: where the state of groups is, if it is not all in memory.
        """
        self.stage = stage
        self._settings = settings
        self._texts = BytesIndex()
        self._encoder = EventEncoder(stage, self._texts, settings.kept, database)
        closure = CLOSURE if settings.policy is None else settings.policy.closure
        self.reservoir = EventReservoir(
            self._encoder.rows, settings.memory_bytes, settings.chunk_events, files=files, closure=closure
        )
        self.layouts = [self._encoder.layout]
        self._admission = None
        if settings.policy is not None:
            self._admission = Admission(settings.policy, settings.id is not None)
        self._windows: list[WindowLeaf] = []
        self._counts: list[CountLeaf] = []
        self._aggregators: list[Aggregator] = []
        for leaf in stage.leaves:
            self._plant(leaf)
        places = {aggregator.metric.name: place for place, aggregator in enumerate(self._aggregators)}
        self._places = [places[metric.name] for metric in stage.metrics]
        self._residents = [] if database is None else self._house(database)
        self._next_number = 0
        self._newest = NEVER
        self.codes: Ints = np.zeros(0, np.int64)
        """What became of each row of the last push (`admission`), where there is a policy."""
        self.forgets = True
        """False where events that no window needs any more must stay: somebody will ask for them."""
        self.begins_late = False
        """True where the stream has had events that this task does not know of."""
        self.reach: dict[str, int] = {}
        """Of metrics that began after the stream: the time up to which they have seen no events."""

    def _plant(self, leaf: Leaf) -> None:
        # The last N events are those that came last: whatever their times, they come in order.
        late = self._settings.may_be_late and not isinstance(leaf.window, LastEvents)
        aggregators = [aggregator_of(metric.function, late)(metric, self._texts) for metric in leaf.metrics]
        self._aggregators.extend(aggregators)
        if isinstance(leaf.window, LastEvents):
            self._counts.append(CountLeaf(leaf, aggregators, self._encoder))
            return
        for together in _by_late_mode(aggregators) if late else [aggregators]:
            self._windows.append(WindowLeaf(leaf, together, self._encoder, may_be_late=late))

    def _house(self, database: RocksGroups) -> list[Residents]:
        """Groups are in memory only while they are needed."""
        found = []
        for table, leaf in enumerate(self.leaves):
            parts = len(leaf.aggregators) + isinstance(leaf, CountLeaf)
            leaf.residents = Residents(database, table, parts, leaf)
            found.append(leaf.residents)
        if self._admission is not None:
            self._admission.residents = Residents(database, len(found), 1, self._admission)
            found.append(self._admission.residents)
        return found

    @property
    def inputs(self) -> list[str]:
        """The columns that are pushed."""
        return list(dict.fromkeys([*self._settings.columns, *self.stage.columns, *self._settings.kept]))

    @property
    def leaves(self) -> list[WindowLeaf | CountLeaf]:
        return [*self._windows, *self._counts]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows of each status there have been."""
        found = dict.fromkeys(STATUSES, 0)
        if self._admission is not None:
            for status, count in zip(STATUSES, self._admission.counts.tolist(), strict=True):
                found[status] += count
        return found

    @property
    def groups(self) -> int:
        return self._encoder.groupings[self.stage.partitioner].groups

    # ------------------------------------------------------------------- push

    def push(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The answers of the rows, one array for each metric of the stage. Rows that cannot be measured get nulls."""
        times, self.codes = self._ticks(rows.column(self._settings.time))
        slots = None
        if self._admission is not None and rows.num_rows:
            slots = self._admit(self._admission, rows, times)
        if self.codes.max(initial=OK) <= COUNTED_CODES:
            return self._answer(rows, times, slots)
        counted = self.codes <= COUNTED_CODES
        if slots is not None:
            slots = {columns: slot[counted] for columns, slot in slots.items()}
        answers = self._answer(rows.filter(pa.array(counted)), times[counted], slots)
        index = pa.array(np.cumsum(counted) - 1, mask=~counted)
        return [answer.take(index) for answer in answers]

    def _admit(self, admission: Admission, rows: pa.RecordBatch, times: Ints) -> dict[tuple[str, ...], Ints]:
        """Decide what counts; the groups of all rows, for they were needed to decide."""
        arrivals, ids = _NONE, _NO_IDS
        if self._settings.arrival is not None:
            column = rows.column(self._settings.arrival)
            self.codes[(self.codes == OK) & ~np.asarray(column.is_valid())] = NO_ARRIVAL
            if is_ordered_word(column.type):
                arrivals = to_words(column, self._texts).word
        if admission.looks_at_ids:
            assert self._settings.id is not None
            ids = id_words(rows.column(self._settings.id))
        slots = self._encoder.slots(rows)
        grouping = self._encoder.groupings[self.stage.partitioner]
        admission.admit(grouping.slots, slots[self.stage.partitioner], times, self.codes, arrivals, ids)
        return slots

    def _answer(self, rows: pa.RecordBatch, times: Ints, slots: dict[tuple[str, ...], Ints] | None) -> list[pa.Array]:
        if rows.num_rows == 0:
            return [pa.array([], metric.type) for metric in self.stage.metrics]
        if self.begins_late:
            self.reach.update(dict.fromkeys(self._names, int(times.min()) - 1))
            self.begins_late = False
        numbers = np.arange(self._next_number, self._next_number + rows.num_rows)
        events = self._encoder.encode(rows, times, numbers, slots)
        latest = int(times[0]) if len(times) == 1 else int(times.max())
        batch = Batch(events, self._next_number, latest, self._late_rows(times))
        if self._windows or self.reservoir.writer is not None:
            self.reservoir.push(events)
        for window in self._windows:
            window.push(batch, self.reservoir)
        for count in self._counts:
            count.push(batch)
        found = [aggregator.finish() for aggregator in self._aggregators]
        if self.reservoir.writer is not None:
            self._touch(events)
        self._next_number += rows.num_rows
        self._newest = max(self._newest, latest)
        self._forget()
        for residents in self._residents:
            if len(residents) > _MOST_RESIDENTS:
                residents.go_back()
        return [found[place] for place in self._places]

    def note(self, codes: Ints) -> None:
        """Count rows that cannot be measured and were not pushed."""
        if self._admission is not None:
            self._admission.counts += np.bincount(codes, minlength=len(STATUSES))

    def set_boundary(self, rows: pa.RecordBatch) -> None:
        """These rows, which were pushed, came from a backfill: the stream may bring them again."""
        assert self._admission is not None
        assert self._settings.arrival is not None
        arrivals = to_words(rows.column(self._settings.arrival), self._texts)
        known = arrivals.valid != 0
        slot = self._encoder.groupings[self.stage.partitioner].slot_of(rows, self._texts)
        self._admission.set_boundary(slot[known], arrivals.word[known])

    # ----------------------------------------------------------------- groups

    def _touch(self, events: Ints) -> None:
        for columns, grouping in self._encoder.groupings.items():
            if isinstance(grouping, Grouping):
                grouping.touch(events[self._encoder.slot_row(columns)], events[TIME_ROW])

    def _release_groups(self) -> None:
        """Forget groups of which no event is remembered, and no id: every window has passed them."""
        oldest = self.reservoir.oldest
        # Count windows remember events of any age, with the slots of all their groupings.
        if oldest is None or self._counts:
            return
        forgotten = None if self._admission is None else self._admission.forgotten
        oldest = oldest if forgotten is None else min(oldest, forgotten)
        lasting = {leaf.group_by for leaf in self.stage.leaves if isinstance(leaf.window, Infinite)}
        released = False
        for columns, grouping in self._encoder.groupings.items():
            if isinstance(grouping, Grouping) and columns not in lasting:
                gone = grouping.release_before(oldest)
                released |= len(gone) > 0
                if len(gone) and columns == self.stage.partitioner and self._admission is not None:
                    self._admission.forget(gone)
        if released and not any(layout.has_texts for layout in self.layouts):
            self._release_texts()

    def _release_texts(self) -> None:
        """Only keys have strings: those of keys that are left stay."""
        present = [g for g in self._encoder.groupings.values() if isinstance(g, Grouping)]
        groupings = [*present, *self._encoder.former.values()]
        used = np.unique(np.concatenate([grouping.text_codes() for grouping in groupings]))
        renamed = self._texts.keep(used)
        for grouping in groupings:
            grouping.rename_texts(renamed)

    # ------------------------------------------------------------------ state

    def go_on(self, files: ChunkFiles) -> None:
        """From now on full chunks of events go here."""
        assert self.reservoir.writer is not None
        self.reservoir.writer.files = files

    def flush(self) -> None:
        """Begin to write what `dump` will wait for."""
        self.reservoir.flush()

    def dump(self, wait: bool = True) -> tuple[Tables, dict[str, Any], tuple[StoredPart, ...]]:
        """Everything needed to go on after the last pushed row: tables, small values that belong to them, files.

        Without `wait`, chunks of events that are still being written are among the tables.
        """
        for residents in self._residents:
            residents.go_back()
        if not self._residents:
            self._release_groups()
        events, files = self.reservoir.dump(wait)
        self._encoder.keep_former([self.layouts[layout] for layout in self.reservoir.layouts])
        tables = {
            "clock": np.array([self._next_number, self._newest], np.int64),
            **under("texts", self._texts.dump()),
            **under("groups", self._encoder.dump()),
            **under("events", events),
        }
        if self._admission is not None:
            slots = self._encoder.groupings[self.stage.partitioner].slots
            tables.update(under("admission", self._admission.dump(slots)))
        bytes_of = {"strings": size_of("texts", tables), "keys": size_of("groups", tables)}
        bytes_of |= {"events": size_of("events", tables), "times and ids": size_of("admission", tables)}
        for leaf in self.leaves:
            tables.update(under(leaf.name, leaf.dump()))
            for aggregator in leaf.aggregators:
                name = aggregator.metric.name
                bytes_of[f"metric {name}"] = size_of(f"{leaf.name}/{name}", tables)
        values = {
            "layouts": [asdict(layout) for layout in self.layouts],
            "metrics": {metric.name: describe(metric) for metric in self.stage.metrics},
            "reach": self.reach,
            "counts": self.counts,
            "bytes": bytes_of,
            "groups": self.groups,
            "events": len(self.reservoir),
            "event_files": len(files),
            "newest": None if self._newest == NEVER else self._newest,
            "oldest": self.reservoir.oldest,
        }
        return tables, values, tuple(files)

    def restore(self, tables: Tables, values: Mapping[str, Any], files: Sequence[StoredPart]) -> None:
        """Go on where a task was dumped; the tables are this task's from now on.

        Metrics that the dump does not have are computed from the events that are remembered.
        """
        self._next_number, self._newest = (int(value) for value in tables["clock"])
        self._texts.restore(part_of("texts", tables))
        self.layouts = [EventLayout.from_json(layout) for layout in values["layouts"]]
        self._encoder.restore(part_of("groups", tables), self.layouts)
        written = len(self.layouts) - 1
        if not self._residents and self.layouts[written] != self._encoder.layout:
            self.layouts.append(self._encoder.layout)
        self.reservoir.layout = len(self.layouts) - 1
        self.reservoir.convert = self._converted
        self.reservoir.restore(part_of("events", tables), files[: values["event_files"]], written)
        self.reach = {name: time for name, time in values["reach"].items() if name in self._names}
        if self._admission is not None:
            self._admission.restore(part_of("admission", tables))
        for leaf in self.leaves:
            self._restore_leaf(
                leaf, part_of(leaf.name, tables), values["metrics"], lambda e: self.reservoir.current(e, written)
            )

    def _converted(self, layout: int, events: Ints) -> Ints:
        found = convert(self.layouts[layout:], events, self._encoder)
        self._touch(found)
        return found

    def _restore_leaf(
        self,
        leaf: WindowLeaf | CountLeaf,
        tables: Tables,
        known: Mapping[str, str],
        current: Callable[[Ints], Ints],
    ) -> None:
        """Restore what was there under the same description; the rest begins with the events that are remembered."""
        new = [a for a in leaf.aggregators if known.get(a.metric.name) != describe(a.metric)]
        leaf.restore(tables, self._newest, [a for a in leaf.aggregators if a not in new], current)
        if new and self._newest != NEVER:
            reach = leaf.backfill(new, self.reservoir, self.layouts)
            self.reach.update({a.metric.name: reach for a in new if reach is not None})

    @property
    def _names(self) -> set[str]:
        return {metric.name for metric in self.stage.metrics}

    def _ticks(self, column: pa.Array) -> tuple[Ints, Ints]:
        """Times, and what is to be said of rows because of them."""
        words, unit = time_words(column, self._texts)
        codes = np.empty(len(words.word), np.int64)
        reckon_ticks(words.word, words.valid, unit, FARTHEST, codes, OK, NO_TIME)
        return words.word, codes

    def _late_rows(self, times: Ints) -> Ints:
        if len(times) == 1:
            return _FIRST if times[0] < self._newest else _NONE
        before = np.maximum.accumulate(np.concatenate([[self._newest], times[:-1]]))
        return np.flatnonzero(times < before)

    def _forget(self) -> None:
        self.reservoir.settle()
        earliest: int | None = self._newest
        if self._settings.may_be_late:
            earliest = None if self._admission is None else self._admission.earliest
        if earliest is not None and self.forgets:
            needed = [window.needed_after(earliest) for window in self._windows]
            self.reservoir.drop_until(min(needed, default=earliest))


def _by_late_mode(aggregators: Sequence[Aggregator]) -> list[list[Aggregator]]:
    """Aggregators that treat late events in the same way share their steps."""
    groups: dict[tuple[int, int], list[Aggregator]] = {}
    for aggregator in aggregators:
        groups.setdefault((aggregator.late_mode, aggregator.late_keep), []).append(aggregator)
    return list(groups.values())
