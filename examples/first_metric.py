"""The first metric: what has this card spent in the five minutes up to this payment?

Run it with: python examples/first_metric.py
"""

from __future__ import annotations

import headrace as hr
from headrace.spark.session import local_session

PAYMENTS = """
    SELECT txn, to_timestamp(ts) AS ts, card, amount FROM VALUES
        (1, '2026-03-03 12:00:00', 'ann',  4.00),
        (2, '2026-03-03 12:01:00', 'bob',  6.00),
        (3, '2026-03-03 12:02:30', 'ann', 20.00),
        (4, '2026-03-03 12:04:00', 'ann',  5.00),
        (5, '2026-03-03 12:05:00', 'ann', 60.00)
    AS payments(txn, ts, card, amount)
"""


def main() -> None:
    spark = local_session("first metric", cores=2, spark__sql__shuffle__partitions="2")
    payments = spark.sql(PAYMENTS)
    metrics = hr.Metrics(
        "SELECT count(*) AS n, sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes",
        time="ts",
        id="txn",
    )
    print(metrics.explain(payments))
    # Payment 5 does not see payment 1, which is exactly five minutes old.
    payments.transform(metrics.measure).orderBy("txn").show()
    spark.stop()


if __name__ == "__main__":
    main()
