"""Stages that are functions of their records alone, and those that are not: each is found, and named."""

from __future__ import annotations

import datetime
import math
import pickle
import random
import time
import uuid
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import FlowError, StageFailed
from headrace.testing.determinism import (
    CAUSES,
    Difference,
    NotDeterministic,
    check_deterministic,
    find_differences,
    first_difference,
)
from headrace.testing.determinism_cases import Case, case_of, cases_of, cut

WORDS = ["ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew"]
SCHEMA = pa.schema([("n", pa.int64()), ("card", pa.string()), ("amount", pa.float64())])
OUT = SCHEMA.append(pa.field("found", pa.string()))
BATCHES = [
    pa.record_batch(
        [range(at, at + 20), [WORDS[n % 8] for n in range(20)], [0.1 * n * 1.7**n for n in range(20)]], schema=SCHEMA
    )
    for at in (0, 20)
]


def with_found(batch: pa.RecordBatch, values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([*batch.columns, pa.array([str(value) for value in values], pa.string())], schema=OUT)


def for_each(make: Callable[[], Any]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: with_found(batch, [make() for _ in range(batch.num_rows)])


# ------------------------------------------------------------------------- good


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert isinstance(datetime.datetime(2026, 1, 1), datetime.datetime)
    assert isinstance(date(2026, 1, 1) - datetime.timedelta(1), date)
    return with_found(batch, pc.multiply(batch["amount"], 2).to_pylist())


def seeded(record: dict[str, Any]) -> Any:
    return [{**record, "found": str(random.Random(record["n"]).random())} for _ in range(record["n"] % 3)]


def spent(state: Any, record: dict[str, Any]) -> Any:
    total = (state or 0.0) + record["amount"]
    return total, {**record, "found": repr(total)}


class Numbered(hr.Stage):
    def __init__(self) -> None:
        self.seen = 0

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        first, self.seen = self.seen, self.seen + batch.num_rows
        return {"": with_found(batch, list(range(first, self.seen))), "large": batch.filter(pc.field("amount") > 100)}

    def on_end(self) -> Any:
        return with_found(BATCHES[0].slice(0, 1), [self.seen])


def not_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "amount", pa.array([math.nan, None, -0.0, 0.0] * 30)[: batch.num_rows])


GOOD = {
    "doubled": case_of(doubled, BATCHES),
    "seeded": case_of(seeded, BATCHES, each="record", schema=OUT),
    "spent": case_of(spent, BATCHES, by="card", schema=OUT),
    "numbered": case_of(Numbered, BATCHES, schema=OUT, sides={"large": SCHEMA}),
    "lambda": case_of(lambda batch: batch, {"a": BATCHES, "b": BATCHES[:1]}, any_interleaving=True),
    "single": case_of(not_numbers, [BATCHES[0].slice(0, 1)]),
}

# ------------------------------------------------------------------------ traps

COUNT = 0


def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    global COUNT
    first, COUNT = COUNT, COUNT + batch.num_rows
    return with_found(batch, list(range(first, COUNT)))


def remembering() -> Callable[[dict[str, Any]], Any]:
    seen: set[str] = set()

    def is_new(record: dict[str, Any]) -> Any:
        known = record["card"] in seen
        seen.add(record["card"])
        return {**record, "found": str(known)}

    return is_new


def from_a_set(record: dict[str, Any]) -> Any:
    return [{**record, "found": word} for word in {*WORDS, record["card"]}]


def from_a_dict(batch: pa.RecordBatch) -> pa.RecordBatch:
    places = {word: place for place, word in enumerate(set(WORDS))}
    return with_found(batch, [places[card] for card in batch["card"].to_pylist()])


def hashed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return with_found(batch, [hash(card) % 7 for card in batch["card"].to_pylist()])


class Summed(hr.Stage):
    """A sum of sums."""

    def __init__(self) -> None:
        self.total = 0.0

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        self.total += float(np.sum(batch["amount"].to_numpy()))

    def on_end(self) -> Any:
        return pa.record_batch([[0], [""], [self.total]], schema=SCHEMA)


class Latest(hr.Stage):
    """Gives a record when the next batch has come; what is left is lost."""

    kept: pa.RecordBatch | None = None

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        given, self.kept = self.kept, batch
        return given


def first_of_two() -> type[hr.Stage]:
    class First(hr.Stage):
        def __init__(self) -> None:
            self.cards: set[str] = set()

        def on_batch(self, batch: pa.RecordBatch) -> Any:
            new = [r for r in batch.to_pylist() if not (r["card"] in self.cards or self.cards.add(r["card"]))]  # type: ignore[func-returns-value]
            return pa.RecordBatch.from_pylist(new, SCHEMA)

    return First


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows == 1:
        raise ValueError("one is too few")
    return batch


TRAPS: dict[str, tuple[str, Case]] = {
    "time": ("clock", case_of(for_each(time.time), BATCHES)),
    "time_ns": ("clock", case_of(for_each(lambda: time.time_ns()), BATCHES)),
    "now": ("clock", case_of(for_each(lambda: datetime.datetime.now(datetime.UTC)), BATCHES)),
    "today": ("clock", case_of(for_each(lambda: date.today()), BATCHES)),
    "strftime": ("clock", case_of(for_each(lambda: time.strftime("%Y-%m")), BATCHES)),
    "random": ("random", case_of(for_each(lambda: random.random()), BATCHES)),
    "uuid4": ("random", case_of(for_each(lambda: uuid.uuid4()), BATCHES)),
    "numpy": ("random", case_of(for_each(lambda: np.random.default_rng().integers(1 << 30)), BATCHES)),
    "legacy": ("random", case_of(for_each(lambda: np.random.rand()), BATCHES)),
    "set": ("hash", case_of(from_a_set, BATCHES, each="record", schema=OUT)),
    "dict": ("hash", case_of(from_a_dict, BATCHES)),
    "hash": ("hash", case_of(hashed, BATCHES)),
    "id": ("process", case_of(for_each(lambda: __import__("os").getpid()), BATCHES)),
    "rows": ("cuts", case_of(lambda batch: with_found(batch, [batch.num_rows] * batch.num_rows), BATCHES)),
    "sum": ("rounding", case_of(Summed, BATCHES)),
    "latest": ("cuts", case_of(Latest, BATCHES)),
    "global": ("state", case_of(counted, BATCHES)),
    "closure": ("state", case_of(remembering(), BATCHES, each="record", schema=OUT)),
    "interleaving": ("order", case_of(first_of_two(), {"a": BATCHES[:1], "b": BATCHES[1:]}, any_interleaving=True)),
    "fails": ("cuts", case_of(failing, BATCHES, name="failing", schema=SCHEMA)),
}


@pytest.fixture(scope="module")
def differences() -> dict[str, Difference | None]:
    """Of all of them, in processes that they share."""
    cases = {**GOOD, **{name: case for name, (_, case) in TRAPS.items()}}
    return dict(zip(cases, find_differences(list(cases.values())), strict=True))


@pytest.mark.parametrize("name", list(GOOD))
def test_a_function_of_its_records_alone(name: str, differences: dict[str, Difference | None]) -> None:
    assert differences[name] is None, differences[name].story()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", list(TRAPS))
def test_a_planted_trap_is_found_and_named(name: str, differences: dict[str, Difference | None]) -> None:
    found = differences[name]
    assert found is not None
    assert found.cause == TRAPS[name][0], found.story()


def test_what_is_told_of_it(differences: dict[str, Difference | None]) -> None:
    rows, latest, fails, total = (differences[name] for name in ("rows", "latest", "fails", "sum"))
    assert rows is not None and latest is not None and fails is not None and total is not None  # noqa: PT018
    assert (rows.record, rows.column, rows.first, rows.second) == (0, "found", "40", "1")
    assert "Record 0, column found, was '40' first, and '1' when the same records came in other" in rows.story()
    assert 'each="record"' in rows.story()
    assert (latest.record, latest.column, latest.first) == (0, "", "one of 0 records")
    assert "one is too few" in fails.story()
    assert "stage failing is not a function of its records alone" in fails.story()
    assert "adds floating-point numbers in an order" in total.story()
    assert all(len(texts) == 3 for texts in CAUSES.values())


def test_a_flow_is_checked_stage_by_stage() -> None:
    """Also with what comes to it at the end of a substream."""

    class Gathered(hr.Stage):
        def on_batch(self, batch: pa.RecordBatch) -> Any:
            return None

        def on_ended(self, card: str) -> Any:
            return pa.record_batch([[0], [card], [random.random()]], schema=SCHEMA)

    flow = hr.Flow("cards")
    stream = flow.source("payments", hr.generate(lambda first, count: BATCHES[0].slice(first, count), 20))
    kept = flow.stage("kept", lambda batch: batch.filter(pc.field("n") > 3), stream, parallelism=2)
    tracked = kept.tracked(by="card")
    given = flow.stage("gathered", Gathered, tracked, parallelism=2, route=hr.key("card"))
    flow.sink("out", given, hr.callback(print))
    cases = cases_of(flow, BATCHES)
    assert [(case.stage, len(case.orders[0])) for case in cases] == [("kept", 2), ("gathered", 10)]
    with pytest.raises(NotDeterministic) as caught:
        check_deterministic(flow, {"payments": BATCHES})
    assert (caught.value.difference.stage, caught.value.difference.cause) == ("gathered", "random")
    assert pickle.loads(pickle.dumps(caught.value)).difference == caught.value.difference


def test_what_cannot_be_checked() -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    with pytest.raises(StageFailed, match="stage broken: ValueError: no"):
        check_deterministic(broken, BATCHES, name="broken", schema=SCHEMA)
    with pytest.raises(FlowError, match="there are no records"):
        check_deterministic(doubled, [])
    flow = hr.Flow("f")
    flow.sink("out", flow.source("s", hr.generate(lambda first, count: BATCHES[0], 1)), hr.callback(print))
    with pytest.raises(FlowError, match="no source t; it has s"):
        check_deterministic(flow, {"t": BATCHES})
    with pytest.raises(FlowError, match="each cannot be said of it"):
        check_deterministic(flow, BATCHES, each="record")


def test_cuts_keep_the_records() -> None:
    events = [("records", BATCHES[0]), ("ended", 3), ("records", BATCHES[1]), ("records", BATCHES[0])]
    for how in ("whole", "single", "random"):
        found = cut(events, how, 1)
        place = found.index(("ended", 3))
        for parts, whole in ((found[:place], BATCHES[:1]), (found[place + 1 :], [BATCHES[1], BATCHES[0]])):
            assert pa.Table.from_batches([part for _, part in parts]) == pa.Table.from_batches(whole)
    assert len(cut(events, "whole", 1)) == 3
    assert len(cut(events, "single", 1)) == 61


@pytest.mark.parametrize(
    ("was", "now", "place"),
    [
        ([math.nan, 0.0], [math.nan, 0.0], None),
        ([1.0, 0.0], [1.0, -0.0], (1, "x")),
        ([1.0, None], [1.0, 0.0], (1, "x")),
        ([[math.nan], [0.0]], [[math.nan], [-0.0]], (1, "x")),
        (["a"], ["a", "b"], (1, "")),
        (["a", None], ["b", None], (0, "x")),
    ],
)
def test_bit_for_bit(was: list[Any], now: list[Any], place: Any) -> None:
    assert first_difference(pa.table({"x": was}), pa.table({"x": now})) == place
