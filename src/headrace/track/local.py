"""What one task knows of substreams: for each, the exclusive or of the tokens of all that it has sent and received.

The words are *running*: of everything since the task began. So a report says how things are after so many records, a
later one replaces an earlier one, and it does no harm that a task which starts again says something twice, or folds
its records into other reports than before.

Records are only noted as they pass, and folded when a report is due, many at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.track import rising
from headrace.track.folding import fold_pieces, say_rows
from headrace.track.labels import Meaning, as_numbers, names_of
from headrace.track.rows import Ints, RowIndex, placed
from headrace.track.tokens import Words

NO_TIME: Final = (1 << 63) - 1
ALL: Final = rising.ALL
"""A promise of everything."""
NOTHING: Final = rising.NOTHING
COUNTED: Final = -2
"""In place of a channel: of records that are counted, and have no tokens."""
_KEPT_PROMISES: Final = 1 << 12


class Note(IntEnum):
    """What happened to some records."""

    RECEIVED = 0
    SENT = 1
    OPENED = 2
    """They come from a source: no token. With `COUNTED` for a channel, they leave as they came."""
    OPENED_LATER = 3
    """They come from a source that does not tell substreams apart itself, and a stage beside it does: no token."""
    HELD = 4
    RELEASED = 5
    RECEIVED_LATER = 6
    """They came before, and were kept back until now."""


_OPENS: Final = (int(Note.OPENED), int(Note.OPENED_LATER))


@dataclass
class _Noted:
    pieces: list[tuple[int, ...]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    tokens: list[tuple[int, Words]] = field(default_factory=list)
    rows: int = 0
    opened: bool = False
    """Do some of them come from a source?"""


@dataclass(frozen=True)
class Said:
    """Rows of a report. `words`: of each its id, at, since, coarse time, whether it is promised, and its values."""

    words: Ints
    names: dict[int, Any]

    @property
    def ids(self) -> Words:
        found: Words = self.words[:, 0].view(np.uint64)
        return found


class Broken(Exception):
    """What a task did with substreams is not as it must be. `row` is where, among all rows that were folded."""

    def __init__(self, kind: int, note: int, label: Any):
        super().__init__(kind, note, label)
        self.kind, self.note, self.label = kind, note, label


NOT_OF_MEMBERS: Final = 1
AFTER_ITS_END: Final = 2
NOT_HELD: Final = 3
WENT_BACK: Final = 4


class LocalTable:
    """`steps` counts what the task has taken: what a table says, it says as of a step.

    Of records that are counted, a word is how many more were sent than received.
    """

    def __init__(
        self,
        meaning: Meaning,
        groups: int,
        hold_group: int = -1,
        salt: int = 0,
        holds_all: bool = False,
        forgets: bool = False,
    ):
        """`hold_group`: charged for what is held. `holds_all`: a substream is held from its first record to its end.

        `forgets`: of a source, which is not told what has ended.
        """
        self._meaning, self._groups, self._salt = meaning, groups, salt
        self._hold_group, self._holds_all, self._forgets = hold_group, holds_all, forgets
        self._index = RowIndex()
        self._values: Words = np.zeros((len(self._index.ids), groups), np.uint64)
        self._numbers: Ints = np.zeros((len(self._index.ids), 4), np.int64)
        """For each row: at, since, coarse time, how often it is held."""
        self._flags: npt.NDArray[np.uint8] = np.zeros((len(self._index.ids), 4), np.uint8)
        """For each row: promised; to be reported; to be saved; saved before."""
        self._due: Ints = np.zeros(0, np.int64)
        self._dropped: list[Words] = []
        self._gone: Words = np.zeros(0, np.uint64)
        """They have ended for everyone, and are held here."""
        self._noted = _Noted()
        self._names: dict[int, Any] = {}
        self.steps = 0
        self._risen = rising.Risen(meaning.slack) if meaning.slack is not None else None
        self._rising: list[tuple[int, int]] = []
        """Labels of a source that rise, with their ids: those below what it has promised can be forgotten."""

    def __len__(self) -> int:
        return len(self._index)

    @property
    def below(self) -> int:
        """What a source has promised by rising: all labels below it. Within a run, what came may be held yet."""
        if self._risen is not None:
            self._risen.settle()
        return NOTHING if self._risen is None else self._risen.below

    @property
    def noted_rows(self) -> int:
        return self._noted.rows

    @property
    def is_due(self) -> bool:
        """Is there anything new to report?"""
        return bool(self._noted.rows or len(self._due))

    # -------------------------------------------------------------------- note

    def note(self, kind: Note, batch: pa.RecordBatch, channel: int, first: int, group: int, start: int) -> None:
        """Records of a channel from a number on; `start` is the step at which what they belong to began."""
        noted = self._noted
        if channel == COUNTED and kind == Note.SENT and noted.batches and noted.batches[-1] is batch:
            opened = noted.pieces[-1]
            if opened[0] == Note.OPENED and opened[1] != COUNTED and opened[5] == start:
                # The same records, which leave as they came: once is enough.
                noted.pieces[-1] = (Note.OPENED, COUNTED, 0, opened[3], group, *opened[5:])
                return
        self._append(batch, (kind, channel, first, batch.num_rows, group, start, self.steps, max(channel, -1)))

    def _append(self, batch: pa.RecordBatch, piece: tuple[int, ...]) -> None:
        noted = self._noted
        noted.pieces.append(piece)
        noted.batches.append(batch)
        noted.rows += batch.num_rows
        noted.opened = noted.opened or piece[0] in _OPENS

    def note_tokens(self, kind: Note, batch: pa.RecordBatch, tokens: Words, group: int, start: int) -> None:
        """As `note`, of records that have their tokens with them."""
        self._noted.tokens.append((self._noted.rows, tokens))
        self._append(batch, (kind, -1, 0, batch.num_rows, group, start, self.steps, -1))

    def held(self, ids: Words) -> Words:
        """Those among them that are held."""
        rows = self._index.rows_of(ids)
        found: Words = ids[(rows >= 0) & (self._numbers[rows, 3] > 0)]
        return found

    def hold(self, ids: Words, start: int, labels: pa.Array | None = None, coarse: int = NO_TIME) -> None:
        """`labels` are theirs, where a stage says so itself; `coarse` is the time at a source."""
        self._at_once(Note.HELD, ids, start, labels, coarse)
        if self._risen is not None and labels is not None:
            self._risen.hold(as_numbers(labels).to_pylist())

    def release(self, ids: Words, start: int, labels: pa.Array | None = None, coarse: int = NO_TIME) -> None:
        """What was held is so no more. Raises Broken."""
        self._at_once(Note.RELEASED, ids, start, coarse=coarse)
        if self._risen is not None and labels is not None:
            self._risen.release(start, as_numbers(labels).to_pylist())

    def release_all(self, start: int) -> None:
        """The task is over, and has given all."""
        self.fold()
        live = self._index.live()
        rows = live[self._numbers[live, 3] > 0]
        if len(rows):
            self._numbers[rows, 3] = 1
            self.release(self._index.ids[rows], start)
        if self._risen is not None:
            self._risen.held.clear()

    def _at_once(
        self, kind: Note, ids: Words, start: int, labels: pa.Array | None = None, coarse: int = NO_TIME
    ) -> None:
        self.fold(coarse)
        pieces = np.array([(kind, 0, 0, len(ids), max(self._hold_group, 0), start, self.steps, -1)], np.int64)
        labels = pa.array(ids) if labels is None else labels
        self._fold(pieces, ids, np.zeros(0, np.uint64), np.zeros(len(ids), np.uint8), coarse, labels)

    # -------------------------------------------------------------------- fold

    def fold(self, coarse: int = NO_TIME) -> None:
        """Reckon with all that was noted. `coarse` is the time at a source, now. Raises Broken."""
        noted, self._noted = self._noted, _Noted()
        if not noted.pieces:
            return
        pieces = np.array(noted.pieces, np.int64)
        labels = self._meaning.labels(noted.batches)
        ids = self._meaning.ids(labels)
        ends = self._ends(noted, pieces)
        tokens = np.zeros(len(ids) if noted.tokens else 0, np.uint64)
        for start, words in noted.tokens:
            tokens[start : start + len(words)] = words
        if self._risen is not None:
            self._rise(pieces, labels)
        self._fold(pieces, ids, tokens, ends, coarse, labels)

    def _ends(self, noted: _Noted, pieces: Ints) -> npt.NDArray[np.uint8]:
        found = np.zeros(noted.rows, np.uint8)
        if self._meaning.ends is not None and noted.opened:
            is_opened = np.isin(pieces[:, 0], _OPENS)
            ends = self._meaning.ends([noted.batches[at] for at in np.flatnonzero(is_opened).tolist()])
            found[np.repeat(is_opened, pieces[:, 3])] = ends
        return found

    def _rise(self, pieces: Ints, labels: pa.Array) -> None:
        """What a source promises by what it gives. Raises Broken where it goes back further than it said."""
        assert self._risen is not None
        stops = np.cumsum(pieces[:, 3])
        opened = np.flatnonzero(np.isin(pieces[:, 0], _OPENS))
        if not len(opened):
            return
        known = np.asarray(labels.is_valid())
        numbers = as_numbers(labels).fill_null(0).to_numpy(zero_copy_only=False)
        for piece, stop in zip(pieces[opened].tolist(), stops[opened].tolist(), strict=True):
            first = stop - piece[3]
            places = first + np.flatnonzero(known[first:stop])
            back = places[self._risen.take(piece[5], piece[7], numbers[places])]
            if len(back):
                raise Broken(WENT_BACK, Note.OPENED, labels[int(back[0])].as_py())

    def _fold(self, pieces: Ints, ids: Words, tokens: Words, ends: Any, coarse: int, labels: pa.Array) -> None:
        self._grow(len(ids))
        due, born, results = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.zeros(4, np.int64)
        index = self._index
        anywhere, forgets = self._meaning.opens_anywhere, self._forgets
        setting = np.array([self._hold_group, self._holds_all, self._salt, coarse, anywhere, forgets], np.int64)
        fold_pieces(
            pieces, ids, tokens, ends, index.slots, index.ids, index.free, index.counts,
            self._values, self._numbers, self._flags, setting, due, born, results,
        )  # fmt: skip
        self._due = np.concatenate([self._due, due[: results[0]]]) if len(self._due) else due[: results[0]]
        if not (results[1] or results[2]):
            return
        new = born[: results[1]]
        if len(new):
            born_labels = labels if len(new) == len(labels) else labels.take(pa.array(new))
            self._names.update(zip(ids[new].tolist(), names_of(born_labels), strict=True))
            if self._meaning.slack is not None:
                self._rising.extend(zip(as_numbers(born_labels).to_pylist(), ids[new].tolist(), strict=True))
        if results[2]:
            at = int(results[3])
            piece = int(np.searchsorted(np.cumsum(pieces[:, 3]), at, side="right"))
            raise Broken(int(results[2]), int(pieces[piece, 0]), labels[at].as_py())

    def _grow(self, more: int) -> None:
        size = self._index.reserve(more)
        have = len(self._values)
        if size > have:
            self._values = np.concatenate([self._values, np.zeros((size - have, self._groups), np.uint64)])
            self._numbers = np.concatenate([self._numbers, np.zeros((size - have, 4), np.int64)])
            self._flags = np.concatenate([self._flags, np.zeros((size - have, 4), np.uint8)])

    # ------------------------------------------------------------------ report

    def said(self) -> Said:
        """What has changed since the last call. All that was noted must have been folded."""
        words: Ints = np.empty((len(self._due), 5 + self._groups), np.int64)
        count = say_rows(self._due, self._index.ids, self._values, self._numbers, self._flags, words)
        self._due = np.zeros(0, np.int64)
        names, self._names = self._names, {}
        self._forget_promised()
        return Said(words[:count], names)

    def _forget_promised(self) -> None:
        """A source does not hear that substreams have ended. What it has promised and said, it can forget in time."""
        if not self._forgets or len(self._index) < _KEPT_PROMISES:
            return
        live = self._index.live()
        # What a stage beside it holds, it will let go: then it is told of again.
        is_held = self._numbers[live, 3] > 0
        gone = self._index.ids[live[(self._flags[live, 0] == 1) & ~is_held]]
        risen = [word for number, word in self._rising if number < self.below]
        self._rising = [pair for pair in self._rising if pair[0] >= self.below]
        self.drop(np.concatenate([gone, np.array(risen, np.uint64)]))

    def drop(self, ids: Words) -> None:
        """These have ended for everyone, and will not be heard of again.

        What is held yet was let go of in an earlier life of the task: it stays until it is again, and goes with others.
        """
        self.fold()
        ids = np.concatenate([self._gone, ids])
        rows = self._index.rows_of(ids)
        is_held = (rows >= 0) & (self._numbers[rows, 3] > 0)
        self._gone, ids = ids[is_held], ids[~is_held]
        saved = self._index.rows_of(ids)
        saved = saved[saved >= 0]
        # What came and went between two snapshots is in none.
        self._dropped.append(self._index.ids[saved[self._flags[saved, 3] == 1]])
        rows = self._index.drop(ids)
        self._values[rows], self._numbers[rows], self._flags[rows] = 0, 0, 0

    # ------------------------------------------------------------------- state

    def changes(self) -> bytes | None:
        """Rows since the last call, as `restore` wants them; all of them are folded."""
        live = self._index.live()
        rows = live[self._flags[live, 2] == 1]
        gone = np.concatenate([*self._dropped, np.zeros(0, np.uint64)])
        if not len(rows) and not len(gone):
            return None
        return self._dumped(rows, gone)

    def content(self) -> bytes:
        return self._dumped(self._index.live(), np.zeros(0, np.uint64))

    def _dumped(self, rows: Ints, gone: Words) -> bytes:
        self._flags[rows, 2], self._flags[rows, 3] = 0, 1
        self._dropped = []
        columns = {
            "id": np.concatenate([self._index.ids[rows], gone]),
            "gone": np.concatenate([np.zeros(len(rows), np.uint8), np.ones(len(gone), np.uint8)]),
            "promised": np.concatenate([self._flags[rows, 0], np.zeros(len(gone), np.uint8)]),
        }
        padding = np.zeros((len(gone), 4), np.int64)
        for at, name in enumerate(("at", "since", "coarse", "held")):
            columns[name] = np.concatenate([self._numbers[rows], padding])[:, at]
        for group in range(self._groups):
            columns[f"value_{group}"] = np.concatenate([self._values[rows, group], np.zeros(len(gone), np.uint64)])
        batch = pa.record_batch([pa.array(column) for column in columns.values()], names=list(columns))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def restore(self, parts: Sequence[bytes]) -> None:
        """From a content and the changes after it, behind `set_values`. All is to be reported again: it may be lost."""
        for part in parts:
            batch = pa.ipc.open_stream(part).read_all().combine_chunks()
            found = {name: batch.column(name).to_numpy() for name in batch.schema.names}
            gone = found["gone"] == 1
            self._index.drop(found["id"][gone])
            kept = np.flatnonzero(~gone)
            ids = found["id"][kept]
            self._grow(len(ids))
            rows = placed(self._index, ids)
            for at, name in enumerate(("at", "since", "coarse", "held")):
                self._numbers[rows, at] = found[name][kept]
            for group in range(self._groups):
                self._values[rows, group] = found[f"value_{group}"][kept]
            self._flags[rows, 0] = found["promised"][kept]
        live = self._index.live()
        self._flags[live, 1], self._flags[live, 3] = 1, 1
        self._due = live.copy()
        if self._risen is not None:
            top = max([self._risen.highest, *self._risen.held])  # their labels are not kept, and none is above this
            self._rising = [(top, word) for word in self._index.ids[live].tolist()]

    def values(self) -> dict[str, Any]:
        """The small rest of its state, for JSON. All that is new must have been reported: names are not kept."""
        if self._risen is None:
            return {"steps": self.steps}
        risen = self._risen
        return {"steps": self.steps, "below": risen.below, "highest": risen.highest, "held": [*risen.held.elements()]}

    def set_values(self, values: Mapping[str, Any]) -> None:
        self.steps = values["steps"]
        if self._risen is not None:
            self._risen.below, self._risen.highest = values["below"], values["highest"]
            self._risen.hold(values["held"])
