"""The largest (or smallest) value of a moving window.

In order: by a monotone queue, in amortised constant time. A value that is not larger than a newer one can never be the
maximum again, so it is dropped; what is left falls from the oldest to the newest, and the oldest is the answer.
Where events may be late: by an ordered multiset, which can go back in time, at the price of keeping all values.
"""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from headrace.measure.aggregator import Aggregator
from headrace.measure.codes import OrderedCodes
from headrace.measure.keys import compare_codes
from headrace.measure.queue import (
    BEFORE,
    NEWEST,
    NONE,
    NUMBER,
    OLDEST,
    VALUE,
    Queues,
    fill_node,
    link_after,
    take_node,
    unlink,
)
from headrace.measure.steps import ANSWER, INSERT, REMOVE, Steps
from headrace.measure.treap import COPIES, MAJOR, MINOR, WEIGHT, Treaps, erase, insert, kth
from headrace.measure.words import Words, from_words
from headrace.model.jit import Bytes, Flags, Ints, kernel
from headrace.state.tables import Tables, part_of, under


@kernel
def _push_in_order(
    kind: Ints, slot: Ints, row: Ints, time: Ints, number: Ints, code: Ints, valid: Flags,
    nodes: Ints, ends: Ints, free: Ints, out: Ints, out_valid: Flags,
    largest: int, by_bytes: bool, offsets: Ints, arena: Bytes,
) -> None:  # fmt: skip
    """`largest` is 1 for the maximum, -1 for the minimum."""
    for i in range(len(kind)):
        s = slot[i]
        oldest = ends[s, OLDEST]
        if kind[i] == ANSWER:
            if oldest != NONE:
                out[row[i]] = nodes[oldest, VALUE]
                out_valid[row[i]] = 1
        elif not valid[i]:
            continue
        elif kind[i] == REMOVE:
            if oldest != NONE and nodes[oldest, NUMBER] == number[i]:
                unlink(nodes, ends, s, oldest, free)
        else:
            before = ends[s, NEWEST]
            while before != NONE:
                order = compare_codes(nodes[before, VALUE], code[i], by_bytes, offsets, arena)
                if order * largest > 0:
                    break
                worse, before = before, nodes[before, BEFORE]
                unlink(nodes, ends, s, worse, free)
            node = take_node(free)
            fill_node(nodes, node, code[i], 1, time[i], number[i])
            link_after(nodes, ends, s, before, node)


@kernel
def _push_any_order(
    kind: Ints, slot: Ints, row: Ints, code: Ints, valid: Flags, nodes: Ints, roots: Ints, free: Ints, path: Ints,
    out: Ints, out_valid: Flags, largest: int, by_bytes: bool, offsets: Ints, arena: Bytes,
) -> None:  # fmt: skip
    for i in range(len(kind)):
        s = slot[i]
        # Strings are ordered as minors; numbers as majors, which need no look at the strings.
        major, minor = (0, code[i]) if by_bytes else (code[i], 0)
        if kind[i] == ANSWER:
            if roots[s] != NONE:
                rank = nodes[roots[s], WEIGHT] - 1 if largest > 0 else 0
                node = kth(nodes, roots[s], rank)
                out[row[i]] = nodes[node, MINOR] if by_bytes else nodes[node, MAJOR]
                out_valid[row[i]] = 1
        elif not valid[i]:
            continue
        elif kind[i] == REMOVE:
            erase(nodes, roots, free, s, major, minor, by_bytes, offsets, arena)
        else:
            insert(nodes, roots, free, path, s, major, minor, by_bytes, offsets, arena)


class Extremum(Aggregator):
    """What min and max share, in order and late."""

    largest: int

    def prepare(self) -> None:
        assert self.metric.argument_type is not None
        self._codes = OrderedCodes(self.metric.argument_type, self.texts)
        self._prepare_values()

    @abstractmethod
    def _prepare_values(self) -> None: ...

    def dump(self) -> Tables:
        return {**under("codes", self._codes.dump()), **under("values", self.state.dump())}

    def restore(self, tables: Tables) -> None:
        self._codes.restore(part_of("codes", tables))
        self.state.restore(part_of("values", tables))

    def finish(self) -> pa.Array:
        words = self._codes.decode(self.answers.word, self.answers.valid)
        return from_words(words, self.type, self.texts)


class InOrderExtremum(Extremum):
    """For events that come in the order of their times."""

    def _prepare_values(self) -> None:
        self.state = self._queues = Queues((VALUE, NUMBER))

    def push(self, steps: Steps, values: Words) -> None:
        self._queues.reserve(int((steps.kind <= INSERT).sum()))
        codes, queues, out = self._codes.encode(values), self._queues, self.answers
        _push_in_order(
            steps.kind, steps.slot, steps.row, steps.time, steps.number, codes, values.valid,
            queues.nodes, queues.ends, queues.free, out.word, out.valid,
            self.largest, self._codes.by_bytes, self._codes.offsets, self._codes.arena,
        )  # fmt: skip


class AnyOrderExtremum(Extremum):
    """For events that may be late."""

    def _prepare_values(self) -> None:
        self.state = self._treaps = Treaps((MINOR if self._codes.by_bytes else MAJOR, COPIES))

    def push(self, steps: Steps, values: Words) -> None:
        self._treaps.reserve(int((steps.kind <= INSERT).sum()))
        codes, treaps, out = self._codes.encode(values), self._treaps, self.answers
        _push_any_order(
            steps.kind, steps.slot, steps.row, codes, values.valid,
            treaps.nodes, treaps.roots, treaps.free, treaps.path, out.word, out.valid,
            self.largest, self._codes.by_bytes, self._codes.offsets, self._codes.arena,
        )  # fmt: skip
