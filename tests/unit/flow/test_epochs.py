from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

import headrace as hr
from headrace.flow.epochs import SNAPSHOTS, snapshotted, starting_from, state_at, union, whole_epochs
from headrace.flow.operators import Stage
from headrace.flow.sequential import run_sequentially
from headrace.simulate.faults import draw_faults
from headrace.simulate.world import Received, Setup, World

SCHEMA = pa.schema([("epoch", pa.int64()), ("key", pa.int64()), ("group", pa.int64()), ("n", pa.int64())])
EPOCHS: dict[str, Any] = {"by": "epoch", "ends": hr.rising(), "bound": "firm"}
RECORDS = 120
TASKS = {"sums": 3, "totals": 2}


class Sums(Stage):
    """The sum of each key. Even numbers pass; of the others, the sums that they changed, when their epoch has ended."""

    def __init__(self) -> None:
        self.sums: dict[int, list[int]] = {}
        """Of each key its group, its sum, and whether it has changed."""

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        for row in batch.to_pylist():
            own = self.sums.setdefault(row["key"], [row["group"], 0, 0])
            own[1] += row["n"]
            own[2] |= row["n"] % 2
        return batch.filter(pa.array(batch["n"].to_numpy() % 2 == 0))

    def on_ended(self, substream: int) -> Any:
        rows = []
        for key, own in sorted(self.sums.items()):
            if own[2]:
                rows.append({"epoch": substream, "key": key, "group": own[0], "n": 1000 + own[1]})
                own[2] = 0
        return pa.RecordBatch.from_pylist(rows, SCHEMA)

    def snapshot(self) -> Any:
        return self.sums

    def restore(self, state: Any) -> None:
        self.sums = {key: list(own) for key, own in state.items()}


class Totals(Stage):
    """All that came of each group, and how many. Gives nothing but in the end."""

    def __init__(self) -> None:
        self.totals: dict[int, list[int]] = {}

    def on_batch(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            total = self.totals.setdefault(row["group"], [0, 0])
            total[0] += row["n"]
            total[1] += 1

    def on_end(self) -> Any:
        rows = [{"group": group, "n": n} for group, (n, _) in sorted(self.totals.items())]
        return pa.RecordBatch.from_pylist(rows, SCHEMA)

    def snapshot(self) -> Any:
        return sorted(self.totals.items())

    def restore(self, state: Any) -> None:
        self.totals = {group: list(total) for group, total in state}


def _epoch_of(numbers: Any) -> Any:
    """Epochs of some ten records; 3 is none of them."""
    return numbers // 11 + (numbers // 11 >= 3)


def _made(first: int, count: int, step: int = 1, start: int = 0) -> pa.RecordBatch:
    numbers = np.arange(first, first + count, dtype=np.int64) * step + start
    keys = numbers * 7 % 13
    return pa.record_batch([pa.array(x) for x in (_epoch_of(numbers), keys, keys % 4, numbers)], schema=SCHEMA)


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _flow(
    sources: int = 1,
    tasks: dict[str, int] = TASKS,
    first: int = 0,
    stages: tuple[type[Stage], type[Stage]] = (Sums, Totals),
    how: dict[str, Any] = EPOCHS,
    between: Any = _same,
) -> hr.Flow:
    """Numbers from `first` on, from so many sources; two stages with state, one after the other."""
    flow = hr.Flow("epochs")
    streams = []
    for at in range(sources):
        count = len(range(first + at, RECORDS, sources))

        def make(n: int, count: int, start: int = first + at) -> pa.RecordBatch:
            return _made(n, count, sources, start)

        streams.append(flow.source(f"numbers-{at}", hr.generate(make, count)))
    spread = flow.stage("spread", between, *streams, parallelism=2, route=hr.rebalance())
    kinds = [snapshotted(stage, name) for stage, name in zip(stages, tasks, strict=True)]
    sums = flow.stage(
        "sums", kinds[0], spread.tracked(**how), parallelism=tasks["sums"], route=hr.key("key"), sides=kinds[0].sides
    )
    second, route = tasks["totals"], hr.key("group")
    totals = flow.stage("totals", kinds[1], sums.tracked(**how), parallelism=second, route=route, sides=kinds[1].sides)
    for name, stream in (("sums", sums), ("totals", totals)):
        flow.sink(f"saved-{name}", stream.side(SNAPSHOTS), hr.callback(_ignored))
    flow.sink("out", totals, hr.callback(_ignored))
    return flow


def _oracle() -> dict[int, tuple[dict[int, list[int]], dict[int, list[int]]]]:
    """Both stages by hand: their states at the end of each epoch."""
    sums, totals, found = Sums(), Totals(), {}
    records = _made(0, RECORDS)
    epochs = records["epoch"].to_numpy()
    for epoch in np.unique(epochs).tolist():
        totals.on_batch(sums.on_batch(records.filter(pa.array(epochs == epoch))))
        totals.on_batch(sums.on_ended(epoch))
        found[epoch] = (
            {key: list(each) for key, each in sums.sums.items()},
            {group: list(each) for group, each in totals.totals.items()},
        )
    return found


def _world(graph: Any, seed: int) -> Received:
    return World(graph, Setup(seed, draw_faults(seed), 1 + seed % 4, (1, 3, 10)[seed % 3])).run()


@pytest.mark.parametrize("seed", range(24))
def test_the_states_of_an_epoch_are_one_cut_of_the_flow_whatever_dies(seed: int) -> None:
    tasks = {"sums": 1 + seed % 3, "totals": 1 + seed // 3 % 2}
    how = {**EPOCHS, "agents": 1} if seed % 4 else {**EPOCHS, "consistent": True, "slack_s": 0.5}
    received = _world(_flow(1 + seed % 2, tasks, how=how).graph(), seed)
    records = [*received.of("saved-sums"), *received.of("saved-totals")]
    expected = _oracle()
    assert whole_epochs(records, tasks) == list(expected)
    assert len(records) == len(expected) * sum(tasks.values())
    for epoch, (sums, totals) in expected.items():
        assert state_at(records, epoch, "sums", tasks=tasks["sums"]) == sums
        assert dict(state_at(records, epoch, "totals", tasks=tasks["totals"])) == totals


def test_a_flow_that_starts_from_a_cut_ends_as_the_whole_one() -> None:
    received = _world(_flow(2).graph(), 5)
    records = [*received.of("saved-sums"), *received.of("saved-totals")]
    whole = run_sequentially(_flow().graph())
    epochs = whole_epochs(records, TASKS)
    assert len(epochs) == 11
    for epoch in epochs[:-1]:
        states = {name: state_at(records, epoch, name) for name in TASKS}
        stages = starting_from(Sums, states["sums"]), starting_from(Totals, states["totals"])
        first = int((_epoch_of(np.arange(RECORDS)) <= epoch).sum())
        rest = run_sequentially(_flow(first=first, stages=stages).graph())
        assert rest["out"].equals(whole["out"])
        for name in TASKS:
            for later in epochs[epochs.index(epoch) + 1 :]:
                found, wanted = (state_at(each[f"saved-{name}"], later) for each in (rest, whole))
                assert dict(found) == dict(wanted)


def _without_some(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array(batch["epoch"].to_numpy() % 2 == 0))


def test_an_epoch_of_which_nothing_comes_has_the_state_of_the_one_before() -> None:
    found = run_sequentially(_flow(between=_without_some).graph())["saved-sums"]
    epochs = whole_epochs(found, {"sums": 1})
    assert epochs == list(_oracle())
    for epoch in epochs:
        if epoch % 2:
            assert state_at(found, epoch) == state_at(found, epoch - 1 if epoch != 4 else 2)


# ------------------------------------------------------------------------ misuse


def test_a_soft_bound_is_found_out() -> None:
    with pytest.raises(hr.FlowError, match=r"stage sums: a record of epoch \d+ came before the end of epoch 0; let it"):
        run_sequentially(_flow(how={**EPOCHS, "bound": "soft"}).graph())


def test_a_record_after_the_end_is_found_out_also_after_a_restart() -> None:
    kind = snapshotted(Sums)
    stage = kind()
    stage.on_batch(_made(0, 5))
    given = stage.on_ended(0)
    assert given[SNAPSHOTS].to_pylist()[0]["stage"] == "Sums"
    assert given[""].num_rows
    again = kind()
    again.restore(stage.snapshot())
    for each in (stage, again):
        with pytest.raises(hr.FlowError, match="a record of epoch 0 came when the state at the end of epoch 0 had"):
            each.on_batch(_made(5, 2))
    again.on_batch(_made(0, 0))
    again.on_batch(_made(11, 11))
    with pytest.raises(hr.FlowError, match="a record of epoch 1 came before the end of epoch 0"):
        again.on_ended(0)


# ----------------------------------------------------------------------- helpers


class Nothing(Stage):
    order = "each"

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        return batch


class Sided(Nothing):
    def on_ended(self, substream: Any) -> Any:
        return {"told": pa.record_batch({"day": [substream]})}


def test_a_stage_without_state_or_with_sides_of_its_own_and_days_for_epochs() -> None:
    kind = snapshotted(Sided, "days", by=None, epoch=pa.date32())
    stage, day = kind(), dt.date(2026, 3, 3)
    stage.on_batch(pa.record_batch({"x": [1]}))
    given = stage.on_ended(day)
    assert given["told"].to_pylist() == [{"day": day}]
    assert given[SNAPSHOTS].to_pylist() == [{"epoch": day, "stage": "days", "state": "null"}]
    assert (kind.order, kind.__name__) == ("each", "Sided with snapshots")
    kind().restore(stage.snapshot())


def test_classes_can_be_sent_to_workers() -> None:
    kind = snapshotted(starting_from(Sums, {3: [1, 5, 0]}), "sums")
    there = cloudpickle.loads(cloudpickle.dumps(kind))()  # type: ignore[no-untyped-call]
    assert there.sums == {3: [1, 5, 0]}
    assert there.sides == kind.sides
    with pytest.raises(hr.FlowError, match=r"say snapshotted\(starting_from"):
        starting_from(kind, {})


def test_each_task_begins_with_a_state_of_its_own() -> None:
    kind = starting_from(Sums, {3: [1, 5, 0]})
    first, other = kind(), kind()
    first.on_batch(pa.RecordBatch.from_pylist([{"epoch": 1, "key": 3, "group": 1, "n": 1}], SCHEMA))
    assert (first.snapshot(), other.snapshot()) == ({3: [1, 6, 1]}, {3: [1, 5, 0]})


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ([7], 7),
        ([{1: 2}, {3: 4}, {}], {1: 2, 3: 4}),
        ([[1], [2, 3]], [1, 2, 3]),
        ([{1}, {2}], {1, 2}),
        ([{1: 2}, {1: 3}], "two tasks have a state of 1; say how they are put together"),
        ([1, 2], r"states of 2 tasks \(int\) do not go together"),
        ([None, {}], r"states of 2 tasks \(NoneType, dict\) do not go together"),
    ],
)
def test_states_of_tasks_go_together(states: Sequence[Any], wanted: Any) -> None:
    if isinstance(wanted, str):
        with pytest.raises(hr.FlowError, match=wanted):
            union(states)
    else:
        assert union(states) == wanted


def test_a_state_that_is_not_whole_is_refused() -> None:
    records = [
        {"epoch": epoch, "stage": stage, "state": "[1]"}
        for epoch, stage in [(1, "a"), (1, "a"), (1, "b"), (2, "a"), (2, "b")]
    ]
    assert state_at(records, 1, "a", tasks=2) == [1, 1]
    assert state_at(pa.Table.from_pylist(records), 1, "a", together=len) == 2
    assert whole_epochs(records, {"a": 2, "b": 1}) == [1]
    assert whole_epochs(records, {"b": 1}) == [1, 2]
    for asked, said in (
        ((1,), "there are states of a and b at epoch 1; say stage='a'"),
        ((3,), "no task has given a state at epoch 3; there are epochs 1, 2"),
        ((3, "c"), "stage c: no task has given a state at epoch 3; there are epochs none"),
    ):
        with pytest.raises(hr.FlowError, match=said):
            state_at(records, *asked)
    with pytest.raises(
        hr.FlowError, match="stage a: 1 of 2 tasks have given a state at epoch 2; there are epochs 1, 2"
    ):
        state_at(records, 2, "a", tasks=2)


@pytest.mark.parametrize("wrapped", [snapshotted, lambda function: starting_from(function, 0)])
def test_a_function_has_no_state(wrapped: Any) -> None:
    with pytest.raises(hr.FlowError, match=r"give a class of hr\.Stage; a function has no state"):
        wrapped(lambda batch: batch)


def test_a_state_that_is_torn() -> None:
    records = [{"epoch": 1, "stage": "a", "state": '{"x": '}]
    with pytest.raises(hr.FlowError, match=r"the state at epoch 1 is not what a snapshot gave \(JSONDecodeError"):
        state_at(records, 1)


def test_records_without_the_column_of_epochs() -> None:
    class Nothing(hr.Stage):
        def on_batch(self, batch: pa.RecordBatch) -> Any:
            return None

    stage = snapshotted(Nothing, "sums")()
    with pytest.raises(hr.FlowError, match="stage sums: its records have no column epoch, but x; say by= the column"):
        stage.on_batch(pa.record_batch({"x": [1]}))
