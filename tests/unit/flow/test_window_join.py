from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import headrace as hr
from headrace.demo.nexmark import SCHEMA as EVENTS
from headrace.demo.nexmark import Nexmark, query_8
from headrace.flow.sequential import run_sequentially
from headrace.flow.window_join import WindowJoin, window_join
from headrace.model import plain_json
from headrace.model.ticks import SECOND, Ticks
from headrace.simulate.check import Simulation
from headrace.testing.flows import written

SCHEMA = pa.schema(
    [("kind", pa.string()), ("w", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]
).append(pa.field("n", pa.int64()))
GIVEN = {"w": "window", "a": "left.a", "b": "left.b", "n": "left.n"}
Row = dict[str, Any]


def _join(how: Any = "inner", on: Any = (("a", "b"), ("c", "b")), **more: str) -> type[WindowJoin]:
    return window_join(SCHEMA, by="w", kind="kind", left="l", right="r", on=on, given={**GIVEN, **more}, how=how)


# -------------------------------------------------------------------- one by one


def _oracle(rows: Sequence[Row], how: str, window: int) -> list[Row]:
    """Two loops."""
    inside = [row for row in rows if row["w"] == window]
    found = []
    for left in (row for row in inside if row["kind"] == "l"):
        others = [r for r in inside if r["kind"] == "r" and left["a"] == r["c"] and left["b"] == r["b"]]
        others = [r for r in others if None not in (left["a"], left["b"])]
        own = {name: left[name] for name in ("w", "a", "b", "n")}
        if how in ("inner", "left"):
            found += [{**own, "other": r["n"]} for r in others]
        if how == "left" and not others:
            found.append({**own, "other": None})
        if how in ("semi", "anti") and bool(others) == (how == "semi"):
            found.append(own)
    return sorted(found, key=lambda row: [(value is None, value or 0) for value in map(str_of, row.values())])


def str_of(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else f"{value:05d}"


rows_of_windows = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["l", "l", "r", "r", "x", None]),
            "w": st.sampled_from([0, 10, 20, None]),
            "a": st.sampled_from([1, 2, 3, None]),
            "b": st.sampled_from(["x", "y", None]),
            "c": st.sampled_from([1, 2, 3, None]),
            "n": st.integers(0, 9),
        }
    ),
    max_size=40,
)


def _in_pieces(rows: Sequence[Row], cuts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    places = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    for start, stop in pairwise(places):
        yield pa.RecordBatch.from_pylist(list(rows[start:stop]), SCHEMA)


def _again(stage: WindowJoin, kind: type[WindowJoin]) -> WindowJoin:
    """After a restart."""
    restored = kind()
    restored.restore(plain_json.loads(plain_json.dumps(stage.snapshot(), "a join")))
    return restored


@given(rows_of_windows, st.sampled_from(["inner", "left", "semi", "anti"]), st.lists(st.integers(0, 40)), st.randoms())
def test_it_gives_what_two_loops_give_in_one_order_whatever_the_cut(
    rows: list[Row], how: str, cuts: list[int], chance: Any
) -> None:
    kind = _join(how, **({"other": "right.n"} if how in ("inner", "left") else {}))
    stage = kind()
    for batch in _in_pieces(rows, cuts):
        assert stage.on_batch(batch) is None  # type: ignore[func-returns-value]
        if chance.random() < 0.3:
            stage = _again(stage, kind)
    windows = [0, 10, 20, 30]
    chance.shuffle(windows)
    for window in windows:
        found = stage.on_ended(window)
        assert (found.to_pylist() if found is not None else []) == _oracle(rows, how, window)
        assert found is None or found.schema == kind.gives
    assert stage.snapshot() == []
    stage.on_end()


@given(rows_of_windows, st.randoms(use_true_random=False))
def test_the_order_in_which_records_come_is_not_in_what_it_gives(rows: list[Row], chance: Any) -> None:
    found = []
    for _ in range(2):
        stage = _join(other="right.n")()
        stage.on_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
        found.append(stage.on_ended(10))
        chance.shuffle(rows)
    assert found[0] == found[1]


@pytest.mark.parametrize("records", [1, 7])
def test_many_small_batches_are_kept_in_few_pieces(records: int) -> None:
    stage = _join("semi", on=("a", "c"))()
    for at in range(3000):
        kind = "l" if at % 2 else "r"
        rows = [{"kind": kind, "w": 0, "a": n, "b": "x", "c": n, "n": at} for n in range(records)]
        stage.on_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
    parts = [len(kept.parts) for kept in stage._open[0]]
    assert max(parts) < 16
    found = stage.on_ended(0)
    assert found is not None
    assert found.num_rows == 1500 * records


def test_lists_can_be_carried_and_days_are_windows() -> None:
    schema = pa.schema(
        [("day", pa.date32()), ("left", pa.bool_()), ("k", pa.decimal128(5, 2)), ("tags", pa.list_(pa.string()))]
    )
    given = {"day": "window", "tags": "left.tags", "theirs": "right.tags"}
    kind = window_join(schema, by="day", kind="left", left=True, right=False, on=("k", "k"), given=given)
    day, rows = dt.date(2026, 3, 3), [(True, "1.50", ["a", "b"]), (False, "1.50", ["c"]), (False, "2.50", ["d"])]
    arrays = [[day] * 3, *zip(*rows, strict=True)]
    stage = kind()
    batch = pa.record_batch([pa.array(x).cast(of.type) for x, of in zip(arrays, schema, strict=True)], schema=schema)
    stage.on_batch(batch)
    found = _again(stage, kind).on_ended(day)
    assert found is not None
    assert found.to_pylist() == [{"day": day, "tags": ["a", "b"], "theirs": ["c"]}]


def test_records_with_equal_keys_have_one_way_and_the_keys_are_spread() -> None:
    rows = [{"kind": "l", "a": n, "b": str(n), "c": -n} for n in range(100)]
    rows += [{"kind": "r", "a": -n, "b": str(n), "c": n} for n in range(100)]
    targets = _join().route.choose(pa.RecordBatch.from_pylist(rows, SCHEMA), 4)  # type: ignore[attr-defined]
    assert targets[:100].tolist() == targets[100:].tolist()
    assert np.bincount(targets, minlength=4).min() > 20


def test_a_join_can_be_sent_to_workers() -> None:
    there = cloudpickle.loads(cloudpickle.dumps(_join("semi")))  # type: ignore[no-untyped-call]
    assert there.join == _join("semi").join
    assert there.__name__ == "l joined with r"
    assert str(there.route) == "custom key a, b = c, b"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"by": "x"}, "it has no column x, by which substreams are told apart"),
        ({"kind": "x"}, "there is no column x; there are kind, w, a, b, c, n"),
        ({"on": ("a", "x")}, "there is no column x"),
        ({"on": ("a", "b")}, "on= joins a, which is int64, with b, which is string; keys are of one type"),
        ({"on": (("a", "b"), "c")}, "as many columns of the left as of the right"),
        ({"on": ((), ())}, "as many columns of the left as of the right"),
        ({"left": 1}, "column kind has other values than 1 and 'r'"),
        ({"left": "r"}, "left='r' and right='r' must be two kinds"),
        ({"left": None}, "left=None and right='r' must be two kinds"),
        ({"how": "outer"}, "how='outer'; use 'inner', 'left', 'semi', 'anti'"),
        ({"given": {}}, "given= says what it gives"),
        ({"given": {"x": "a"}}, "x is 'a'; give \"left.COLUMN\""),
        ({"given": {"x": "left.x"}}, "x is 'left.x'"),
        ({"given": {"x": "window.a"}}, "x is 'window.a'"),
        ({"how": "semi", "given": {"x": "right.a"}}, "x is right.a, and how='semi' gives left records as they are"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_drawn(change: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {
        "by": "w", "kind": "kind", "left": "l", "right": "r", "on": ("a", "c"), "given": GIVEN,
    }  # fmt: skip
    with pytest.raises(hr.FlowError) as raised:
        window_join(SCHEMA, **(right | change))
    assert str(raised.value).startswith("window_join: ")
    assert said in str(raised.value)


def test_what_would_not_be_joined_is_refused() -> None:
    """Windows of what is not tracked, or tracked by other ones, never end; and tasks need what belongs together."""
    flow, rises = hr.Flow("f"), hr.rising()
    kind = window_join(EVENTS, **_QUERY_8)
    events = flow.source("events", hr.generate(SITE.make, 10))
    windows, others = (events.tracked(by=by, ends=rises) for by in (WINDOW, hr.windows("ts", 3)))
    with pytest.raises(hr.FlowError, match=r"^stage join: person joined with auction would join .* no tracked stream"):
        flow.stage("join", kind, events, schema=kind.gives)
    said = r'joins by hr.windows\("ts", 2\), and what it reads is tracked by hr.windows\("ts", 3\): other windows'
    with pytest.raises(hr.FlowError, match=said):
        flow.stage("join", kind, others, schema=kind.gives)
    for route in (None, hr.rebalance(), hr.shuffle()):
        with pytest.raises(hr.FlowError, match=r"runs in 2 tasks, .* joined = hr.window_join.* route=joined.route"):
            flow.stage("join", kind, windows, schema=kind.gives, parallelism=2, route=route)
    for at, route in enumerate((kind.route, hr.key("id"))):
        flow.stage(f"join-{at}", kind, windows, schema=kind.gives, parallelism=2, route=route)
    flow.stage("alone", kind, windows, schema=kind.gives, route=hr.rebalance())


def test_windows_that_are_not_numbers() -> None:
    """NaN is one substream, though no two of it are equal."""
    schema = pa.schema([("w", pa.float64()), ("kind", pa.string()), ("id", pa.int64())])

    def made(first: int, count: int) -> pa.RecordBatch:
        n = np.arange(first, first + count)
        return pa.record_batch(
            [np.where(n < 8, 1.0, np.nan), pa.array(np.where(n % 2, "l", "r")), n // 2], schema=schema
        )

    given = {"w": "window", "id": "left.id"}
    kind = window_join(schema, by="w", kind="kind", left="l", right="r", on="id", given=given)
    flow = hr.Flow("f")
    windows = flow.source("s", hr.generate(made, 16)).tracked(by="w")
    flow.sink("out", flow.stage("join", kind, windows, schema=kind.gives), hr.callback(_ignored))
    assert run_sequentially(flow.graph())["out"].column("id").to_pylist() == list(range(8))
    assert Simulation(flow.graph()).run(Simulation(flow.graph()).setup(3)) is None


# ----------------------------------------------------------------------- query 8

SITE = Nexmark(per_second=30, seed=3)
WINDOW = hr.windows("ts", 2)
_QUERY_8: dict[str, Any] = {
    "by": WINDOW, "kind": "kind", "left": "person", "right": "auction", "on": ("id", "seller"), "how": "semi",
    "given": {"window": "window", "id": "left.id", "name": "left.name"},
}  # fmt: skip


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _every(step: int, start: int) -> Callable[[int, int], pa.RecordBatch]:
    """Every so many events: of one source among as many, none of which is as far as the others at all times."""
    return lambda first, count: SITE.events(np.arange(first, first + count, dtype=np.int64) * step + start)


def _flow(records: int, counts: tuple[int, int, int], sink: Any, **how: Any) -> hr.Flow:
    """So many sources, so many tasks of a stage between, and of the join."""
    flow, sources = hr.Flow("query-8"), counts[0]
    events = [
        flow.source(f"events-{at}", hr.generate(_every(sources, at), len(range(at, records, sources))))
        for at in range(sources)
    ]
    between = flow.stage("between", _same, *events, parallelism=counts[1], route=hr.rebalance())
    windows = between.tracked(by=WINDOW, ends=hr.rising(), **how)
    kind = window_join(EVENTS, **_QUERY_8)
    entered = flow.stage("join", kind, windows, parallelism=counts[2], route=kind.route, schema=kind.gives)
    flow.sink("out", entered, sink)
    return flow


def _assert_query_8(found: pa.Table, records: int) -> None:
    wanted = query_8(SITE.make(0, records), Ticks(2 * SECOND))
    wanted = wanted.set_column(0, "window", wanted["window"].cast(pa.int64()))
    assert wanted.num_rows > 10
    assert found.sort_by([("window", "ascending"), ("id", "ascending")]).equals(wanted)


@pytest.mark.parametrize("most", [1, 10, 1000])
def test_query_8_sequentially(most: int) -> None:
    graph = _flow(3000 if most > 1 else 300, (2, 3, 3), hr.callback(_ignored)).graph()
    _assert_query_8(run_sequentially(graph, most)["out"], 3000 if most > 1 else 300)


@pytest.mark.parametrize("seed", range(30))
def test_query_8_in_a_simulated_world(seed: int) -> None:
    is_firm = seed % 5 == 1
    how: dict[str, Any] = {"bound": "firm" if is_firm else "soft", "agents": 1 if is_firm else 1 + seed % 2}
    counts = (1 + seed % 3, 1 + seed % 2, 1 + seed // 3 % 3)
    simulation = Simulation(_flow(300, counts, hr.callback(_ignored), **how).graph(), [_check_300])
    failure = simulation.run(simulation.setup(seed))
    assert failure is None, failure.story()


def _check_300(found: dict[str, list[Any]]) -> None:
    _assert_query_8(pa.Table.from_pylist(found["out"]), 300)


@pytest.mark.spark
def test_query_8_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    flow = _flow(20_000, (2, 2, 2), hr.parquet(str(tmp_path / "out")))
    assert flow.start(spark, tmp_path / "at", commit_s=0.3).wait(100)
    _assert_query_8(written(tmp_path / "out"), 20_000)


def test_one_column_that_both_kinds_are_joined_by() -> None:
    schema = pa.schema([("ts", pa.int64()), ("kind", pa.string()), ("a", pa.int64())])
    how: dict[str, Any] = {"by": "ts", "kind": "kind", "left": "l", "right": "r", "given": {"a": "left.a"}}
    join = hr.window_join(schema, on="a", **how).join
    assert (join.left_on, join.right_on) == (("a",), ("a",))
    with pytest.raises(hr.FlowError, match="give a column, or two: those of the left kind, and those of the right"):
        hr.window_join(schema, on=("a",), **how)  # type: ignore[arg-type]
