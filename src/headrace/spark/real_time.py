"""Source order through a query in Real-Time Mode, which writes its rows to the paths as they come, and no marks."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.order.by_offset import OffsetsMerge
from headrace.order.runs import Done
from headrace.spark.merger import Merger, Merging, headers_of, rows_of
from headrace.spark.query_paths import Paths

OFFSET_TAG: Final = "headrace-offset"
"""The header of a row on its path: the offset of the record that it was made of."""
_LOOK_S: Final = 0.25


def written_at_once(rows: DataFrame, paths: Paths) -> DataStreamWriter:
    """The rows of a streaming DataFrame to the paths, as Spark's own sink writes them."""
    tagged = paths.tagged(rows, OFFSET_TAG, paths.place.cast("string"))
    options = {"kafka.linger.ms": "0", **paths.sink_options}
    return tagged.writeStream.format("kafka").options(**options).outputMode("update")


def committed_by(query: StreamingQuery) -> int | None:
    """Up to which offset of its source, which has one partition, a query has committed."""
    progress = query.lastProgress
    if progress is None or not progress["sources"]:
        return None
    ends = progress["sources"][0]["endOffset"]
    found = json.loads(ends) if isinstance(ends, str) else ends
    offsets = [int(offset) for topic in (found or {}).values() for offset in topic.values()]
    return offsets[0] if len(offsets) == 1 else None


class RealTimeMerger(Merger):
    """Rows leave as soon as all offsets before them have, or are known to bring none."""

    committed: Callable[[], int | None] = staticmethod(lambda: None)
    """How far the query says it is."""

    def _made(self, names: list[str], done: Done, offsets: list[int]) -> Merging:
        self._looked_at, self._known = 0.0, -1
        self._due: list[tuple[int, list[int]]] = []
        self._offsets = OffsetsMerge(names, done, offsets)
        return self._offsets

    def _arrived(self, by_path: dict[int, list[Any]]) -> None:
        was = self._offsets.offsets
        for at, mine in by_path.items():
            headers = headers_of(mine, OFFSET_TAG)
            sequences = np.array([int(each[-1][1]) for each in headers], np.int64)
            hashes = [zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b"")) for message in mine]
            rows = rows_of(sequences, mine, headers)
            self._offsets.take(at, mine[0].offset(), rows, np.array(hashes, np.int64))
        self._look()
        while self._due and all(at >= end for at, end in zip(self._next, self._due[0][1], strict=True)):
            self._offsets.commit(self._due.pop(0)[0])
        self._let_go(was)

    def _look(self) -> None:
        """What was written before a commit is there when we hear of it: read up to the ends that the paths have now."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        end = self.committed()
        if end is not None and end > self._known:
            self._known = end
            self._due.append((end, self._ends()))

    def _ahead(self) -> set[int]:
        return set()
