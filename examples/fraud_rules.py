"""Fraud rules over a day of payments: metrics first, then the rules as plain conditions on the new columns.

Thieves who have stolen a card try it with five small payments within five minutes. The day has some of those, and we
know which cards they are, so we can see what the rules catch.

Run it with: python examples/fraud_rules.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import functions as F

import headrace as hr
from headrace.demo.payments import make_day
from headrace.spark.session import local_session

METRICS = """
    -- how busy the card is, and whether somebody has tried it with tiny payments
    SELECT count(*) AS n_5m, max(amount) AS highest_5m FROM payments GROUP BY card OVER sliding 5 minutes;
    SELECT count(*) AS tiny_1h FROM payments WHERE amount < 3 GROUP BY card OVER sliding 1 hour;

    -- what people usually pay at this shop, without the payment in question
    SELECT median(amount) AS usual FROM payments GROUP BY merchant OVER sliding 1 day delayed by 1 minute
"""

RULES = {
    "card testing": "n_5m > 4 AND highest_5m < 5",
    "purchase after tests": "tiny_1h >= 3 AND amount > 100",
    "far above usual": "amount > 8 * usual",
}


def main() -> None:
    day = make_day(seed=7, payments=20_000, bursts_a_kind=4)
    stolen = {burst.card for burst in day.bursts}
    spark = local_session("fraud rules", cores=2, spark__sql__shuffle__partitions="4")
    metrics = hr.Metrics(METRICS, time="ts", id="txn")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "payments.parquet"
        pq.write_table(day.payments, file)
        scored = spark.read.parquet(str(file)).transform(metrics.measure)
        alarms = [F.when(F.expr(rule), name) for name, rule in RULES.items()]
        raised = scored.withColumn("alarm", F.explode(F.array_compact(F.array(*alarms)))).select("alarm", "card")
        found = raised.distinct().collect()
    print(f"{day.payments.num_rows:,} payments, {len(stolen)} stolen cards")
    for name in RULES:
        cards = {row.card for row in found if row.alarm == name}
        print(f"{name:20}: {len(cards & stolen):2} stolen cards, {len(cards - stolen):3} others")
    spark.stop()


if __name__ == "__main__":
    main()
