"""Replay the order in which events really came, and compare it with the order of their times.

A training set must not know the future. If some payments reach you late, then a metric over (time, id) order has seen
payments that had not arrived when the decision was made. An `arrival` column gives the answers of that moment.

This example needs no Spark: the same definition runs on an Arrow table.

Run it with: python examples/replay_arrival.py
"""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from headrace.measure.definition import Definition
from headrace.measure.run import measure_table

TEXT = "SELECT count(*) AS n, sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes"

# time (minute past 12), amount, and the offset in the log that they came from: 12:02 arrives after 12:04
ARRIVED = [(0, 10, 100), (4, 20, 101), (2, 500, 102), (5, 40, 103), (6, 80, 104)]


def payments() -> pa.Table:
    return pa.table(
        {
            "ts": [datetime(2026, 3, 3, 12, minute, tzinfo=UTC) for minute, _, _ in ARRIVED],
            "card": ["ann"] * len(ARRIVED),
            "amount": [amount for _, amount, _ in ARRIVED],
            "offset": [offset for _, _, offset in ARRIVED],
        }
    )


def main() -> None:
    table = payments()
    by_time = measure_table(Definition(TEXT, time="ts"), table)
    as_it_came = measure_table(Definition(TEXT, time="ts", arrival="offset"), table)
    print("offset  time   amount  spent by time  spent as it came")
    for hindsight, real in zip(by_time.to_pylist(), as_it_came.to_pylist(), strict=True):
        differs = "  <- the late payment was not there yet" if hindsight["spent"] != real["spent"] else ""
        print(
            f"{real['offset']:6}  {real['ts']:%H:%M}  {real['amount']:6}  {hindsight['spent']:13}  "
            f"{real['spent']:16}{differs}"
        )


if __name__ == "__main__":
    main()
