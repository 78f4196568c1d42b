"""A flow: payments in, a running total a card, alerts out; and it goes on where it was when it is started again.

python examples/spending_flow.py              on Spark, stopped in the middle and started again
headrace run examples/spending_flow.py        the same flow with its figures in the terminal
headrace simulate examples/spending_flow.py   the same flow under crashes, in a simulated world
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr

LIMIT = 2000.0


def payments(first: int, count: int) -> pa.RecordBatch:
    """Payments `first`, `first + 1`, …: a pure function, so that a restart can ask for them again."""
    n = np.arange(first, first + count)
    return pa.record_batch({"payment": n, "card": n * 31 % 50, "amount": (n * 7919 % 10_000) / 100})


def worth_a_look(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A stage over record batches: small payments are left out."""
    return batch.filter(pc.greater(batch["amount"], 5.0))


def total(spent: float | None, payment: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """A stage over keyed state: the state of a card is what it has spent; a payment over the limit is sent on."""
    spent = (spent or 0.0) + payment["amount"]
    return spent, {**payment, "spent": round(spent, 2)} if spent > LIMIT else None


def draw(out: str, records: int) -> hr.Flow:
    flow = hr.Flow("spending")
    made = flow.source("payments", hr.generate(payments, records))
    # By card all the way: so the payments of a card keep their order.
    larger = flow.stage("larger", worth_a_look, made, parallelism=2, route=hr.key("card"))
    schema = payments(0, 0).schema.append(pa.field("spent", pa.float64()))
    alerts = flow.keyed("total", total, larger, by="card", parallelism=2, schema=schema)
    flow.sink("alerts", alerts, hr.parquet(out))
    return flow


flow = draw("alerts", 3000)

if __name__ == "__main__":
    from headrace.spark.session import local_session

    spark = local_session("spending", cores=2)
    folder = Path(tempfile.mkdtemp())
    print(draw(str(folder / "alerts"), 20_000).explain())
    job = draw(str(folder / "alerts"), 20_000).start(spark, at=folder / "flows", commit_s=0.2)
    job.wait(timeout_s=0.5)
    job.stop(drain=False)  # in the middle of things; the next run goes on from the last commits
    job = draw(str(folder / "alerts"), 20_000).start(spark, at=folder / "flows", commit_s=0.2)
    job.wait()
    alerts = pq.read_table(folder / "alerts")
    print(f"{alerts.num_rows} alerts, {pc.count_distinct(alerts['payment'])} payments")
    spark.stop()
