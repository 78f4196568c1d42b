"""What a task does that is told of substreams: it lets its stage know, and forgets what is over.

A *firm* reader takes records only once all substreams before theirs have ended: others wait here, as they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from headrace.flow.carrying import Carrying
from headrace.flow.operators import Operator, Outputs
from headrace.flow.tracked import TaskTracking
from headrace.model.frames import Frame
from headrace.model.progress import PROGRESS
from headrace.order.columns import TOKEN
from headrace.track.labels import as_numbers
from headrace.track.terms import Told
from headrace.track.tokens import tokens_from


class Telling:
    """Of one task of a region, whose first stage is told. `order` is what it carries of the order, if it does."""

    def __init__(self, tracking: TaskTracking, operators: Mapping[str, Operator], order: Carrying | None):
        self._tracking, self._operator, self._order = tracking, operators.get(tracking.vertex), order
        for operator in operators.values():
            operator.track(tracking)
        self.is_firm = tracking.is_firm
        self._waiting: list[pa.RecordBatch] = []
        self._is_changed = False

    def take(self, run: Sequence[Frame], are_notices: bool) -> Iterator[Outputs | pa.RecordBatch]:
        """What came, in its order. Gives what the stage gives for notices, and records whose time has come."""
        if not are_notices:
            self._tracking.begin()
        for frame in run:
            if are_notices and frame.batch is not None:
                yield from self._told(frame.batch, frame.channel)
            else:
                self._push(frame)
        if not are_notices:
            yield from self._let_go()

    def _told(self, batch: pa.RecordBatch, channel: int) -> Iterator[Outputs | pa.RecordBatch]:
        tracking = self._tracking
        told = batch.column("told").to_numpy()
        ids = batch.column("id").to_numpy().view(np.uint64)
        stops = [*(np.flatnonzero(np.diff(told)) + 1).tolist(), len(told)]
        for at, stop in pairwise([0, *stops] if len(told) else []):
            kind = told[at]
            tracking.begin()
            tracking.table.steps += stop - at
            if kind in (Told.STARTED, Told.ENDED):
                yield self._given(kind, batch.column("substream").slice(at, stop - at))
            if kind == Told.ENDED:
                tracking.ended(ids[at:stop])
            elif kind == Told.GONE:
                tracking.gone(ids[at:stop])
            elif kind == Told.UP_TO:
                tracking.up_tos[channel] = int(batch.column("tick").to_numpy()[stop - 1])
                yield from self._let_go()
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

    def _push(self, frame: Frame) -> None:
        """Records that came, with their tokens: they may wait, and be split."""
        assert frame.batch is not None
        batch = frame.batch
        if TOKEN not in batch.schema.names:
            batch = batch.append_column(TOKEN, pa.array(tokens_from(frame.channel, frame.first, frame.count)))
        self._tracking.table.steps += frame.count
        self._waiting.append(batch)
        self._is_changed = True

    def _let_go(self) -> Iterator[pa.RecordBatch]:
        """Records whose time has come, in the order in which they came."""
        if not self._waiting:
            return
        waiting = pa.concat_batches(self._waiting)
        labels = self._tracking.labels([waiting])
        numbers = as_numbers(labels).fill_null(self._tracking.up_to).to_numpy(zero_copy_only=False)
        is_due = numbers <= self._tracking.up_to
        if not is_due.any():
            self._waiting = [waiting]
            return
        self._is_changed = True
        ready = waiting.filter(pa.array(is_due))
        self._waiting = [waiting.filter(pa.array(~is_due))] if not is_due.all() else []
        tokens = ready.column(TOKEN).to_numpy()
        plain = ready.drop_columns([TOKEN])
        self._tracking.received_again(plain, tokens)
        yield plain

    # ------------------------------------------------------------------- state

    def changes(self) -> bytes | None:
        return self.content() if self._is_changed else None

    def content(self) -> bytes:
        self._is_changed = False
        if not self._waiting:
            return b""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._waiting[0].schema) as writer:
            for batch in self._waiting:
                writer.write_batch(batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def restore(self, parts: Sequence[bytes]) -> None:
        if parts and len(parts[-1]):
            self._waiting = list(pa.ipc.open_stream(parts[-1]))
