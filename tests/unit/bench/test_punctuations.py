"""Punctuations as the paper has them, whatever the interleaving; and a virtual cluster that counts what it should."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.support.punctuations import Inject, PassOn, to_target
from bench.support.round_robin import RoundRobin
from bench.support.virtual_cluster import VirtualCluster
from bench.support.virtual_costs import Costs, calibrated
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.flow.operators import Operator, Shape
from headrace.flow.sequential import run_sequentially
from headrace.model import frames
from headrace.simulate.faults import draw_faults
from headrace.simulate.world import Setup, World

_SCHEMA = pa.schema(
    [("n", pa.int64()), ("substream", pa.int64()), ("kind", pa.int8()), ("sender", pa.int32()), ("target", pa.int32())]
)
FREE = Costs(*([0.0] * 9))
CHEAP = Costs(1e-6, 2e-6, 1e-6, 3e-6, 4e-6, 1e-7, 2e-6, 1e-7, 1e-6)

# A row: the number of a record or -1 for a punctuation, its substream, its sender.
Row = tuple[int, int, int]


def _interleaved(seed: int, senders: int, substreams: int) -> list[Row]:
    """Each sender sends some records of each substream, then its punctuation; they mix in any way."""
    rng, count = random.Random(seed), 0
    lines: list[list[Row]] = []
    for sender in range(senders):
        lines.append([])
        for substream in range(substreams):
            for _ in range(rng.randint(0, 3)):
                lines[-1].append((count, substream, sender))
                count += 1
            lines[-1].append((-1, substream, sender))
    found: list[Row] = []
    eager = rng.random()
    while any(lines):
        ready = [line for line in lines if line]
        line = ready[0] if rng.random() < eager else rng.choice(ready)
        found.append(line.pop(0))
    return found


def _oracle(rows: Sequence[Row], senders: int, targets: int, aligned: bool, index: int) -> list[tuple[int, int, int]]:
    """The paper's rule, a row at a time: number, substream and target of what is sent."""
    sent: list[tuple[int, int, int]] = []
    seen: dict[int, set[int]] = {}
    blocked: dict[int, int] = {}
    turn = index

    def take(waiting: list[Row]) -> list[Row]:
        nonlocal turn
        kept: list[Row] = []
        for at, (n, substream, sender) in enumerate(waiting):
            if aligned and sender in blocked:
                kept.append((n, substream, sender))
            elif n >= 0:
                sent.append((n, substream, turn % targets))
                turn += 1
            else:
                blocked[sender] = substream
                seen.setdefault(substream, set()).add(sender)
                if len(seen[substream]) == senders:
                    sent.extend((-1, substream, target) for target in range(targets))
                    blocked.clear()
                    return take([*kept, *waiting[at + 1 :]])
        return kept

    held: list[Row] = []
    for row in rows:
        held = take([*held, row])
    assert not held
    return sent


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    named = [{"n": n, "substream": s, "kind": int(n < 0), "sender": q, "target": 0} for n, s, q in rows]
    return pa.RecordBatch.from_pylist(named, _SCHEMA)


def _opened(behaviour: PassOn, index: int) -> Operator:
    return behaviour.open(Shape("step", {"": _SCHEMA}, index=index, tasks=3))


@settings(max_examples=150)
@given(
    seed=st.integers(0, 1 << 30),
    senders=st.integers(1, 4),
    targets=st.integers(1, 3),
    aligned=st.booleans(),
    data=st.data(),
)
def test_a_step_does_what_the_papers_rule_says_wherever_its_input_is_cut(
    seed: int, senders: int, targets: int, aligned: bool, data: st.DataObject
) -> None:
    rows = _interleaved(seed, senders, 4)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=8)))
    step = _opened(PassOn(senders, targets, aligned), 1)
    given_: list[tuple[int, int, int]] = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        for _, batch in step.apply(_batch(rows[start:stop])):
            assert batch.schema == _SCHEMA
            assert set(batch["sender"].to_pylist()) == {1}
            given_ += [(r["n"] if not r["kind"] else -1, r["substream"], r["target"]) for r in batch.to_pylist()]
        again = _opened(PassOn(senders, targets, aligned), 1)
        again.restore([step.content()])
        step = again
    assert step.finish() == []
    assert given_ == _oracle(rows, senders, targets, aligned, 1)


def test_a_source_puts_punctuations_behind_the_last_record_for_all_tasks() -> None:
    batch = pa.record_batch({"n": [0, 1, 2], "substream": [0, 0, 1], "last": [False, True, True]})
    behaviour = Inject(2, first_sender=5)
    [(_, sent)] = behaviour.open(Shape("inject", {}, index=1)).apply(batch)
    assert sent.schema == behaviour.schema("inject", batch.schema)
    assert list(zip(*(sent[name].to_pylist() for name in ("n", "kind", "target")), strict=True)) == [
        (0, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (2, 0, 0), (2, 1, 0), (2, 1, 1),
    ]  # fmt: skip
    assert set(sent["sender"].to_pylist()) == {6}


def test_records_of_a_key_go_to_one_task() -> None:
    keys = [n % 5 for n in range(40)]
    batch = pa.record_batch({"n": range(40), "key": keys, "last": [n == 39 for n in range(40)]})
    [(_, sent)] = Inject(3, by="key").open(Shape("inject", {})).apply(batch)
    records = [row for row in sent.to_pylist() if row["kind"] == 0]
    assert len({(row["key"], row["target"]) for row in records}) == 5
    assert to_target(sent, 3)[-3:].tolist() == [0, 1, 2]


# -------------------------------------------------------------------- simulated


def _in_order(world: World, queue: str) -> dict[int, list[dict[str, Any]]]:
    """What came on each channel of a queue, without what came again, or counts no more after a loss of power."""
    found: dict[int, list[dict[str, Any]]] = {}
    for position, content in enumerate(world.disk.queue(queue).frames, 1):
        frame = frames.decode(content)
        have = found.setdefault(frame.channel, [])
        counts = all(loss.counts(queue, position, frame.stamp) for loss in world.losses)
        if counts and frame.batch is not None and frame.end > len(have):
            part = frame.since(len(have)).batch
            have += part.to_pylist() if part is not None else []
    return found


def _check_line(rows: list[dict[str, Any]], is_firm: bool) -> None:
    ended: set[int] = set()
    for row in rows:
        if row["kind"]:
            assert row["substream"] == len(ended), "a punctuation is missing, or came twice"
            ended.add(row["substream"])
        else:
            assert row["substream"] not in ended, f"punctuation {row['substream']} has overtaken record {row['n']}"
            assert not is_firm or row["substream"] == len(ended), f"record {row['n']} is before its substream"


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_punctuation_overtakes_a_record_whatever_dies(seed: int, aligned: bool) -> None:
    rr = RoundRobin("punctuations", steps=3, workers=3, granularity=1 + seed % 4, records=25, rate=100, aligned=aligned)
    world = World(rr.flow().graph(), Setup(seed, draw_faults(seed), 1 + seed % 4, (1, 3, 10)[seed % 3]))
    received = world.run()
    for queue in world.plan.queues:
        for rows in _in_order(world, queue).values():
            _check_line(rows, is_firm=False)
    numbers = []
    for task in range(3):
        records = received.records["out", f"step-3.{task}"]
        rows = [records[number] for number in sorted(records)]
        _check_line(rows, is_firm=aligned)
        assert [row["substream"] for row in rows if row["kind"]] == list(range(rr.substreams))
        numbers += [row["n"] for row in rows if not row["kind"]]
    assert sorted(numbers) == list(range(25))


def test_without_alignment_records_may_come_before_their_substream() -> None:
    """Otherwise the test above would not tell soft from firm."""
    early = 0
    for seed in range(12):
        rows = _interleaved(seed, 3, 4)
        sent = _oracle(rows, 3, 1, aligned=False, index=0)
        ended = 0
        for n, substream, _ in sent:
            ended += n < 0
            early += n >= 0 and substream > ended
    assert early


def test_the_sequential_run_is_the_same_flow() -> None:
    rr = RoundRobin("punctuations", steps=2, workers=2, granularity=3, records=7, rate=1e6)
    rows = run_sequentially(rr.flow().graph())["out"].to_pylist()
    assert sorted(row["n"] for row in rows if not row["kind"]) == list(range(7))
    assert sorted((row["substream"], row["sender"]) for row in rows if row["kind"]) == [
        (substream, task) for substream in range(3) for task in range(2)
    ]


# ---------------------------------------------------------------- virtual cluster


def test_every_punctuation_is_a_message_and_those_of_the_own_machine_are_told_apart() -> None:
    rr = RoundRobin("punctuations", steps=4, workers=3, granularity=5, records=52)
    cluster = rr.run(CHEAP)
    tally, machine_of = cluster.tally, {task: node.number for node in cluster.nodes for task in node.worker.tasks}
    steps = [
        [machine for task, machine in machine_of.items() if task.startswith(f"step-{step}.")] for step in (1, 2, 3, 4)
    ]
    (source,) = [machine for task, machine in machine_of.items() if not task.startswith("step")]
    pairs = [*product([source], steps[0]), *chain.from_iterable(product(*both) for both in pairwise(steps))]
    assert tally.service["punctuations"] == rr.punctuations == 11 * len(pairs) == 11 * (3 + 3 * 9)
    between = sum(sender != receiver for sender, receiver in pairs)
    assert tally.service_between["punctuations"] == 11 * between < 11 * len(pairs)
    assert tally.of_kind("DATA") == sum(count for (kind, _), count in tally.frames.items() if kind == "DATA")
    assert tally.of_kind("END") == 3 + 3 * 9
    assert tally.service_frames <= tally.service
    assert set(tally.service) == {"punctuations"}


@pytest.mark.parametrize(("system", "reporting"), [("tracked", 13), ("counted", 4)])
def test_frames_that_are_there_for_tracking_are_counted_but_not_those_of_the_end(system: Any, reporting: int) -> None:
    rr = RoundRobin(system, steps=4, workers=3, granularity=5, records=52)
    tally = rr.run(CHEAP).tally
    frames_of = tally.service_frames
    assert set(frames_of) == {"reports", "notices"}
    # Each of 12 steps and the source says something at its end; those that pass records on have nothing to say.
    assert frames_of["reports"] == tally.of_kind("REPORT") - reporting > 0
    assert frames_of["notices"] == 11 * 3


def test_records_that_are_counted_take_fewer_reports() -> None:
    every, passed = (RoundRobin(s, steps=8, workers=8, records=100).run(CHEAP).tally for s in ("tracked", "counted"))
    assert passed.service_frames["reports"] < every.service_frames["reports"] / 2


def test_tasks_are_told_to_forget_every_256_substreams() -> None:
    rr = RoundRobin("tracked", steps=3, workers=2, granularity=1, records=600, rate=1000)
    assert rr.run(CHEAP).tally.service_frames["forgotten"] == 2 * 3 * 2


def test_reports_go_as_often_as_a_real_worker_ticks() -> None:
    """A tick sees that there is something, the next one sends it; what goes at once is not sent more often."""
    rr = RoundRobin("tracked", steps=2, workers=1, granularity=10, records=1000, rate=1000)
    seconds = rr.records / rr.rate
    assert rr.run(CHEAP).tally.service_frames["reports"] == pytest.approx(seconds / 0.010, rel=0.15)


def test_ends_may_be_records_of_a_sink() -> None:
    rr = RoundRobin("tracked", steps=3, workers=2, granularity=4, records=30, as_records=True)
    assert len(rr.notification_ms(rr.run(CHEAP))) == 8


def test_a_notice_comes_after_all_records() -> None:
    rr = RoundRobin("tracked", steps=3, workers=2, granularity=4, records=40)
    cluster = rr.run(CHEAP)
    after, all_in_all = rr.after_records_ms(cluster), rr.notification_ms(cluster)
    assert after.min() > 0
    assert np.median(after) < np.median(all_in_all)


@pytest.mark.parametrize("system", ["none", "punctuations"])
def test_what_costs_nothing_takes_as_long_as_the_network(system: Any) -> None:
    rr = RoundRobin(system, steps=5, workers=2, granularity=1, records=20)
    cluster = rr.run(FREE, network_s=1e-3, tick_s=0.1)
    assert np.allclose(rr.record_ms(cluster), 5.0, atol=0.01)
    if system == "punctuations":
        assert np.allclose(rr.notification_ms(cluster), 5.0)
        assert len(rr.notification_ms(cluster)) == 20 * 2


def test_costs_add_up() -> None:
    """One machine, one step: the source sends the record, the network takes it, the step takes it."""
    rr = RoundRobin("none", steps=1, workers=1, granularity=1, records=1)
    [ms] = rr.record_ms(rr.run(CHEAP, network_s=1e-3, tick_s=10.0))
    sending = CHEAP.look + CHEAP.stimulus + CHEAP.record + CHEAP.frame_out + CHEAP.append
    taking = CHEAP.look + CHEAP.read + CHEAP.stimulus + CHEAP.frame_in + CHEAP.record
    assert ms == pytest.approx(1e3 * (sending + 1e-3 + taking), abs=2e-3)


def test_one_slow_machine_holds_up_all_punctuations_and_few_records() -> None:
    """Every task waits for all before it: the baseline's weakness."""
    rr = RoundRobin("punctuations", steps=3, workers=4, granularity=1, records=30)
    even, uneven = rr.run(CHEAP), rr.run(CHEAP, slowness=lambda worker: 100.0 if worker == 3 else 1.0)
    assert np.median(rr.notification_ms(uneven)) > 2 * np.median(rr.notification_ms(even))
    assert rr.record_ms(uneven).min() < 2 * rr.record_ms(even).min()


@pytest.mark.parametrize("system", ["punctuations", "tracked"])
def test_the_same_run_twice_is_the_same_to_the_last_bit_and_leaves_no_trace(system: Any) -> None:
    encode, decode = frames.encode, frames.decode
    rr = RoundRobin(system, steps=3, workers=4, granularity=3, records=40, rate=2000, aligned=True)
    first, again = rr.run(CHEAP), rr.run(CHEAP)
    assert first.tally == again.tally
    assert np.array_equal(rr.notification_ms(first), rr.notification_ms(again))
    assert first.busy == again.busy
    assert 0 < max(first.busy) < 1
    assert (frames.encode, frames.decode) == (encode, decode)


@pytest.mark.parametrize("system", ["punctuations", "tracked", "counted"])
def test_with_real_costs_frames_are_bytes_and_the_answers_are_the_same(system: Any) -> None:
    rr = RoundRobin(system, steps=3, workers=2, granularity=4, records=20)
    real = rr.run(CHEAP, is_real=True)
    assert real.tally.service["punctuations"] == (rr.punctuations if system == "punctuations" else 0)
    assert rr.notification_ms(real)[0] > 0


def test_an_overloaded_cluster_falls_behind_and_loses_nothing() -> None:
    slow = Costs(*[1e-3] * 9)
    light = RoundRobin("none", steps=3, workers=2, records=60, rate=20)
    heavy = RoundRobin("none", steps=3, workers=2, records=60, rate=2000)
    at_ease, late = (float(np.median(rr.record_ms(rr.run(slow)))) for rr in (light, heavy))
    assert late > 2 * at_ease


def _numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def _less(record: dict[str, Any]) -> Any:
    return {"n": record["n"] // 2} if record["n"] else hr.side("done", record)


def test_a_loop_ends_when_nothing_goes_round_any_more() -> None:
    """The coordinator is the real one."""
    flow = hr.Flow("loop")
    again = flow.loop("again", flow.source("numbers", hr.generate(_numbers, 20)), parallelism=2, route=hr.rebalance())
    less = flow.stage("less", _less, again, each="record", sides={"done": _numbers(0, 0).schema})
    again.back(less, hr.rebalance())
    flow.sink("out", less.side("done"), hr.callback(lambda batch: None))
    cluster = VirtualCluster(flow.graph(), 2, CHEAP)
    cluster.run()
    assert sum(given.batch.num_rows for given in cluster.delivered) == 20


def test_costs_are_measured() -> None:
    costs = calibrated()
    assert all(0 <= value < 0.01 for value in vars(costs).values())
    assert min(costs.frame_in, costs.frame_out, costs.append, costs.look) > 0
