"""The change log of a database, enriched by four tasks at once, and applied in the order of the log.

python examples/changes_in_order.py              on Spark, stopped in the middle and started again
headrace run examples/changes_in_order.py        the same flow with its figures in the terminal
headrace simulate examples/changes_in_order.py   the same flow under crashes, in a simulated world
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

CHANGES = 2000
RATES = {"EUR": 1.0, "USD": 0.9, "JPY": 0.006}
STEPS = (
    ("insert", "customers", 0),
    ("insert", "orders", 0),
    ("update", "orders", 0),
    ("insert", "orders", 1),
    ("delete", "orders", 0),
    ("update", "orders", 1),
    ("delete", "orders", 1),
    ("delete", "customers", 0),
)
"""What becomes of a customer: two orders, and no order without its customer. Two of three customers stay."""

LOG = pa.schema(
    [
        ("lsn", pa.int64()),
        ("op", pa.string()),
        ("table", pa.string()),
        ("id", pa.int64()),
        ("customer", pa.int64()),
        ("amount", pa.float64()),
        ("currency", pa.string()),
    ]
)
ENRICHED = LOG.append(pa.field("euros", pa.float64()))
ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("euros", pa.float64())])


def change(lsn: int) -> dict[str, Any]:
    customer, step = divmod(lsn, len(STEPS))
    op, table, which = STEPS[step]
    if step >= 6 and customer % 3:
        op, table, which = "update", "orders", 1
    return {
        "lsn": lsn,
        "op": op,
        "table": table,
        "id": customer if table == "customers" else 2 * customer + which,
        "customer": customer,
        "amount": float(lsn * 7919 % 1000),
        "currency": ("EUR", "EUR", "EUR", "USD", "JPY")[lsn % 5],
    }


def changes(first: int, count: int) -> pa.RecordBatch:
    """The log: a pure function of the log sequence number, so that a restart can ask for it again."""
    return pa.RecordBatch.from_pylist([change(lsn) for lsn in range(first, first + count)], LOG)


def enriched(change: dict[str, Any]) -> dict[str, Any]:
    """A stage over records. It asks for foreign rates, which takes a while: so these come later than others."""
    if change["currency"] != "EUR":
        time.sleep(0.001)
    return {**change, "euros": round(change["amount"] * RATES[change["currency"]], 2)}


class Tables(hr.Stage):
    """A stage with state: both tables. It gives the changes that they refuse, and in the end the orders."""

    def __init__(self) -> None:
        self.customers: set[int] = set()
        self.orders: dict[int, list[Any]] = {}

    def on_batch(self, batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        refused = [change for change in batch.to_pylist() if not self.apply(change)]
        return {"refused": pa.RecordBatch.from_pylist(refused, ENRICHED)}

    def apply(self, change: dict[str, Any]) -> bool:
        """False for what cannot be: a row that is there twice, or is not there; an order without its customer."""
        op, table, id, customer = change["op"], change["table"], change["id"], change["customer"]
        if (id in (self.customers if table == "customers" else self.orders)) == (op == "insert"):
            return False
        if table == "customers":
            if op == "delete" and any(owner == id for owner, _ in self.orders.values()):
                return False
            self.customers ^= {id}
            return True
        if op != "delete" and customer not in self.customers:
            return False
        if op == "delete":
            del self.orders[id]
        else:
            self.orders[id] = [customer, change["euros"]]
        return True

    def on_end(self) -> pa.RecordBatch:
        rows = [{"id": id, "customer": owner, "euros": euros} for id, (owner, euros) in sorted(self.orders.items())]
        return pa.RecordBatch.from_pylist(rows, ORDERS)

    def snapshot(self) -> list[Any]:
        return [sorted(self.customers), sorted([id, *row] for id, row in self.orders.items())]

    def restore(self, state: list[Any]) -> None:
        self.customers, self.orders = set(state[0]), {id: row for id, *row in state[1]}


def draw(out: str, count: int, is_ordered: bool = True) -> hr.Flow:
    flow = hr.Flow("changes" if is_ordered else "disorder")
    log = flow.source("log", hr.generate(changes, count))
    ready = flow.stage("enrich", enriched, log, parallelism=4, each="record", schema=ENRICHED)
    # The tables see the changes as the log has them, whichever task was faster.
    log_order = ready.ordered() if is_ordered else ready
    tables = flow.stage("tables", Tables, log_order, parallelism=1, schema=ORDERS, sides={"refused": ENRICHED})
    flow.sink("orders", tables, hr.parquet(f"{out}/orders"))
    flow.sink("refused", tables.side("refused"), hr.parquet(f"{out}/refused"))
    return flow


flow = draw("changes", 400)

if __name__ == "__main__":
    from headrace.spark.session import local_session

    one_by_one = Tables()
    assert all(one_by_one.apply(enriched(change(lsn))) for lsn in range(CHANGES))

    spark = local_session("changes", cores=2)
    folder = Path(tempfile.mkdtemp())
    print(draw(f"{folder}/ordered", CHANGES).explain())
    job = draw(f"{folder}/ordered", CHANGES).start(spark, at=folder / "flows", commit_s=0.2, batch_records=100)
    while not job.wait(timeout_s=0.1) and not job.status()["tasks"].get("tables.0", {}).get("records_in"):
        pass  # until the first changes are applied
    job.stop(drain=False)  # in the middle of things; the next run goes on from the last commits
    draw(f"{folder}/ordered", CHANGES).start(spark, at=folder / "flows", commit_s=0.2, batch_records=100).wait()
    orders = pq.read_table(folder / "ordered" / "orders")
    refused = pq.read_table(folder / "ordered" / "refused", schema=ENRICHED)
    print(f"{CHANGES} changes, {refused.num_rows} refused; {orders.num_rows} orders are left, such as")
    for order in orders.slice(0, 3).to_pylist():
        print(f"  order {order['id']} of customer {order['customer']}: {order['euros']:.2f} euros")
    is_equal = orders.to_pylist() == one_by_one.on_end().to_pylist()
    print(f"as if applied one by one: {'yes' if is_equal else 'no'}")

    draw(f"{folder}/disorder", CHANGES, is_ordered=False).start(spark, at=folder / "flows", batch_records=100).wait()
    refused = pq.read_table(folder / "disorder" / "refused", schema=ENRICHED)
    print(f"without ordered(), changes are refused: {'yes' if refused.num_rows else 'no'}")
    spark.stop()
