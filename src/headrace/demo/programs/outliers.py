"""Outliers among network connections, after RELOADED (Otey, Ghoting, Parthasarathy 2006): texts and numbers mixed.

The *itemsets* of a connection are the seven ways to look at some of its three texts. Of each itemset the model has a
count, and the sums and squares of the two numbers. An itemset finds a connection odd if it was seen less than 10 times,
or if a number is more than 1.96 standard deviations off; the *score* is the sum of 1/size of the itemsets that find it
odd. A connection is a *candidate* if its score is over 10 times the mean; a query judges the candidates again, with all
that is known by then, and gives those that still are outliers.

The published program is not consistent: its fork copies the model to both sides and its join adds the copies, so every
fork counts what there was twice; and its candidates hang on what the worker had seen by chance. What is changed:

- The state is a *model as of the last query*, which both sides of a fork share and nobody changes, and what was *seen
  since*, which is shared out and added up. A query adds the second to the first.
- A candidate is judged by the model of the last query, not by the worker's own. So no fork changes what is flagged.
- The mean is that of the scores between the last two queries, not of the last 40 connections of a worker.
- Before the first query nothing is odd: there is no model.
- A number is judged by its own deviation (the diagonal of the covariances, Δ 0.3 of two numbers is one), in integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import isqrt
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.demo.programs.arrays import (
    Bools,
    Ints,
    Stream,
    in_time_order,
    int_column,
    interleaved,
    is_kind,
    slotted_times,
)
from headrace.synchronize.program import Program, Tags, Update

SUPPORT: Final = 10
TIMES_THE_MEAN: Final = 10
_TAU: Final = Fraction(196, 100)
_VIEWS: Final = tuple(view for view in product((True, False), repeat=3) if any(view))
_WORTH: Final = {1: 6, 2: 3, 3: 2}
"""Of an itemset by its size, in sixths: 1/size."""

Itemset = tuple[str | None, str | None, str | None]
Moments = tuple[int, int, int, int, int]
"""How many; the sum and the squares of the durations; those of the bytes."""
Profile = dict[Itemset, Moments]
Connection = tuple[int, str, str, str, int, int]
"""id, protocol, service, flag, duration, bytes"""

EVENTS = pa.schema(
    [
        ("time", pa.int64()),
        ("kind", pa.string()),
        ("id", pa.int64()),
        ("protocol", pa.string()),
        ("service", pa.string()),
        ("flag", pa.string()),
        ("duration", pa.int64()),
        ("bytes", pa.int64()),
        ("stream", pa.string()),
    ]
)


@dataclass(frozen=True)
class Model:
    """As of the last of `queries` queries; `scores` and `count` are of the connections between the last two, if any."""

    queries: int
    profile: Profile
    scores: int = 0
    count: int = 0


@dataclass(frozen=True)
class Seen:
    """Since the last query."""

    profile: Profile
    scores: int = 0
    count: int = 0
    candidates: tuple[Connection, ...] = ()
    """Sorted."""


@dataclass(frozen=True)
class Watch:
    """The state: what is shared, and what is one's own."""

    model: Model
    seen: Seen


NOTHING: Final = Seen({})


class Outliers(Program):
    """A query gives the outliers since the last: its own time, their ids, and their scores in sixths.

    An itemset that was seen less than `support` times is odd, and a score over `times` the mean.
    """

    tag = "kind"
    time = "time"
    tags = ("connection", "query")
    outputs = pa.schema([("time", pa.int64()), ("id", pa.int64()), ("score", pa.int64())])
    depends: Mapping[str, tuple[str, ...]] = {"query": ("query", "connection")}

    def __init__(self, support: int = SUPPORT, times: int = TIMES_THE_MEAN):
        self.support, self.times = support, times

    def init(self) -> Watch:
        return Watch(Model(0, {}), NOTHING)

    def update(self, state: Watch, event: Any) -> Update:
        if event.kind == "query":
            return self._answer(state, event.time)
        connection = (event.id, event.protocol, event.service, event.flag, event.duration, event.bytes)
        score = score_of(state.model.profile, connection, self.support)
        found = (connection,) if self._is_odd(score, state.model) else ()
        own = Seen(_profile_of(connection), score, 1, found)
        return replace(state, seen=_together(state.seen, own)), []

    def _answer(self, state: Watch, time: int) -> Update:
        seen, before = state.seen, state.model
        scored = seen if seen.count else before
        model = Model(before.queries + 1, _added(before.profile, seen.profile), scored.scores, scored.count)
        scores = [(each[0], score_of(model.profile, each, self.support)) for each in seen.candidates]
        return Watch(model, NOTHING), [(time, number, score) for number, score in scores if self._is_odd(score, model)]

    def _is_odd(self, score: int, model: Model) -> bool:
        """Is it over so many times the mean?"""
        return score * model.count > self.times * model.scores

    def fork(self, state: Watch, left: Tags, right: Tags) -> tuple[Watch, Watch]:
        """The model goes to both sides; what was seen to the one that has the queries, or else to the left."""
        without = replace(state, seen=NOTHING)
        return (without, state) if right("query") else (state, without)

    def join(self, left: Watch, right: Watch) -> Watch:
        """Where one side had a query, the other had no events: the model of more queries is the one of now."""
        model = max(left.model, right.model, key=lambda model: model.queries)
        return Watch(model, _together(left.seen, right.seen))

    def examples(self) -> list[dict[str, Any]]:
        """Enough of one sort to be usual, then odd ones, with queries between."""
        usual = ("tcp", "http", "ok")
        sorts: list[Any] = [usual] * 12 + ["query"] + [usual] * 14 + [("tcp", "ssh", "bad"), "query", "query"]
        sorts += [usual, ("udp", "dns", "ok"), usual] * 2 + ["query", ("tcp", "http", "bad"), usual, "query"]
        rows = []
        for time, sort in enumerate(sorts):
            row: dict[str, Any] = dict.fromkeys(EVENTS.names) | {"time": time, "kind": "query", "stream": "queries"}
            if sort != "query":
                row |= {"kind": "connection", "id": time, "stream": f"connections-{time % 2}"}
                row |= dict(zip(("protocol", "service", "flag"), sort, strict=True))
                row |= {"duration": 5 + time % 3, "bytes": 9_000 if time == 31 else 100 + time % 7}
            rows.append(row)
        return rows


def itemsets_of(connection: Connection) -> Iterator[Itemset]:
    _, protocol, service, flag, _, _ = connection
    for a, b, c in _VIEWS:
        yield (protocol if a else None, service if b else None, flag if c else None)


def score_of(profile: Profile, connection: Connection, support: int = SUPPORT) -> int:
    """In sixths. Nothing is odd where nothing is known."""
    if not profile:
        return 0
    *_, duration, size = connection
    score = 0
    for itemset in itemsets_of(connection):
        count, x, xx, y, yy = profile.get(itemset, (0, 0, 0, 0, 0))
        if count < support or _is_far(duration, count, x, xx) or _is_far(size, count, y, yy):
            score += _WORTH[3 - itemset.count(None)]
    return score


def _is_far(value: int, count: int, total: int, squares: int) -> bool:
    """How far from the mean, in standard deviations: over 1.96? Squared and multiplied until only integers are left."""
    off = (count * value - total) ** 2
    return off * _TAU.denominator**2 > _TAU.numerator**2 * (count * squares - total * total)


def _profile_of(connection: Connection) -> Profile:
    *_, duration, size = connection
    own = (1, duration, duration * duration, size, size * size)
    return dict.fromkeys(itemsets_of(connection), own)


def _added(one: Profile, other: Profile) -> Profile:
    small, large = sorted((one, other), key=len)
    joined = dict(large)
    for itemset, moments in small.items():
        known = joined.get(itemset)
        joined[itemset] = moments if known is None else _sum(known, moments)
    return joined


def _sum(a: Moments, b: Moments) -> Moments:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4]


def _together(one: Seen, other: Seen) -> Seen:
    candidates = one.candidates + other.candidates
    if one.candidates and other.candidates:
        candidates = tuple(sorted(candidates))
    return Seen(_added(one.profile, other.profile), one.scores + other.scores, one.count + other.count, candidates)


# ------------------------------------------------------------------------- data

_SORTS: Final = (("tcp", "http", "ok"), ("tcp", "mail", "ok"), ("udp", "dns", "ok"), ("tcp", "ssh", "reset"))
_NEW: Final = ("tcp", "chat", "ok")
_ODD: Final = (*_SORTS, _NEW, ("udp", "http", "ok"), ("icmp", "echo", "bad"), ("tcp", "dns", "bad"))


def generate(
    streams: int = 4,
    windows: int = 5,
    connections_per_window: int = 1_000,
    odd_share: float = 0.002,
    seed: int = 1,
    ties: bool = False,
) -> pa.Table:
    """Streams of connections, so many a query and stream, of which few are odd, and one stream of queries.

    Halfway, a new sort comes up: until the next query it is odd, and by then it is usual.
    """
    rng = np.random.default_rng(seed)
    made, count = [], windows * connections_per_window
    for number in range(streams):
        times, ends = slotted_times(windows, connections_per_window, rng)
        is_odd = rng.random(count) < odd_share
        sort = np.where(is_odd, rng.integers(0, len(_ODD), count), rng.integers(0, len(_SORTS), count))
        is_new = (np.arange(count) >= count // 2) & (rng.random(count) < 0.05) & ~is_odd
        sort[is_new] = _ODD.index(_NEW)
        columns: dict[str, Any] = {"kind": "connection", "id": number * count + np.arange(count)}
        for place, name in enumerate(("protocol", "service", "flag")):
            columns[name] = pa.array([each[place] for each in _ODD]).take(pa.array(sort))
        # Even spreads end within 1.96 standard deviations: what is far off is odd.
        columns["duration"] = rng.integers(10, 100, count) + np.where(is_odd, rng.integers(0, 200, count), 0)
        columns["bytes"] = 500 * (1 + sort % 4) + rng.integers(0, 400, count) * np.where(is_odd, 25, 1)
        made.append(Stream(f"connections-{number}", times, columns))
    made.append(Stream("queries", ends, {"kind": "query"}))
    return interleaved(made, EVENTS, tie=8 if ties else 1)


def expected(events: pa.Table, support: int = SUPPORT, times: int = TIMES_THE_MEAN) -> pa.Table:
    """Query by query, for each itemset the range in which its numbers are usual; all connections looked up at once."""
    events = in_time_order(events)
    is_query = is_kind(events, "query")
    rows = events.filter(pa.array(~is_query))
    codes = [_codes(rows, view) for view in _VIEWS]
    numbers = [int_column(rows, "duration"), int_column(rows, "bytes")]
    ids, ends = int_column(rows, "id"), (np.cumsum(~is_query))[is_query].tolist()
    scores = np.zeros(len(ids), np.int64)
    was_total, was_count, start, found = 0, 0, 0, []
    for time, end in zip(events.filter(pa.array(is_query)).column("time").to_pylist(), ends, strict=True):
        candidates = np.flatnonzero(scores[start:end] * was_count > times * was_total) + start
        if end > start:
            was_total, was_count = int(scores[start:end].sum()), end - start
        # Against all up to this query: candidates for good, and those behind it until the next query changes that.
        known = np.zeros(len(ids), np.int64) if not end else _scores(codes, numbers, end, support)
        outliers = candidates[known[candidates] * was_count > times * was_total]
        found += [(time, int(ids[row]), int(known[row])) for row in outliers.tolist()]
        scores, start = known, end
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=Outliers.outputs)


def _codes(rows: pa.Table, view: tuple[bool, ...]) -> Ints:
    """A number for each different set of texts that a view looks at."""
    found = np.zeros(rows.num_rows, np.int64)
    for name, is_seen in zip(("protocol", "service", "flag"), view, strict=True):
        if is_seen:
            encoded = rows.column(name).combine_chunks().dictionary_encode()
            found = found * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def _scores(codes: list[Ints], numbers: list[Ints], end: int, support: int) -> Ints:
    """Of all rows, against the first `end`."""
    scores = np.zeros(len(numbers[0]), np.int64)
    for view, code in zip(_VIEWS, codes, strict=True):
        counts = np.bincount(code[:end], minlength=int(code.max()) + 1)
        is_odd: Bools = counts[code] < support
        for values in numbers:
            low, high = _usual(code[:end], values[:end], counts)
            is_odd |= (values < low[code]) | (values > high[code])
        scores += np.where(is_odd, 6 // sum(view), 0)
    return scores


def _usual(code: Ints, values: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """For each itemset, the least and the greatest value within τ standard deviations of the mean."""
    totals, squares = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
    np.add.at(totals, code, values)
    np.add.at(squares, code, values * values)
    bounds = []
    for count, total, square in zip(counts.tolist(), totals.tolist(), squares.tolist(), strict=True):
        off = isqrt(int(_TAU**2 * (count * square - total * total)))
        bounds.append((-((off - total) // count), (total + off) // count) if count else (0, 0))
    low, high = np.array(bounds, np.int64).T
    return low, high
