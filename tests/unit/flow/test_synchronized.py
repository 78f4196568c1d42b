"""Programs in flows: what a task sends depends on what comes to it, and not on where that is cut."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.demo.programs import PROGRAMS, EventWindows, KeyCounters, SmartHome
from headrace.errors import HeadraceError, OrderBroken, ProgramError, StageFailed
from headrace.flow.builder import Flow
from headrace.flow.operators import MAIN, Operator, Outputs, Shape
from headrace.flow.sequential import run_sequentially
from headrace.flow.synchronized import MESSAGES, Marked, Tree, beat_of, envelope, planned
from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import inputs_of
from headrace.synchronize.mailbox import LAST
from headrace.synchronize.plan import Plan
from headrace.testing.program_flows import events_by_stream, program_flow, program_of, rates_of

from .operator_cases import cut_up

_VALUES = pa.schema([("time", pa.int64()), ("kind", pa.string()), ("value", pa.int64())])


def _values(*rows: tuple[int, str | None, int]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, _VALUES, strict=True)], schema=_VALUES)


def _windows(leaves: int = 2) -> Plan:
    return planned(EventWindows(), inputs_of(EventWindows(), None, None, None, None), leaves, None, "by_rate")


def _marking(beat: int = 10, source: int = 3, plan: Plan | None = None) -> Operator:
    plan = plan if plan is not None else _windows()
    inputs = inputs_of(plan.space.program, None, None, None, None)
    return Marked(plan, inputs, source, beat, _VALUES).open(Shape("in", {}, index=0, tasks=1))


def _records(outputs: Outputs) -> list[dict[str, Any]]:
    return [row for name, batch in outputs for row in batch.to_pylist() if name == MAIN]


def _again(operator: Operator, fresh: Operator) -> Operator:
    """As it is after a restart."""
    fresh.restore([operator.content()])
    return fresh


# ------------------------------------------------------------------------ marks


_ROWS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["value", "barrier", None]), st.integers(0, 9)))


@settings(max_examples=60)
@given(_ROWS, st.lists(st.integers(0, 30), max_size=5), st.integers(1, 12), st.integers(-40, 40))
def test_where_marks_are_does_not_depend_on_cuts(
    steps: list[tuple[int, str | None, int]], cuts: list[int], beat: int, time: int
) -> None:
    rows: list[tuple[int, str | None, int]] = []
    for step, kind, value in steps:
        is_after_beat = bool(rows) and rows[-1][1] is None
        time += max(step, 1) if is_after_beat else step
        rows.append((time, kind, value))
    whole = _marking(beat)
    expected = _records([*whole.apply(_values(*rows)), *whole.finish()])
    operator, found = _marking(beat), list[dict[str, Any]]()
    for part in cut_up(_values(*rows), cuts):
        found += _records(operator.apply(part))
        operator = _again(operator, _marking(beat))
    assert found + _records(operator.finish()) == expected
    _check_marks(expected, rows)


def _check_marks(found: list[dict[str, Any]], rows: Sequence[tuple[int, str | None, int]]) -> None:
    """A mark is behind all events below its key and before all others; events are all there, as they came."""
    events = [row for row in found if row["__headrace_kind"] == 0]
    assert [(row["time"], row["kind"], row["value"]) for row in events] == [row for row in rows if row[1] is not None]
    for at, row in enumerate(found):
        if row["__headrace_kind"] == 1:
            key = (row["__headrace_time"], row["__headrace_rank"])
            before = [
                (each["__headrace_time"], each["__headrace_rank"])
                for each in found[:at]
                if each["__headrace_kind"] == 0
            ]
            behind = [
                (each["__headrace_time"], each["__headrace_rank"])
                for each in found[at:]
                if each["__headrace_kind"] == 0
            ]
            assert max(before, default=key) <= key <= min(behind, default=key)


def test_marks_go_to_all_workers_that_have_tags() -> None:
    found = _records(_marking(10).apply(_values((3, "value", 1), (9, "value", 2), (10, "value", 3))))
    assert [(row["__headrace_kind"], row["__headrace_to"], row["__headrace_time"]) for row in found] == [
        (1, 0, 3), (1, 1, 3), (1, 2, 3), (0, 1, 3), (0, 2, 9), (1, 0, 10), (1, 1, 10), (1, 2, 10), (0, 1, 10),
    ]  # fmt: skip
    assert {row["__headrace_source"] for row in found} == {3}
    last = _records(_marking().finish())
    assert [(row["__headrace_to"], row["__headrace_time"], row["__headrace_rank"]) for row in last] == [
        (n, *LAST) for n in range(3)
    ]


def test_what_comes_out_of_order_is_told_of_with_its_place() -> None:
    operator = _marking()
    operator.apply(_values((5, "value", 1)))
    with pytest.raises(OrderBroken, match=r"in, task 0: .*an event of time 4 comes after one of time 5"):
        operator.apply(_values((4, "value", 1)))
    operator.apply(_values((6, None, 0)))
    with pytest.raises(OrderBroken, match="an event of time 6 comes after a heartbeat of time 6"):
        _again(operator, _marking()).apply(_values((6, "value", 1)))
    assert operator.apply(_values()) == []


def test_a_heartbeat_that_is_late_says_nothing_new() -> None:
    """Wherever frames are cut: it is left out, and an event after it must not be older than one before it."""
    rows = ((5, "value", 1), (4, None, 0), (5, "value", 2), (9, None, 0), (7, None, 0), (10, "value", 3))
    wanted = _records(_marking().apply(_values(*[row for row in rows if row[0] not in (4, 7)])))
    assert _records(_marking().apply(_values(*rows))) == wanted
    operator = _marking()
    assert [record for row in rows for record in _records(operator.apply(_values(row)))] == wanted
    with pytest.raises(OrderBroken, match="an event of time 8 comes after one of time 10"):
        operator.apply(_values((3, None, 0), (8, "value", 4)))


def test_a_tag_that_there_should_not_be() -> None:
    with pytest.raises(ProgramError, match="EventWindows: an event has the tag barier, and there are only value, barr"):
        _marking().apply(_values((1, "barier", 0)))


# ------------------------------------------------------------------------ workers


class _World:
    """All tasks of a program, with lines that are as slow as chance has it; what came to each is written down."""

    def __init__(self, name: str, seed: int, leaves: int):
        self.rng = random.Random(seed)
        streams = events_by_stream(name, seed, ties=True)
        program = program_of(name)
        inputs = inputs_of(program, None, None, None, None)
        rates = rates_of(name, streams) if name == "smart_home" or self.rng.random() < 0.5 else None
        plan = planned(program, inputs, leaves, rates, "by_rate")
        self.codec, self.members = Codec(program), len(plan.members)
        self._tree = Tree(plan, tuple(str(n) for n in range(len(streams))), streams[0].schema, inputs.time, self.codec)
        self.came: list[list[pa.RecordBatch]] = [[] for _ in plan.members]
        self.lines: dict[tuple[Any, int], deque[pa.RecordBatch]] = {}
        beat = self.rng.choice([1, 8, 64])
        for number, rows in enumerate(streams):
            operator = Marked(plan, inputs, number, beat, rows.schema).open(Shape("in", {}))
            for _, batch in (*operator.apply(rows), *operator.finish()):
                self._send(f"source {number}", batch)

    def opened(self, task: int) -> Operator:
        return self._tree.open(Shape("tree", {}, index=task, tasks=self.members))

    def _send(self, sender: Any, batch: pa.RecordBatch) -> None:
        for row, to in enumerate(batch.column("__headrace_to").to_pylist()):
            self.lines.setdefault((sender, to), deque()).append(batch.slice(row, 1))

    def run(self) -> list[dict[Any, Any]]:
        """What each sent, by where it goes."""
        operators = [self.opened(task) for task in range(self.members)]
        sent: list[dict[Any, Any]] = [{} for _ in operators]
        while any(self.lines.values()):
            line = self.rng.choice([line for line, waiting in self.lines.items() if waiting])
            count = min(self.rng.randint(1, 6), len(self.lines[line]))
            part = pa.Table.from_batches([self.lines[line].popleft() for _ in range(count)])
            batch = part.combine_chunks().to_batches()[0]
            self.came[line[1]] += cut_up(batch, range(1, count))
            outputs = operators[line[1]].apply(batch)
            self.note(sent[line[1]], outputs)
            for name, messages in outputs:
                if name == MESSAGES:
                    self._send(line[1], messages)
        for operator in operators:
            assert operator.finish() == []
        return sent

    def note(self, sent: dict[Any, Any], outputs: Outputs) -> None:
        for name, batch in outputs:
            for row in batch.to_pylist():
                if name == MESSAGES:
                    sent.setdefault(row["__headrace_to"], []).append(self.codec.decode(row["__headrace_message"]))
                else:
                    sent.setdefault(MAIN, []).append(row)

    def again(self, task: int) -> dict[Any, Any]:
        """The same came, cut in other places, and now and then it starts again."""
        operator, sent, at = self.opened(task), dict[Any, Any](), 0
        while at < len(self.came[task]):
            count = self.rng.choice([1, 2, 7, 40, 1000])
            part = pa.Table.from_batches(self.came[task][at : at + count])
            at += count
            self.note(sent, operator.apply(part.combine_chunks().to_batches()[0]))
            if self.rng.random() < 0.3:
                operator = _again(operator, self.opened(task))
        return sent


@pytest.mark.parametrize("leaves", [2, 4])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_worker_that_starts_again_sends_the_same_again(name: str, leaves: int) -> None:
    """Record by record on each of its lines: that is what its receivers number them by."""
    world = _World(name, leaves, leaves)
    sent = world.run()
    for task in range(world.members):
        for _ in range(2):
            assert world.again(task) == sent[task], f"worker {task}"


_ODD = ("__time", "__tag", "__to", "__kind", "__message", "__lane", "__source", "__rank", "a.b", "class")


def test_columns_may_have_any_name_but_those_that_are_reserved() -> None:
    rows = _values((1, "value", 4), (2, "barrier", 0), (3, "value", 1))
    for name in _ODD:
        rows = rows.append_column(name, pa.array([7, 8, 9]))
    assert _flow(EventWindows(), rows) == [{"time": 2, "total": 4}]
    with pytest.raises(ProgramError, match="a column __headrace_tag; names that begin with __headrace_ are Headrace's"):
        _flow(EventWindows(), rows.append_column("__headrace_tag", pa.array([7, 8, 9])))
    inputs = inputs_of(EventWindows(), None, None, None, None)
    plan, codec = planned(EventWindows(), inputs, 1, None, "sequential"), Codec(EventWindows())
    old, new = (Tree(plan, ("s.0", "t.0"), rows.schema, "time", codec).open(Shape("tree", {})) for _ in range(2))
    for _, batch in Marked(plan, inputs, 0, 10, rows.schema).open(Shape("in", {})).apply(rows):
        old.apply(batch)
    new.restore([content for content in [old.changes()] if content is not None])
    assert _waiting(new) == _waiting(old) > 0


def _waiting(operator: Operator) -> int:
    report: Any = operator.report()
    count: int = report["waiting"]
    return count


def test_a_worker_says_what_it_waits_for() -> None:
    plan = _windows()
    tree = Tree(plan, ("orders.0", "clicks.0"), _VALUES, "time", Codec(EventWindows()))
    operator = tree.open(Shape("tree", {}, index=1, tasks=3))
    report: Any = operator.report()
    assert (report["waiting"], report["waits_for"]) == (0, [])
    found = Marked(plan, inputs_of(EventWindows(), None, None, None, None), 0, 10, _VALUES).open(Shape("in", {}))
    for _, batch in found.apply(_values((3, "value", 1))):
        operator.apply(batch.filter(pa.array(batch.column("__headrace_to").to_numpy() == 1)))
    report = operator.report()
    assert report["waiting"] == 1
    [waits] = report["waits_for"]
    assert re.fullmatch(r"waiting for stream clicks\.0, tag barrier since \d+\.\d s: nothing has come of it", waits)
    with pytest.raises(ProgramError, match="its input ended, and 1 events were not taken by tree, task 1"):
        operator.finish()


# ------------------------------------------------------------------------- flows


def _flow(program: Any, rows: pa.RecordBatch, tasks: int = 1, **options: Any) -> list[dict[str, Any]]:
    flow = Flow("f")
    stream = flow.source("s", hr.generate(rows.slice, rows.num_rows))
    if tasks > 1:
        stream = flow.stage("spread", lambda batch: batch, stream, parallelism=tasks, route=hr.rebalance())
    flow.sink("out", flow.synchronize("tree", program, stream, **options), hr.callback(lambda batch: None))
    found: list[dict[str, Any]] = run_sequentially(flow.graph())["out"].to_pylist()
    return found


_A1 = ((1, 1), (3, 5), (4, 3), (7, 7), (15, 3))
_A2 = ((6, 6), (8, 5), (10, 6), (11, 5), (12, 1), (13, 0), (14, 9))
_BY_HAND = sorted(
    [*((time, "value", value) for time, value in _A1 + _A2), *((time, "barrier", 0) for time in (2, 5, 9, 16))]
)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_a_stream_of_several_tasks_run_in_one_thread(tasks: int) -> None:
    found = _flow(EventWindows(), _values(*_BY_HAND), tasks, parallelism=3)
    assert sorted((row["time"], row["total"]) for row in found) == [(2, 1), (5, 8), (9, 18), (16, 24)]


class TwoFamilies(KeyCounters):
    """Nothing depends on both keys: so nothing is for the root to do, and nothing ever comes to it."""

    tags = tuple((kind, key) for key in (1, 2) for kind in ("reset", "increment"))


def test_a_root_to_which_nothing_comes() -> None:
    rows = [
        (time, kind, key)
        for time, kind, key in zip(range(8), ["increment", "reset"] * 4, [1, 1, 2, 2] * 2, strict=True)
    ]
    batch = pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], ["time", "kind", "key"])
    found = _flow(TwoFamilies(), batch, parallelism=2)
    assert sorted(row["time"] for row in found) == [1, 3, 5, 7]
    assert {row["count"] for row in found} == {1}


def test_an_update_that_raises_in_a_flow() -> None:
    class Divides(EventWindows):
        update_batch: Any = None

        def update(self, state: Any, event: Any) -> Any:
            return state // event.value, []

    with pytest.raises(StageFailed, match=r"(?s)Divides: ZeroDivisionError.*Event\(time=2, kind='barrier', value=0\)"):
        _flow(Divides(), _values((1, "value", 1), (2, "barrier", 0)))


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        (EventWindows, {}, "EventWindows: it is no hr.Program; make one"),
        (EventWindows(), {"time": "ts"}, "time='ts': the events have no such column; they have time, kind, value"),
        (EventWindows(), {"heartbeat": 0}, "heartbeat=0; use a number from 1 on"),
        (EventWindows(), {"optimizer": "best"}, "optimizer='best'; use one of 'by_rate', 'balanced', 'sequential'"),
        (EventWindows(), {"parallelism": 0}, "parallelism"),
        (EventWindows(), {"rates": {"vaule": 1.0}}, "rates= has the tag vaule, and its tags are value, barrier"),
        (SmartHome(), {"tag": "kind"}, "SmartHome: its tags are not known; list them"),
    ],
)
def test_what_cannot_be_drawn_or_run_is_told_of(program: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        _flow(program, _values(*_BY_HAND), **options)
    assert message in str(raised.value)


def test_the_length_of_a_beat() -> None:
    inputs = inputs_of(EventWindows(), None, None, None, None)
    assert beat_of(_VALUES, inputs, None) == 1
    assert beat_of(_VALUES, inputs, 7) == 7
    assert beat_of(pa.schema([("time", pa.timestamp("us"))]), inputs, None) == 5000


def test_envelopes_have_all_columns_of_events() -> None:
    assert envelope(_VALUES).names[:3] == _VALUES.names


def test_what_simulated_flows_must_give_is_what_the_other_oracle_gives() -> None:
    for name in PROGRAMS:
        graph, expected = program_flow(name, 1, 4)
        found = run_sequentially(graph)["out"].to_pylist()
        assert sorted(map(repr, (tuple(row.values()) for row in found))) == sorted(map(repr, expected.elements()))
        assert expected.total() > 0, name
