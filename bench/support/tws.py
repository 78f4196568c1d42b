"""The sliding window with what Spark brings along: `transformWithStateInPandas`, state in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

WINDOW_MICROS: Final = 300_000_000
STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_COLUMNS: Final = ("txn", "ts", "card", "merchant", "amount")
_ANSWERS: Final = "txn long, ts timestamp, card string, merchant string, amount double, spent double, n long"


def measure(payments: DataFrame) -> DataFrame:
    """Sum and count by card over (t - 5 minutes, t]; payments of a micro-batch are newer than those before."""
    return payments.groupBy("card").transformWithStateInPandas(
        SlidingWindow(), outputStructType=_ANSWERS, outputMode="Append", timeMode="None"
    )


class SlidingWindow(StatefulProcessor):
    """Keeps the payments of a card that a later window can hold, as two arrays: one value to read, one to write."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = handle.getValueState("kept", "times binary, amounts binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        # Most cards have one frame of a few rows, and a call of pandas costs more than they do: arrays instead.
        frames = list(rows)
        frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        new = {name: frame[name].to_numpy() for name in _COLUMNS}
        order = np.argsort(new["ts"])
        new = {name: column[order] for name, column in new.items()}
        new_times = new["ts"].astype("datetime64[us]").astype(np.int64)
        before, amounts_before = self._read()
        times, amounts = np.concatenate([before, new_times]), np.concatenate([amounts_before, new["amount"]])
        ends = np.arange(len(before), len(times)) + 1
        starts = np.searchsorted(times, new_times - WINDOW_MICROS, side="right")
        sums = np.concatenate([[0.0], np.cumsum(amounts)])
        first = int(starts[-1])
        self._kept.update((times[first:].tobytes(), amounts[first:].tobytes()))
        yield pd.DataFrame({**new, "spent": sums[ends] - sums[starts], "n": ends - starts})

    def close(self) -> None:
        pass

    def _read(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.float64]]]:
        kept = self._kept.get()
        if kept is None:
            return np.zeros(0, np.int64), np.zeros(0)
        return np.frombuffer(kept[0], np.int64), np.frombuffer(kept[1], np.float64)
