"""A join of streams: every view of a page is given with what is known of the page by then.

Views are independent of each other, also of one page: a page that is seen often can be worked on in many places, each
with its own copy of what is known. Only an update of that page needs all of them.

Where the paper disagrees with itself: an update gives the *old* information, as its prose says (its code, Figure 14,
gives the new). Its code drops pages that are on neither side of a fork; here they go to the left. Its third event only
reads, as a view does, and is left out; its views give nothing, and here give themselves with what is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.demo.programs.arrays import Stream, group_rows, in_time_order, int_column, interleaved, is_kind
from headrace.demo.programs.arrays import slotted_times as slotted
from headrace.synchronize.program import Program, Tags, Update

Infos = dict[int, int]

EVENTS = pa.schema(
    [
        ("time", pa.int64()),
        ("kind", pa.string()),
        ("page", pa.int64()),
        ("user", pa.int64()),  # of a view
        ("info", pa.int64()),  # of an update
        ("stream", pa.string()),
    ]
)


class PageViews(Program):
    """State: what is known of each page (a number, as the zip code in the paper's code)."""

    tag = ("kind", "page")
    time = "time"
    outputs = pa.schema(
        [
            ("time", pa.int64()),
            ("kind", pa.string()),
            ("page", pa.int64()),
            ("user", pa.int64()),
            ("info", pa.int64()),
        ]
    )
    depends: Mapping[str, tuple[str, ...]] = {"update": ("update", "view")}

    def init(self) -> Infos:
        return {}

    def update(self, state: Infos, event: Any) -> Update:
        given = [(event.time, event.kind, event.page, event.user, state.get(event.page))]
        if event.kind == "view":
            return state, given
        return {**state, event.page: event.info}, given

    def fork(self, state: Infos, left: Tags, right: Tags) -> tuple[Infos, Infos]:
        """Each side gets the pages it may see events of; both, if both only view it. Left gets those of neither."""
        theirs = {page: info for page, info in state.items() if _is_used(page, right)}
        ours = {page: info for page, info in state.items() if page not in theirs or _is_used(page, left)}
        return ours, theirs

    def join(self, left: Infos, right: Infos) -> Infos:
        """A page that is on both sides was updated on none."""
        return {**left, **right}

    def update_batch(self, state: Infos, events: pa.RecordBatch) -> tuple[Infos, pa.RecordBatch | None]:
        """Row by row, what was known before is the update of that page before it, or else the state's."""
        if not events.num_rows:
            return state, None
        groups = group_rows(events.column("page"))
        pages = groups.keys.to_pylist()
        is_update = is_kind(events, "update")
        known = pa.array([state.get(page) for page in pages], pa.int64())
        source = groups.codes
        if is_update.any():
            at = np.arange(len(is_update))
            latest = np.maximum.accumulate(np.where(is_update[groups.order], at, -1))
            before = np.concatenate(([-1], latest[:-1]))
            has_update = before >= np.maximum.accumulate(np.where(groups.is_first, at, 0))
            source = groups.codes.copy()
            source[groups.order[has_update]] = len(pages) + groups.order[before[has_update]]
            state = self._updated(state, events, np.flatnonzero(is_update))
        infos = pa.concat_arrays([known, events.column("info").cast(pa.int64())]).take(pa.array(source))
        columns = [*(events.column(name) for name in self.outputs.names[:-1]), infos]
        return state, pa.RecordBatch.from_arrays(columns, names=self.outputs.names)

    @staticmethod
    def _updated(state: Infos, events: pa.RecordBatch, rows: Any) -> Infos:
        """The last update of each page counts."""
        updates = events.select(["page", "info"]).take(pa.array(rows[::-1]))
        codes = updates.column("page").dictionary_encode(null_encoding="encode").indices
        _, firsts = np.unique(codes.to_numpy(zero_copy_only=False), return_index=True)
        last = updates.take(pa.array(firsts))
        return {**state, **dict(zip(last.column("page").to_pylist(), last.column("info").to_pylist(), strict=True))}

    def examples(self) -> list[dict[str, Any]]:
        """Views of a page nobody knows yet, then updates and views of three pages."""
        rows: list[dict[str, Any]] = []
        for time in range(30):
            page, is_update = time * time % 7 % 3, time % 5 == 4
            row: dict[str, Any] = {"time": time, "kind": "update" if is_update else "view", "page": page}
            row |= {"user": None if is_update else 100 + time, "info": 1000 + time if is_update else None}
            rows.append(row | {"stream": "updates" if is_update else f"views-{time % 2}"})
        return rows


def _is_used(page: int, side: Tags) -> bool:
    return side(("view", page)) or side(("update", page))


def generate(
    views: int = 100_000,
    streams: int = 4,
    pages: int = 10,
    views_per_update: int = 10_000,
    seed: int = 1,
    ties: bool = False,
) -> pa.Table:
    """Streams of views, nearly all of two pages, and one of updates: one for so many views of all streams."""
    rng = np.random.default_rng(seed)
    per_window = max(1, views_per_update // streams)
    windows = max(1, views // (per_window * streams))
    made = []
    for number in range(streams):
        times, ends = slotted(windows, per_window, rng)
        user = rng.integers(0, 100_000, len(times))
        made.append(
            Stream(f"views-{number}", times, {"kind": "view", "page": _seen(pages, len(times), rng), "user": user})
        )
    info = rng.integers(10_000, 100_000, windows)
    page = np.where(rng.random(windows) < 0.8, np.arange(windows) % min(2, pages), rng.integers(0, pages, windows))
    made.append(Stream("updates", ends, {"kind": "update", "page": page, "info": info}))
    return interleaved(made, EVENTS, tie=8 if ties else 1)


def _seen(pages: int, count: int, rng: np.random.Generator) -> Any:
    """Two pages are hot: one view in a thousand is of any page."""
    hot = rng.integers(0, min(2, pages), count)
    cold = np.flatnonzero(rng.random(count) < 0.001)
    hot[cold] = rng.integers(0, pages, len(cold))
    return hot


def expected(events: pa.Table) -> pa.Table:
    """One search: where would each row be among the updates, ordered by page and row?"""
    events = in_time_order(events)
    pages, infos = int_column(events, "page"), events.column("info").to_pylist()
    width = len(pages) + 1
    places = np.unique(pages, return_inverse=True)[1].astype(np.int64) * width + np.arange(len(pages))
    updates = np.sort(places[is_kind(events, "update")])
    before = np.searchsorted(updates, places) - 1
    nearest = updates[before] if len(updates) else np.full(len(pages), -1)
    is_same = (before >= 0) & (nearest // width == places // width)
    found = [
        infos[row] if same else None for row, same in zip((nearest % width).tolist(), is_same.tolist(), strict=True)
    ]
    shown = events.select(PageViews.outputs.names[:-1])
    return shown.append_column("info", pa.array(found, pa.int64()))
