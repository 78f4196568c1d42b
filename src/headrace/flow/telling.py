"""What a task does that is told of substreams: it lets its stage know, and forgets what is over.

A *firm* reader takes records only once all substreams before theirs have ended: others wait here, as they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.flow.carrying import Carrying
from headrace.flow.operators import Operator, Outputs
from headrace.flow.tracked import TaskTracking
from headrace.model.frames import Frame
from headrace.model.progress import PROGRESS
from headrace.order.columns import TOKEN
from headrace.track.labels import as_numbers
from headrace.track.local import NOTHING
from headrace.track.rows import Ints
from headrace.track.terms import Told
from headrace.track.tokens import tokens_from

_FEW_ROWS: Final = 1024
"""Batches of so few that wait become one with the next."""


class Telling:
    """Of one task of a region, whose first stage is told. `order` is what it carries of the order, if it does."""

    changes_are_all = True

    def __init__(self, tracking: TaskTracking, operators: Mapping[str, Operator], order: Carrying | None):
        self._tracking, self._operator, self._order = tracking, operators.get(tracking.vertex), order
        for operator in operators.values():
            operator.track(tracking)
        self.is_firm = tracking.is_firm
        self._waiting: list[tuple[int, pa.RecordBatch]] = []
        """In the order in which they came, each with the lowest of its labels."""
        self._is_changed = False

    @property
    def keeps(self) -> bool:
        """Does it hold records back?"""
        return bool(self._waiting)

    def take(self, run: Sequence[Frame], are_notices: bool) -> Iterator[Outputs | pa.RecordBatch]:
        """What came, in its order. Gives what the stage gives for notices, and records whose time has come."""
        if are_notices:
            for frame in run:
                if frame.batch is not None:
                    yield from self._told(frame.batch, frame.channel)
            return
        self._tracking.begin()
        came = [self._push(frame) for frame in run]
        due = [batch for batch in came if batch.num_rows]
        if due:
            yield pa.concat_batches(due)

    def _told(self, batch: pa.RecordBatch, channel: int) -> Iterator[Outputs | pa.RecordBatch]:
        tracking = self._tracking
        told = batch.column("told").to_numpy()
        ids = batch.column("id").to_numpy().view(np.uint64)
        stops = [*(np.flatnonzero(np.diff(told)) + 1).tolist(), len(told)]
        for at, stop in pairwise([0, *stops] if len(told) else []):
            kind = told[at]
            tracking.begin()
            start = tracking.table.steps
            if kind != Told.GONE:
                # That comes at any time to who merges, or is over: what is said later must be as of the same step.
                tracking.table.steps += stop - at
            if kind in (Told.STARTED, Told.ENDED):
                yield self._given(kind, batch.column("substream").slice(at, stop - at))
            if kind == Told.ENDED:
                tracking.ended(ids[at:stop])
            elif kind == Told.GONE:
                tracking.gone(ids[at:stop])
            elif kind == Told.UP_TO:
                tracking.up_tos[channel] = int(batch.column("tick").to_numpy()[stop - 1])
                yield from self._let_go(start)
            elif kind == Told.OVER:
                tracking.overs += stop - at

    def _given(self, kind: int, substreams: pa.Array) -> Outputs:
        """What the stage gives for all of these, by output: it has been asked for one after the other."""
        operator = self._operator
        if operator is None or not (operator.hears_ends if kind == Told.ENDED else operator.hears_starts):
            return []
        call = operator.ended if kind == Told.ENDED else operator.started
        found: dict[str, list[pa.RecordBatch]] = {}
        for name in substreams.to_pylist():
            given = call(name)
            PROGRESS.calls += 1
            if self._order is not None:
                self._order.check_placed(self._tracking.vertex, given)
            for output, batch in given:
                found.setdefault(output, []).append(batch)
        return [(output, parts[0] if len(parts) == 1 else pa.concat_batches(parts)) for output, parts in found.items()]

    # -------------------------------------------------------------------- firm

    def _push(self, frame: Frame) -> pa.RecordBatch:
        """Records that came, with their tokens: some have to wait. Gives those that need not.

        They are new as of their frame, wherever runs are cut: in another run, frames before may have been reported.
        """
        assert frame.batch is not None
        batch, start = frame.batch, self._tracking.table.steps
        if TOKEN not in batch.schema.names:
            batch = batch.append_column(TOKEN, pa.array(tokens_from(frame.channel, frame.first, frame.count)))
        self._tracking.table.steps += frame.count
        is_due = self._numbers(batch) <= self._tracking.up_to
        due, later = batch.filter(pa.array(is_due)), batch.filter(pa.array(~is_due))
        if later.num_rows and self._waiting and self._waiting[-1][1].num_rows < _FEW_ROWS:
            later = pa.concat_batches([self._waiting.pop()[1], later])
        self._keep(later)
        self._is_changed = True
        return self._received(due, start)

    def _keep(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._waiting.append((int(self._numbers(batch).min()), batch))

    def _numbers(self, batch: pa.RecordBatch) -> Ints:
        """Records of no substream wait for nothing."""
        labels = as_numbers(self._tracking.labels([batch])).fill_null(NOTHING)
        return labels.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def _let_go(self, start: int) -> Iterator[pa.RecordBatch]:
        """Records whose time has come, in the order in which they came."""
        up_to = self._tracking.up_to
        if all(lowest > up_to for lowest, _ in self._waiting):
            return
        waiting, self._waiting, found = self._waiting, [], []
        for lowest, batch in waiting:
            if lowest > up_to:
                self._waiting.append((lowest, batch))
                continue
            is_due = self._numbers(batch) <= up_to
            found.append(batch.filter(pa.array(is_due)))
            self._keep(batch.filter(pa.array(~is_due)))
        self._is_changed = True
        yield self._received(pa.concat_batches(found), start)

    def _received(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """What need not wait, without its tokens. `start` is the step before it came, or its time did."""
        plain = batch.drop_columns([TOKEN])
        if batch.num_rows:
            self._tracking.received_again(plain, batch.column(TOKEN).to_numpy(), start)
        return plain

    # ------------------------------------------------------------------- state

    def changes(self) -> bytes | None:
        return self.content() if self._is_changed else None

    def content(self) -> bytes:
        self._is_changed = False
        if not self._waiting:
            return b""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._waiting[0][1].schema) as writer:
            for _, batch in self._waiting:
                writer.write_batch(batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def restore(self, parts: Sequence[bytes]) -> None:
        if parts and len(parts[-1]):
            self._waiting = []
            for batch in pa.ipc.open_stream(parts[-1]):
                self._keep(batch)
