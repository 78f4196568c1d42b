"""first(x): x of the oldest event in the window, null if it is null there.

All values in the window are kept in memory: which one is next can only be known from them.
"""

from __future__ import annotations

from headrace.measure.aggregator import Aggregator, same_type
from headrace.measure.queue import (
    BEFORE,
    NEWEST,
    NONE,
    NUMBER,
    OLDEST,
    TIME,
    VALID,
    VALUE,
    Queues,
    fill_node,
    link_after,
    take_node,
    unlink,
)
from headrace.measure.steps import ANSWER, INSERT, REMOVE, REPLAY, Steps
from headrace.measure.words import Words, is_wide
from headrace.model.jit import Flags, Ints, kernel
from headrace.model.signature import Signature

_HIGH = NUMBER
"""The place of the arrival number holds the second word here: a queue of all events needs no number."""


@kernel
def _first(
    kind: Ints, slot: Ints, row: Ints, time: Ints, word: Ints, high: Ints, valid: Flags,
    nodes: Ints, ends: Ints, free: Ints, out: Ints, out_high: Ints, out_valid: Flags,
) -> None:  # fmt: skip
    wide = len(high) > 0
    for i in range(len(kind)):
        s = slot[i]
        oldest = ends[s, OLDEST]
        if kind[i] == ANSWER:
            if oldest != NONE:
                out[row[i]] = nodes[oldest, VALUE]
                out_valid[row[i]] = nodes[oldest, VALID]
                if wide:
                    out_high[row[i]] = nodes[oldest, _HIGH]
        elif kind[i] == REMOVE:
            unlink(nodes, ends, s, oldest, free)
        else:
            before = ends[s, NEWEST]
            if kind[i] == INSERT:
                while before != NONE and nodes[before, TIME] > time[i]:
                    before = nodes[before, BEFORE]
            node = take_node(free)
            fill_node(nodes, node, word[i], valid[i], time[i], high[i] if wide else 0)
            link_after(nodes, ends, s, before, node)


class First(Aggregator):
    signature = Signature(name="first", result_type=same_type, about="x of the oldest event in the window")
    late_mode = REPLAY
    late_keep = -1

    def prepare(self) -> None:
        self.state = self._queues = Queues((VALUE, VALID, TIME, _HIGH) if is_wide(self.type) else (VALUE, VALID, TIME))

    def push(self, steps: Steps, values: Words) -> None:
        self._queues.reserve(int((steps.kind <= INSERT).sum()))
        queues, out = self._queues, self.answers
        _first(
            steps.kind, steps.slot, steps.row, steps.time, values.word, values.high, values.valid,
            queues.nodes, queues.ends, queues.free, out.word, out.high, out.valid,
        )  # fmt: skip
