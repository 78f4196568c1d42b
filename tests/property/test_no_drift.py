"""Ten million steps of adding and removing doubles of mixed magnitude leave no trace in a sum."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from headrace.measure.definition import Definition
from headrace.measure.run import measure_table

EVENTS = 5_000_000
WIDTH = 1_000  # milliseconds, and as many events: one a millisecond


def test_ten_million_steps_on_doubles_of_mixed_magnitude_do_not_drift() -> None:
    dice = np.random.default_rng(11)
    x = dice.choice([-1.0, 1.0], EVENTS) * dice.random(EVENTS) * 10.0 ** dice.integers(-300, 300, EVENTS)
    milliseconds = np.arange(EVENTS, dtype=np.int64)
    # The last event comes when all others have left: what it sees is what was not removed.
    x[-1] = 0.0
    milliseconds[-1] += 2 * WIDTH
    table = pa.table({"ts": pa.array(milliseconds * 1000, pa.timestamp("us", "UTC")), "x": x})
    text = "SELECT sum(x) AS total, avg(x) AS mean, count(*) AS n FROM events OVER sliding 1s"
    answered = measure_table(Definition(text, time="ts"), table, frames=[1_000_000] * 4)

    totals, means = answered.column("total").to_numpy(), answered.column("mean").to_numpy()
    chosen = [*range(3), *dice.integers(0, EVENTS - 1, 1500).tolist(), EVENTS - 2]
    for row in chosen:
        window = x[max(0, row - WIDTH + 1) : row + 1].tolist()
        assert totals[row] == math.fsum(window), f"row {row}"
        assert means[row] == math.fsum(window) / len(window), f"row {row}"
    assert answered.column("n")[-1].as_py() == 1
    assert (totals[-1], means[-1]) == (0.0, 0.0)
