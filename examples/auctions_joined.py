"""NEXMark's query 8: who entered an auction site and opened an auction in the same ten seconds.

python examples/auctions_joined.py              on Spark, two tasks that join, each window as soon as it is complete
headrace run examples/auctions_joined.py        the same flow with its figures in the terminal
headrace simulate examples/auctions_joined.py   the same flow under crashes, in a simulated world
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.demo.nexmark import SCHEMA, Nexmark, query_8

EVENTS = 4000
SITE = Nexmark(per_second=80)
"""Persons who enter, and auctions, as they happen: of four events one is a person."""
TEN_SECONDS = hr.windows("ts", 10)

# A class of hr.Stage: it keeps the persons and the auctions of open windows, and joins them when a window has ended.
Entered = hr.window_join(
    SCHEMA,
    by=TEN_SECONDS,
    kind="kind",
    left="person",
    right="auction",
    on=("id", "seller"),
    given={"window": "window", "id": "left.id", "name": "left.name"},
    how="semi",
)


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Some work before the join, in two tasks: they are never at the same place."""
    return batch


def draw(out: str, events: int) -> hr.Flow:
    flow = hr.Flow("auctions")
    site = flow.source("site", hr.generate(SITE.make, events))
    ready = flow.stage("check", checked, site, parallelism=2, route=hr.rebalance())
    # A window has ended when the source is past it, and all of it has come through whatever is between.
    windows = ready.tracked(by=TEN_SECONDS, ends=hr.rising())
    entered = flow.stage("join", Entered, windows, parallelism=2, route=Entered.route, schema=Entered.gives)
    flow.sink("entered", entered, hr.parquet(out))
    return flow


flow = draw("entered", 400)

if __name__ == "__main__":
    from headrace.spark.session import local_session

    spark = local_session("auctions", cores=2)
    folder = Path(tempfile.mkdtemp())
    draw(f"{folder}/entered", EVENTS).start(spark, at=folder / "flows", commit_s=0.2).wait()
    spark.stop()
    entered = pq.read_table(folder / "entered").sort_by([("window", "ascending"), ("id", "ascending")])
    starts = entered["window"].unique().to_pylist()
    print(f"{EVENTS} events, {len(starts)} windows, {entered.num_rows} who entered and opened an auction, such as")
    for row in entered.slice(0, 3).to_pylist():
        print(f"  {datetime.fromtimestamp(row['window'] / 1e6, UTC):%H:%M:%S}  {row['id']}  {row['name']}")
    expected = query_8(SITE.make(0, EVENTS))
    is_equal = entered.select(["id", "name"]).equals(expected.select(["id", "name"]))
    print(f"as a query over all events gives them: {'yes' if is_equal else 'no'}")
