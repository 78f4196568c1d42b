"""The state of groups as words: what a group is when it is in no aggregator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """A run of words for each of some groups; a group without words has no state, as if it had never been seen."""

    lengths: Ints
    """How many words each group has."""
    words: Ints
    """Those of all groups, one after the other."""

    @classmethod
    def of_rows(cls, rows: Ints, lengths: Ints) -> Ragged:
        """The first words of every row: as many as `lengths` says."""
        return cls(lengths, rows[np.arange(rows.shape[1]) < lengths[:, None]])

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.lengths)

    @property
    def starts(self) -> Ints:
        """Where the words of each group begin."""
        return np.cumsum(self.lengths) - self.lengths

    def to_rows(self, width: int) -> Ints:
        """The inverse of `of_rows`: a row for every group, with zeros behind its words."""
        rows = np.zeros((len(self), width), np.int64)
        rows[np.arange(width) < self.lengths[:, None]] = self.words
        return rows

    def heads(self) -> Ints:
        """The first word of every group; 0 where there is none."""
        found = np.zeros(len(self), np.int64)
        some = self.lengths > 0
        found[some] = self.words[self.starts[some]]
        return found

    def cut(self, lengths: Ints) -> tuple[Ragged, Ragged]:
        """The first words of every group, as many as `lengths` says, and the rest."""
        within = np.arange(len(self.words)) - np.repeat(self.starts, self.lengths)
        first = within < np.repeat(lengths, self.lengths)
        return Ragged(lengths, self.words[first]), Ragged(self.lengths - lengths, self.words[~first])

    def spread(self, places: npt.NDArray[np.bool_]) -> Ragged:
        """The groups at the places that are true, groups without words at the others."""
        lengths = np.zeros(len(places), np.int64)
        lengths[places] = self.lengths
        return Ragged(lengths, self.words)

    def pick(self, groups: Ints) -> Ragged:
        """Some of the groups, by their places."""
        lengths = self.lengths[groups]
        return Ragged(lengths, self.words[_spread(self.starts[groups], lengths)])


def reach(slots: Ints) -> int:
    """How many slots there must be for these."""
    return int(slots.max(initial=-1)) + 1


def beside(parts: Sequence[Ragged]) -> Ragged:
    """The words of each group from every part, one part after the other. Only `cut` can tell them apart again."""
    lengths: Ints = np.stack([part.lengths for part in parts]).sum(axis=0)
    words = np.empty(int(lengths.sum()), np.int64)
    at = np.cumsum(lengths) - lengths
    for part in parts:
        words[_spread(at, part.lengths)] = part.words
        at = at + part.lengths
    return Ragged(lengths, words)


def joined(parts: Sequence[Ragged]) -> Ragged:
    """One run a group for the runs of all parts, which `split` takes apart. A group that has none has none here."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.stack([part.lengths for part in parts], axis=1)
    header = Ragged.of_rows(sizes, np.where(sizes.any(axis=1), len(parts), 0))
    return beside([header, *parts])


def split(groups: Ragged, count: int) -> list[Ragged]:
    """The inverse of `joined`, for `count` parts."""
    if count == 1:
        return [groups]
    some = groups.lengths > 0
    sizes = np.zeros((count, len(groups)), np.int64)
    sizes[:, some] = groups.words[groups.starts[some] + np.arange(count)[:, None]]
    parts, at = [], groups.starts + count
    for lengths in sizes:
        parts.append(Ragged(lengths, groups.words[_spread(at, lengths)]))
        at = at + lengths
    return parts


def _spread(starts: Ints, lengths: Ints) -> Ints:
    """start, start + 1, … for every run."""
    before = np.cumsum(lengths) - lengths
    found: Ints = np.repeat(starts - before, lengths)
    found += np.arange(len(found))
    return found
