"""The order of events of one time as numbers, the same wherever it is asked for: by stream, and then by tag.

Known tags have odd numbers. A tag that is not known has the even number between those around it, whatever is known: so
the order does not depend on that. Tags with one even number all belong to one worker, which has them sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.synchronize.tags import Bucket, Ints, bucket_of, codes_of, order_key, values_of

STREAM: Final = 1 << 32
"""Between the ranks of two streams."""


def known_rank(number: int) -> int:
    """Of the tag with this number among those that are known."""
    return 2 * number + 1


def stream_text(stream: Any) -> str:
    """As Spark writes it."""
    return str(stream).lower() if isinstance(stream, bool) else str(stream)


@dataclass(frozen=True)
class Ranks:
    """For events that have waited: what was known when they came may have been something else."""

    known: tuple[Any, ...]
    """The tags, or buckets, in their order; without what is other."""
    streams: tuple[str, ...] = ()
    """In their order. One that is not among them any more comes before them."""

    @cached_property
    def _keys(self) -> list[Any]:
        return [order_key(values_of(tag)) for tag in self.known]

    @property
    def _is_bucketed(self) -> bool:
        return any(isinstance(tag, Bucket) for tag in self.known)

    def of(self, tag: tuple[Any, ...], stream: str | None = None) -> int:
        """Of the values of a tag."""
        key = order_key((tag[0], bucket_of(tag)) if self._is_bucketed else tag)
        at = bisect_left(self._keys, key)
        own = known_rank(at) if at < len(self._keys) and self._keys[at] == key else 2 * at
        place = self.streams.index(stream) + 1 if stream in self.streams else 0
        return place * STREAM + own

    def of_rows(self, columns: Sequence[pa.Array], streams: Sequence[str] | None) -> Ints:
        """Of each row, from the columns of its tag, and its stream where there are several."""
        parts = [*columns, *([] if streams is None else [pa.array(streams, pa.string())])]
        codes, values = codes_of(parts)
        width = len(columns)
        ranks = [self.of(value[:width], None if streams is None else value[width]) for value in values]
        found: Ints = np.array(ranks, np.int64)[codes]
        return found
