"""Snapshots of a flow that runs on: the state of all its stages at the end of each day, as one consistent cut.

python examples/epoch_snapshots.py              on Spark; then another flow that starts from the evening of a day
headrace run examples/epoch_snapshots.py        the flow with its figures in the terminal
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

PAYMENTS, A_DAY = 3000, 500
COUNTRIES = ("AT", "BE", "CZ", "DK", "EE")
SCHEMA = pa.schema([("day", pa.int64()), ("account", pa.int64()), ("country", pa.string()), ("cents", pa.int64())])
EVENING: dict[str, Any] = {"by": "day", "ends": hr.rising(), "bound": "firm"}
TASKS = {"balances": 3, "totals": 2}


def payments(first: int, count: int) -> pa.RecordBatch:
    """A pure function of the number of a payment."""
    n = np.arange(first, first + count, dtype=np.int64)
    accounts = n * 7919 % 97
    countries = pa.array(COUNTRIES).take(pa.array(accounts % len(COUNTRIES)))
    columns = [pa.array(n // A_DAY), pa.array(accounts), countries, pa.array(n * 31 % 1000)]
    return pa.record_batch(columns, schema=SCHEMA)


class Balances(hr.Stage):
    """What each account has."""

    column = "account"

    def __init__(self) -> None:
        self.sums: dict[Any, int] = {}

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for key, cents in zip(batch[self.column].to_pylist(), batch["cents"].to_pylist(), strict=True):
            self.sums[key] = self.sums.get(key, 0) + cents
        return batch

    def snapshot(self) -> dict[Any, int]:
        return self.sums

    def restore(self, state: dict[Any, int]) -> None:
        self.sums = dict(state)


class Totals(Balances):
    """What each country has."""

    column = "country"


def draw(out: str, first: int = 0, last: int = PAYMENTS, states: dict[str, Any] | None = None) -> hr.Flow:
    """All payments; or those from `first` on, with the states before them."""
    flow = hr.Flow("payments" if states is None else f"payments-from-{first}")
    stream = flow.source("made", hr.generate(lambda n, count: payments(first + n, count), last - first))
    stages: tuple[tuple[str, type[hr.Stage], str], ...] = (
        ("balances", Balances, "account"),
        ("totals", Totals, "country"),
    )
    for name, stage, key in stages:
        begun = stage if states is None else hr.starting_from(stage, states[name])
        kind = hr.snapshotted(begun, name, by="day")
        tasks = TASKS[name] if states is None else 1
        # Payments of the next day wait here until those of this one have all come: then the state is that of the day.
        stream = flow.stage(
            name, kind, stream.tracked(**EVENING), parallelism=tasks, route=hr.key(key), sides=kind.sides
        )
        flow.sink(f"{name}-saved", stream.side("snapshots"), hr.parquet(out))
    flow.sink("done", stream, hr.callback(lambda batch: None))
    return flow


flow = draw("snapshots", last=600)

if __name__ == "__main__":
    from headrace.spark.session import local_session

    spark = local_session("payments", cores=2)
    folder = Path(tempfile.mkdtemp())
    draw(f"{folder}/all").start(spark, at=folder / "flows", commit_s=0.2).wait()
    saved = pq.read_table(folder / "all")
    days = hr.whole_epochs(saved, TASKS)
    print(f"{PAYMENTS} payments, {len(days)} days, {saved.num_rows} states of {sum(TASKS.values())} tasks")
    for day in days:
        accounts, countries = (hr.state_at(saved, day, name, tasks=TASKS[name]) for name in TASKS)
        ours, theirs = sum(accounts.values()) / 100, sum(countries.values()) / 100
        print(f"  day {day}: {ours:.2f} in {len(accounts)} accounts, {theirs:.2f} in {len(countries)} countries")

    day = 2
    states = {name: hr.state_at(saved, day, name) for name in TASKS}
    first = (day + 1) * A_DAY
    draw(f"{folder}/rest", first, states=states).start(spark, at=folder / "flows", commit_s=0.2).wait()
    spark.stop()
    rest = pq.read_table(folder / "rest")
    is_equal = all(hr.state_at(rest, days[-1], name) == hr.state_at(saved, days[-1], name) for name in TASKS)
    print(f"the same when it starts from the evening of day {day}: {'yes' if is_equal else 'no'}")
