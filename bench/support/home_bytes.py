"""Smart home at the paper's shape: what goes between tasks, against what comes in.

All tasks are in one process, and hand each other the bytes that they would send over the lines of a gang. A slice of
the input is made at a time, so that there can be many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from bench.support.trees import check_same
from headrace.demo.programs import SmartHome, smart_home
from headrace.demo.programs.smart_home import ALL, HOUR_S
from headrace.synchronize.codec import Codec
from headrace.synchronize.mailbox import LAST, Events, after
from headrace.synchronize.optimize import by_rate
from headrace.synchronize.plan import Plan, make_plan
from headrace.synchronize.running import Running
from headrace.synchronize.tags import tag_space
from headrace.synchronize.tree import TreeTask

HOUSES: Final = 20
HOUSEHOLDS: Final = 21
PLUGS: Final = 5
"""Of a household: 2100 in all, where the paper has 2125."""
_FRAME: Final = 5
"""Of a message: its length and its kind."""
_CSV_ROWS: Final = 10_000
_CSV_COLUMNS: Final = ("time", "house", "household", "plug", "value")


@dataclass
class Sent:
    """What was counted."""

    rows: int = 0
    input_bytes: float = 0.0
    """As lines of CSV with five numbers."""
    sent_bytes: int = 0
    messages: int = 0


def slice_of(number: int, loads: int) -> pa.Table:
    """So many loads of every plug, and the end of the slice."""
    table = smart_home.generate(HOUSES, HOUSEHOLDS, PLUGS, 1, loads, seed=number + 1)
    times = table.column("time").to_numpy() + number * HOUR_S * 1_000_000
    is_end = np.asarray(table.column("kind")) == "end"
    values = np.where(is_end, number, table.column("value").to_numpy())
    table = table.set_column(table.schema.get_field_index("time"), "time", pa.array(times))
    return table.set_column(table.schema.get_field_index("value"), "value", pa.array(values)).combine_chunks()


def planned(tasks: int) -> Plan:
    program = SmartHome()
    loads = [(("load", house), None, 1000.0) for house in range(HOUSES)]
    space = tag_space(program, [(("end", ALL), None, 1.0), *loads], tasks, is_cut=False)
    return make_plan(space, by_rate(space, tasks), tasks)


class Neighbourhood:
    """The tasks of a plan, and the sequential program beside them."""

    def __init__(self, tasks: int):
        self.plan = planned(tasks)
        program: Any = self.plan.space.program
        self._codec = Codec(program)
        self._trees = [TreeTask(self.plan, task, smart_home.EVENTS, ["input"]) for task in range(self.plan.tasks)]
        self._under_way: deque[tuple[int, bytes]] = deque()
        self._given: list[pa.RecordBatch] = []
        self._sequential = Running(program, smart_home.EVENTS)
        self._state = program.init()
        self.sent = Sent()
        for tree in self._trees:
            tree.start(program.init())
            self._work(tree)
        self._deliver()

    def take(self, events: pa.Table) -> None:
        """A slice, at all tasks; and in the sequential program."""
        batch = events.to_batches()[0]
        self.sent.rows += batch.num_rows
        self.sent.input_bytes += batch.num_rows * _csv_bytes_a_row(events)
        times = batch.column("time").to_numpy()
        columns = [batch.column("kind"), batch.column("house")]
        numbers = self.plan.space.numbers_of(columns, None, np.zeros(len(times), np.int64))
        whole = Events(batch, times, np.arange(len(times)), numbers)
        places = np.array([self.plan.members[owner].task for owner in self.plan.owner])[numbers]
        for task, tree in enumerate(self._trees):
            tree.push(0, whole.take(np.flatnonzero(places == task)))
            tree.complete(0, after(int(times[-1])))
            self._work(tree)
        self._deliver()
        self._state = self._sequential.run(self._state, batch)

    def finish(self) -> Sent:
        """Raises AssertionError where results are not those of the sequential program."""
        for tree in self._trees:
            tree.complete(0, LAST)
            self._work(tree)
        self._deliver()
        schema = SmartHome.outputs
        wanted = pa.Table.from_batches(self._sequential.fetch(), schema=schema)
        check_same("smart home", pa.Table.from_batches(self._given, schema=schema), wanted)
        return self.sent

    def _work(self, tree: TreeTask) -> None:
        self._given += tree.work()
        for task, message in tree.outbox:
            content = self._codec.encode(message)
            self.sent.sent_bytes += len(content) + _FRAME
            self.sent.messages += 1
            self._under_way.append((task, content))
        tree.outbox.clear()

    def _deliver(self) -> None:
        while self._under_way:
            task, content = self._under_way.popleft()
            self._trees[task].receive(self._codec.decode(content))
            self._work(self._trees[task])


def _csv_bytes_a_row(events: pa.Table) -> float:
    """Of a few rows out of the middle."""
    sample = events.select(list(_CSV_COLUMNS)).slice(events.num_rows // 2, _CSV_ROWS)
    sink = pa.BufferOutputStream()
    csv.write_csv(sample, sink, csv.WriteOptions(include_header=False))
    return float(sink.getvalue().size / sample.num_rows)
