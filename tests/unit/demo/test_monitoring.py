from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.demo import monitoring as mon
from headrace.demo.saas_events import ACTIONS, CONTROLS, EVENTS, MOST_EVENTS, POLICIES, SLOTS, WATCHED, Saas
from headrace.flow.batch_stages import ForBatch
from headrace.flow.copies import Replication
from headrace.flow.operators import MAIN, Shape
from headrace.flow.plan import make_plan
from headrace.flow.sequential import run_sequentially
from headrace.model import frames
from headrace.simulate.check import Simulation
from headrace.simulate.world import World
from headrace.testing.determinism_cases import Case, cases_of, cut

BUSY = Saas(per_second=100.0, controls_per_second=10.0, customers=5, seed=9)
"""Few customers, whose rules change all the time."""
Record = dict[str, Any]

# ------------------------------------------------------------------------ events


@settings(max_examples=30)
@given(first=st.integers(0, 1 << 40), count=st.integers(0, 40), seed=st.integers(0, 1000), data=st.data())
def test_an_event_is_the_same_whatever_it_is_asked_for_with(first: int, count: int, seed: int, data: Any) -> None:
    saas = Saas(seed=seed)
    cut = data.draw(st.integers(0, count))
    for make, schema in ((saas.customer_events, EVENTS), (saas.control_events, CONTROLS)):
        made = make(first, count)
        assert made.schema == schema
        parts = [make(first, cut), make(first + cut, count - cut)]
        assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([made])) or not count
        alone = make(first + cut, 1)
        assert cut == count or alone.equals(made.slice(cut, 1))


def test_another_seed_gives_other_events_and_the_maker_can_be_sent_to_workers() -> None:
    again = pickle.loads(pickle.dumps(BUSY))
    for name in ("customer_events", "control_events"):
        assert not getattr(Saas(seed=1), name)(0, 100).equals(getattr(Saas(seed=2), name)(0, 100))
        assert getattr(again, name)(5, 50).equals(getattr(BUSY, name)(5, 50))


def test_events_behind_a_rate_have_its_moments_and_are_else_the_same() -> None:
    numbers, moments = pa.array([7, 3, 9]), pa.array([10, 20, 30]).cast(pa.timestamp("us", "UTC"))
    given = pa.record_batch({"n": numbers, "ts": moments})
    for make, stage in ((BUSY.customer_events, BUSY.events_at), (BUSY.control_events, BUSY.controls_at)):
        found = stage(given)
        assert found.column("ts").equals(moments)
        assert found.drop_columns(["ts"]).equals(make(0, 10).take(numbers).drop_columns(["ts"]))


def test_times_rise_at_the_rate_and_all_customers_have_events() -> None:
    for rate in (1000.0, 5000.0):
        saas = Saas(per_second=rate)
        events, controls = saas.customer_events(0, 20_000), saas.control_events(0, 5000)
        assert set(np.diff(events.column("ts").cast(pa.int64()).to_numpy()).tolist()) == {1_000_000 // rate}
        assert set(np.diff(controls.column("ts").cast(pa.int64()).to_numpy()).tolist()) == {200_000}
        for batch in (events, controls):
            assert set(batch.column("customer").to_pylist()) == set(range(250))


def test_filters_drop_what_nobody_watches_and_what_cannot_be_followed() -> None:
    events = Saas().customer_events(0, 20_000)
    kept = mon.watched(events)
    assert kept.schema == mon.MESSAGES
    assert 0.45 < kept.num_rows / 20_000 < 0.55
    assert set(kept.column("kind").to_pylist()) == set(WATCHED)
    assert kept.column("action").null_count == kept.num_rows
    records = Saas().control_events(0, 5000).to_pylist()
    found = mon.well_formed(Saas().control_events(0, 5000))
    assert found.schema == mon.MESSAGES
    assert found.column("n").to_pylist() == [record["n"] for record in records if _can_be_followed(record)]
    assert 100 < 5000 - found.num_rows < 400
    assert {(r["action"], r["policy"]) for r in found.to_pylist()} >= {(a, p) for a in ACTIONS for p in POLICIES}


@pytest.mark.parametrize("column", [name for name in CONTROLS.names if name not in ("n", "ts")])
def test_a_control_event_without_something_is_dropped_unless_a_removal_does_not_need_it(column: str) -> None:
    good = {"n": 0, "ts": 0, "customer": 1, "rule": 2, "policy": "often", "kind": "mail", "threshold": 3}
    good |= {"window_ms": 5, "notify": 0}
    for action in ACTIONS:
        for record, is_kept in (
            ({**good, "action": action}, True),
            (
                {**good, "action": action, column: None},
                action == "remove" and column not in ("action", "customer", "rule"),
            ),
        ):
            assert mon.well_formed(pa.RecordBatch.from_pylist([record], CONTROLS)).num_rows == is_kept
            assert _can_be_followed(record) == is_kept


def _can_be_followed(record: Record) -> bool:
    if record["action"] not in ACTIONS or record["customer"] is None or record["rule"] not in range(SLOTS):
        return False
    if record["action"] == "remove":
        return True
    most = MOST_EVENTS if record["policy"] == "often" else 1 << 60
    numbers = [record[name] for name in ("threshold", "window_ms", "notify")]
    if record["policy"] not in POLICIES or record["kind"] not in WATCHED or None in numbers:
        return False
    return bool(0 < numbers[0] <= most and numbers[1] > 0 and 0 <= numbers[2] <= 3)


# ------------------------------------------------------------------------ oracle


def _by_hand(records: Iterable[Record], policies: Iterable[str] = POLICIES) -> list[Record]:
    """The notifications of messages in this order, record by record."""
    rules: dict[int, dict[int, Record]] = {}
    past: dict[tuple[int, str], list[Any]] = {}
    found: list[Record] = []
    for record in records:
        customer = record["customer"]
        own = rules.setdefault(customer, _standing(customer))
        if record["action"] is not None:
            is_there = record["rule"] in own
            if record["action"] == "remove":
                own.pop(record["rule"], None)
            elif is_there == (record["action"] == "change"):
                own[record["rule"]] = record
            continue
        times = past.setdefault((customer, record["kind"]), [])
        times.append(record["ts"])
        for slot in sorted(own):
            value = _value(own[slot], record, times) if own[slot]["policy"] in policies else None
            found += [] if value is None else _told(own[slot], slot, record, value)
    return found


def _standing(customer: int) -> dict[int, Record]:
    common = {"window_ms": 5000, "notify": 1 + customer % 2}
    return {
        0: {**common, "policy": "size", "kind": WATCHED[customer % 5], "threshold": 10_000},
        1: {**common, "policy": "often", "kind": WATCHED[(customer + 1) % 5], "threshold": 4},
    }


def _value(rule: Record, event: Record, times: list[Any]) -> int | None:
    if rule["kind"] != event["kind"]:
        return None
    if rule["policy"] == "size":
        return event["size"] if event["size"] >= rule["threshold"] else None
    if len(times) < rule["threshold"]:
        return None
    took = round((event["ts"] - times[-rule["threshold"]]).total_seconds() * 1e6)
    return took if took <= rule["window_ms"] * 1000 else None


def _told(rule: Record, slot: int, event: Record, value: int) -> list[Record]:
    text = f"{event['kind']} by user {event['user']}: {value} against {rule['threshold']}"
    common = {name: event[name] for name in ("n", "ts", "customer")}
    common |= {"rule": slot, "policy": rule["policy"]}
    return [
        {**common, "recipient": f"admin-{person}@customer-{event['customer']}", "text": text}
        for person in range(rule["notify"])
    ]


def _multiset(records: Iterable[Record]) -> Counter[str]:
    return Counter(map(repr, records))


def _messages(saas: Saas, events: int, controls: int) -> list[Record]:
    """As filters give them, by time, events first."""
    given = [*mon.watched(saas.customer_events(0, events)).to_pylist()]
    given += [*mon.well_formed(saas.control_events(0, controls)).to_pylist()]
    return sorted(given, key=lambda record: (record["ts"], record["action"] is not None))


# ------------------------------------------------------------------------- joins


FILES = hr.parquet("out")


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _drawn(saas: Saas, events: int, controls: int, shift: int = 0, sink: Any = FILES, **how: Any) -> hr.Flow:
    """`shift`: controls are for customers of numbers so much higher."""

    def moved(first: int, count: int) -> pa.RecordBatch:
        made = saas.control_events(first, count)
        return made.set_column(2, CONTROLS.field(2), pc.add(made.column("customer"), shift))

    flow = hr.Flow("monitoring")
    happened = flow.source("events", hr.generate(saas.customer_events, events))
    said = flow.source("controls", hr.generate(moved, controls))
    flow.sink("out", mon.monitoring(flow, happened, said, **how), sink)
    return flow


def test_the_flow_is_that_of_the_paper() -> None:
    plan = make_plan(_drawn(BUSY, 10, 10).graph())
    wanted = ["events.0", "controls.0", "watched.0", "well-formed.0", "large.0", "often.0", "notified.0", "notified.1"]
    assert sorted(plan.tasks) == sorted(wanted)
    fewer = make_plan(_drawn(BUSY, 10, 10, apart=False).graph())
    assert sorted(fewer.tasks) == sorted(set(wanted) - {"watched.0", "well-formed.0"})


def test_run_sequentially_it_gives_what_a_loop_gives_over_the_same_order() -> None:
    """A source after the other: all events come before all controls, and the other way round."""
    events, controls = 2000, 200
    messages = _messages(BUSY, events, controls)
    happened = [each for each in messages if each["action"] is None]
    graph = _drawn(BUSY, events, controls).graph()
    found = run_sequentially(graph)["out"].to_pylist()
    assert _multiset(found) == _multiset(_by_hand(happened))
    said = [each for each in messages if each["action"] is not None]
    swapped = replace(graph, nodes=(graph.nodes[1], graph.nodes[0], *graph.nodes[2:]))
    assert _multiset(run_sequentially(swapped)["out"].to_pylist()) == _multiset(_by_hand([*said, *happened]))


def test_in_time_it_gives_what_a_loop_gives_over_all_by_time() -> None:
    events, controls = 2000, 400
    found = run_sequentially(_drawn(BUSY, events, controls, in_time=True).graph())["out"].to_pylist()
    by_hand = _by_hand(_messages(BUSY, events, controls))
    assert _multiset(found) == _multiset(by_hand)
    assert {each["policy"] for each in found} == set(POLICIES)
    assert {each["rule"] for each in found} == set(range(SLOTS))
    without = _multiset(_by_hand(each for each in _messages(BUSY, events, controls) if each["action"] is None))
    assert (without - _multiset(by_hand)).total() > 100
    assert (_multiset(by_hand) - without).total() > 100


def test_as_many_are_notified_as_a_measurement_needs() -> None:
    for rate, least, most in ((1000.0, 0.04, 0.15), (5000.0, 0.06, 0.25)):
        found = run_sequentially(_drawn(Saas(per_second=rate), 20_000, 100).graph())["out"]
        assert least < found.num_rows / 20_000 < most


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_joins_give_the_same_wherever_records_are_cut_and_after_any_restart(data: Any) -> None:
    seed = data.draw(st.integers(0, 50))
    messages = _messages(replace(BUSY, seed=seed), 400, 100)
    batch = pa.RecordBatch.from_pylist(messages, mon.MESSAGES)
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=12).map(sorted))
    for join in (mon.Large, mon.Often):
        shape, behaviour = Shape("join", {MAIN: mon.MATCHES}), ForBatch(join, is_class=True)
        operator, found = behaviour.open(shape), []
        for start, stop in zip([0, *cuts], [*cuts, len(messages)], strict=True):
            found += operator.apply(batch.slice(start, stop - start))
            content, operator = operator.content(), behaviour.open(shape)
            operator.restore([content])
        told = mon.notified(pa.concat_batches([part for _, part in found])).to_pylist()
        assert told == _by_hand(messages, [join.policy])
        whole = behaviour.open(shape)
        whole.apply(batch)
        assert whole.content() == operator.content()


@pytest.mark.parametrize("case", cases_of(_drawn(BUSY, 300, 40, in_time=True), None), ids=lambda case: str(case.stage))
def test_all_stages_give_the_same_wherever_records_are_cut(case: Case) -> None:
    whole = case.run(cut(case.orders[0], "whole", 0))
    assert sum(table.num_rows for table in whole.values()) > 20
    for how, seed in (("single", 0), ("random", 1), ("random", 2)):
        assert case.run(cut(case.orders[0], how, seed)) == whole


# ------------------------------------------------------------------------ worlds

COPIES = {"none": Replication(), "active": Replication("active", 2), "standby": Replication("standby", 2)}
SEEDS = (2, 6)
"""Of which each has five faults."""
_NO_POWER = ("crash", "pause", "lost", "driver")


@pytest.mark.parametrize(
    ("mode", "sink"),
    [("none", FILES), ("active", FILES), ("active", hr.callback(_ignored)), ("standby", FILES)],
    ids=["none", "active", "one speaks", "standby"],
)
def test_no_notification_is_lost_or_given_twice_whatever_fails(mode: str, sink: Any) -> None:
    """Rules change only of customers that have no events: all orders give the same.

    Where the sink is not for copies, of its stage one speaks alone.
    """
    simulation = Simulation(_drawn(BUSY, 300, 20, shift=BUSY.customers, sink=sink).graph())
    for seed in SEEDS:
        failure = simulation.run(simulation.setup(seed, replication=COPIES[mode]))
        assert failure is None, failure.story()


@pytest.mark.parametrize("mode", COPIES)
def test_in_time_what_fails_changes_nothing_though_rules_change(mode: str) -> None:
    simulation = Simulation(_drawn(BUSY, 300, 40, in_time=True).graph())
    for seed in SEEDS:
        failure = simulation.run(simulation.setup(seed, replication=COPIES[mode]))
        assert failure is None, failure.story()


@pytest.mark.parametrize("mode", COPIES)
def test_copies_agree_and_what_comes_out_is_that_of_the_order_in_the_queues(mode: str) -> None:
    """The world itself raises where a copy, or a restart, gives something else under the same number."""
    graph = _drawn(BUSY, 300, 40).graph()
    given = Simulation(graph)
    outcomes = set()
    for seed in SEEDS:
        world = World(graph, given.setup(seed, _NO_POWER, replication=COPIES[mode]))
        found = world.run().of("out")
        large, often = (_taken(world, f"monitoring.in.{join}.0") for join in ("large", "often"))
        expected = [*_by_hand(large, ["size"]), *_by_hand(often, ["often"])]
        assert _multiset(found) == _multiset(expected)
        assert len(found) > 20
        outcomes.add(frozenset(_multiset(found).items()))
    assert len(outcomes) > 1


def _taken(world: World, queue: str) -> list[Record]:
    """What a task takes of its inbox: of each channel every record once, in the order of the queue."""
    had: dict[int, int] = {}
    found: list[Record] = []
    for content in world.disk.queue(queue).frames:
        frame = frames.decode(content)
        had.setdefault(frame.channel, 0)
        if frame.end > had[frame.channel]:
            part = frame.since(had[frame.channel]).batch
            had[frame.channel] = frame.end
            found += [] if part is None else part.to_pylist()
    return found
