"""A fraud model that all payments are compared with, and that all of them train, in parallel: the alerts of the loop.

Cards, shops and hours all share one model, so there is nothing to partition by. But payments do not depend on each
other, only on the model; and a retraining, which is rare, needs them all. So payments are worked on by many workers,
each with a copy of the model and sums of its own. For a retraining they meet.

python examples/fraud_model.py           on Spark, beside the loop
headrace check examples/fraud_model.py   does it keep the rules? tried on its examples
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.spark.session import local_session

Tags = Callable[[Any], bool]

PAYMENTS = 20_000
EVERY = 1_000
"""Payments between two retrainings."""


@dataclass(frozen=True)
class Model:
    """`limit` is what is suspicious now, in cents. The others are of the payments since it was trained."""

    version: int = 0
    limit: int = 40_000
    count: int = 0
    total: int = 0
    highest: int = 0


class FraudModel(hr.Program):
    """Gives an alert for each payment above the limit, and at each retraining the new limit."""

    time = "ts"
    tag = "kind"
    tags = ("payment", "train")
    outputs = pa.schema([("ts", pa.int64()), ("kind", pa.string()), ("version", pa.int64()), ("cents", pa.int64())])
    depends: Mapping[str, tuple[str, ...]] = {"train": ("train", "payment")}

    def init(self) -> Model:
        return Model()

    def update(self, state: Model, event: Any) -> tuple[Model, Iterable[Any]]:
        if event.kind == "payment":
            is_alert = event.cents > state.limit
            seen = replace(
                state,
                count=state.count + 1,
                total=state.total + event.cents,
                highest=max(state.highest, event.cents),
            )
            return seen, [(event.ts, "alert", state.version, event.cents)] if is_alert else []
        # Half way between what people usually pay and the most that somebody paid. Whole numbers: no rounding.
        limit = (state.total // state.count + state.highest) // 2 if state.count else state.limit
        return Model(state.version + 1, limit), [(event.ts, "limit", state.version + 1, limit)]

    def fork(self, state: Model, left: Tags, right: Tags) -> tuple[Model, Model]:
        """The limit goes to both sides, what was counted to the left."""
        return state, Model(state.version, state.limit)

    def join(self, left: Model, right: Model) -> Model:
        """Both have the same limit: a retraining waits until all sides are joined."""
        return replace(
            left,
            count=left.count + right.count,
            total=left.total + right.total,
            highest=max(left.highest, right.highest),
        )

    def examples(self) -> list[dict[str, Any]]:
        """For `headrace check`: a few payments, some of them high, and two retrainings."""
        cents = [500, 45_000, 900, 30_000, 0, 12_000, 800, 41_000, 0, 25_000, 50_000, 100]
        return [{"ts": n, "kind": "payment" if value else "train", "cents": value} for n, value in enumerate(cents)]


def looped(program: hr.Program, events: list[Any]) -> list[Any]:
    """The loop: one event after the other."""
    state, given = program.init(), list[Any]()
    for event in events:
        state, rows = program.update(state, event)
        given += rows
    return given


def main() -> None:
    spark = local_session("fraud model", cores=2, spark__sql__shuffle__partitions="4")
    is_train = f"id % {EVERY} = {EVERY - 1}"
    events = spark.sql(f"""
        SELECT id AS ts, if({is_train}, 'train', 'payment') AS kind,
               if({is_train}, 0, pow(id * 7919 % 100000 / 100000, 6) * 60000 * (1 + id / {PAYMENTS})) :: bigint AS cents
        FROM range({PAYMENTS})
    """)
    print(hr.check(FraudModel()))
    synchronized = hr.synchronize(FraudModel(), parallelism=4, tasks=2)
    print(synchronized.explain(events))
    found = events.transform(synchronized).collect()
    limits = sorted(row for row in found if row.kind == "limit")
    print(f"{PAYMENTS - len(limits)} payments, {len(found) - len(limits)} alerts, {len(limits)} models, such as")
    for row in limits[-2:]:
        print(f"  version {row.version} at {row.ts}: alerts above {row.cents / 100:.2f}")
    one_by_one = looped(FraudModel(), events.orderBy("ts").collect())
    print(f"as the loop gives them: {'yes' if sorted(found) == sorted(one_by_one) else 'no'}")
    spark.stop()


if __name__ == "__main__":
    main()
