"""topK(x, k): the k most frequent values with their counts, most frequent first, ties by the smaller value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.measure.aggregator import Aggregator
from headrace.measure.codes import OrderedCodes
from headrace.measure.steps import ANSWER, INSERT, REMOVE, Steps
from headrace.measure.tally import Tally, lower_count, raise_count
from headrace.measure.treap import MAJOR, MINOR, Treaps, erase, first_nodes, insert
from headrace.measure.words import Words, from_words
from headrace.model.jit import Bytes, Flags, Ints, kernel
from headrace.model.signature import Parameter, Signature
from headrace.state.ragged import Ragged
from headrace.state.tables import Tables, part_of, under

_LARGEST_K = 1000


@kernel
def _top_k(
    kind: Ints, slot: Ints, row: Ints, code: Ints, valid: Flags, table: Ints, used: Ints,
    nodes: Ints, roots: Ints, free: Ints, path: Ints, k: int, by_bytes: bool, offsets: Ints, arena: Bytes,
    sizes: Ints, values: Ints, counts: Ints, written: int,
) -> int:  # fmt: skip
    """Values are kept by (-count, code), so the most frequent come first. Gives how many answers are written."""
    found = np.zeros(k, np.int64)
    for i in range(len(kind)):
        s = slot[i]
        if kind[i] == ANSWER:
            size = first_nodes(nodes, roots[s], k, path, found)
            sizes[row[i]] = size
            for j in range(size):
                values[written + j] = nodes[found[j], MINOR]
                counts[written + j] = -nodes[found[j], MAJOR]
            written += size
        elif not valid[i]:
            continue
        else:
            if kind[i] == REMOVE:
                had = lower_count(table, used, s, code[i])
                now = had - 1
            else:
                had = raise_count(table, used, s, code[i])
                now = had + 1
            if had:
                erase(nodes, roots, free, s, -had, code[i], by_bytes, offsets, arena)
            if now:
                insert(nodes, roots, free, path, s, -now, code[i], by_bytes, offsets, arena)
    return written


def _check(k: Parameter) -> str | None:
    if k == int(k) and 1 <= k <= _LARGEST_K:
        return None
    return f"k must be a whole number from 1 to {_LARGEST_K}, not {k}"


def _result(type: pa.DataType | None) -> pa.DataType | str:
    return pa.list_(pa.struct([("value", type), ("count", pa.int64())])) if type is not None else "x is needed"


class TopK(Aggregator):
    signature = Signature(
        name="topK",
        result_type=_result,
        aliases=("top_k",),
        parameters=("k",),
        check_parameter=_check,
        about="the k most frequent values of x with their counts",
    )

    def prepare(self) -> None:
        assert self.metric.argument_type is not None
        self._k = int(self.metric.parameters[0])
        self._codes = OrderedCodes(self.metric.argument_type, self.texts)
        self._tally = Tally()
        self._treaps = Treaps((MAJOR, MINOR))
        # Events that are taken before the first batch ask for no answers.
        self._values: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)
        self._written = 0

    def grow(self, slots: int) -> None:
        self._treaps.grow(slots)

    def dump(self) -> Tables:
        codes, tally = (under("codes", self._codes.dump()), under("tally", self._tally.dump()))
        return {**codes, **tally, **under("treaps", self._treaps.dump())}

    def restore(self, tables: Tables) -> None:
        self._codes.restore(part_of("codes", tables))
        self._tally.restore(part_of("tally", tables))
        self._treaps.restore(part_of("treaps", tables))

    def take_groups(self, slots: Ints) -> Ragged:
        """(-count, code) of every value, the most frequent first: the tally is the same, by code."""
        return self._treaps.take_groups(slots)

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self._treaps.put_groups(slots, groups)
        entries = groups.words.reshape(-1, 2) * (-1, 1)
        self._tally.put_groups(slots, Ragged(groups.lengths, entries[:, ::-1].reshape(-1)))

    def clear_groups(self) -> None:
        self._treaps.clear_groups()
        self._tally.clear_groups()

    def begin(self, rows: int, slots: int) -> None:
        super().begin(rows, slots)
        # Only what is written takes memory: the pages of an empty array are not there before.
        self._values = np.empty(rows * self._k, np.int64)
        self._counts = np.empty(rows * self._k, np.int64)
        self._written = 0

    def push(self, steps: Steps, values: Words) -> None:
        adds = int((steps.kind <= INSERT).sum())
        self._tally.reserve(adds)
        self._treaps.reserve(adds)
        treaps, codes = self._treaps, self._codes.encode(values)
        written = _top_k(
            steps.kind, steps.slot, steps.row, codes, values.valid, self._tally.table, self._tally.used,
            treaps.nodes, treaps.roots, treaps.free, treaps.path, self._k,
            self._codes.by_bytes, self._codes.offsets, self._codes.arena,
            self.answers.word, self._values, self._counts, self._written,
        )  # fmt: skip
        self._written = int(written)

    def finish(self) -> pa.Array:
        """Rows are answered in order, so the answers follow each other."""
        offsets = np.zeros(len(self.answers.word) + 1, np.int32)
        np.cumsum(self.answers.word, out=offsets[1:])
        codes = self._values[: self._written]
        words = self._codes.decode(codes, np.ones(len(codes), np.uint8))
        struct = self.type.value_type
        values = from_words(words, struct.field(0).type, self.texts)
        items = pa.StructArray.from_arrays([values, pa.array(self._counts[: self._written])], fields=list(struct))
        return pa.ListArray.from_arrays(pa.array(offsets), items).cast(self.type)
