"""Whole runs: events through a random tree of forks and joins, against the same events one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from headrace.synchronize.cases import Case, Saw, fit
from headrace.synchronize.guarded import Calls, Rows, Unfit
from headrace.synchronize.samples import Fork, Place, Sample

_DEPTH: Final = 3
_ALONE: Final = 0.4
"""How likely an event comes while nothing is forked."""


@dataclass(frozen=True)
class Beside:
    """Two runs beside each other, between a fork and its join."""

    fork: Fork
    left: tuple[Any, ...]
    right: tuple[Any, ...]

    def inlined(self) -> Pieces:
        """Its events without the fork."""
        return one_after_the_other((self,))


Pieces: TypeAlias = tuple[Saw | Beside, ...]


def one_after_the_other(pieces: Pieces) -> tuple[Saw, ...]:
    return tuple(sorted(_events(pieces), key=lambda saw: saw.rank))


def _events(pieces: Pieces) -> Iterator[Saw]:
    for piece in pieces:
        if isinstance(piece, Saw):
            yield piece
        else:
            yield from _events((*piece.left, *piece.right))


@dataclass(frozen=True)
class WholeRun(Case):
    """A tree of runs. The sequential run has its events by their ranks."""

    pieces: Pieces

    def chains(self) -> list[tuple[Saw, ...]]:
        return [one_after_the_other(self.pieces)]

    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        calls.say("", "one after the other:")
        one, rows = state, Rows()
        for saw in one_after_the_other(self.pieces):
            one, given = calls.update(one, saw.event)
            rows += given
        calls.say("", "in parallel:")
        other, side_rows = self._run(calls, self.pieces, state, place, "update")
        # Raises where a row does not fit the columns of the outputs.
        calls.rows_as_written(rows)
        calls.expect("whole runs", ("sequential", "parallel"), (one, other), (rows, side_rows))

    def _run(self, calls: Calls, pieces: Pieces, state: Any, place: Place, label: str) -> tuple[Any, Rows]:
        rows: Rows = []
        for piece in pieces:
            if isinstance(piece, Saw):
                fit(calls, place, (piece,))
                state, given = calls.update(state, piece.event, label, counts=False)
                rows += given
                continue
            fork = piece.fork
            if not calls.sample.are_sides(place, fork):
                raise Unfit
            left, right = calls.fork(fork, state)
            left, left_rows = self._run(calls, piece.left, left, place.on(fork, "left"), "left")
            right, right_rows = self._run(calls, piece.right, right, place.on(fork, "right"), "right")
            state = calls.join(fork, left, right)
            rows += left_rows + right_rows
        return state, rows


def draw_whole_run(rng: Random, sample: Sample, size: int) -> Case | None:
    root = sample.draw_root(rng)
    run = [Saw(event, rank) for rank, event in enumerate(sample.draw(rng, 2 * size, root.tags))]
    return WholeRun((), _pieces(rng, sample, run, root, _DEPTH))


def _pieces(rng: Random, sample: Sample, run: list[Saw], place: Place, depth: int) -> Pieces:
    found: list[Saw | Beside] = []
    rest = list(run)
    while rest:
        fork = None if depth == 0 or rng.random() < _ALONE else sample.draw_fork(rng, place)
        if fork is None:
            found.append(rest.pop(0))
            continue
        sides: dict[str, list[Saw]] = {"left": [], "right": []}
        while rest:
            tag = sample.tag_of[rest[0].event]
            open_to = [side for side, tags in (("left", fork.left), ("right", fork.right)) if tag in tags]
            if not open_to:
                break
            sides[rng.choice(open_to)].append(rest.pop(0))
        left = _pieces(rng, sample, sides["left"], place.on(fork, "left"), depth - 1)
        right = _pieces(rng, sample, sides["right"], place.on(fork, "right"), depth - 1)
        found.append(Beside(fork, left, right))
    return tuple(found)
