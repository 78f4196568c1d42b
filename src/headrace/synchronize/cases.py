"""Cases that a program's rules are tried on: how a state is reached, and what is done then; and smaller ones."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final, TypeAlias

from headrace.synchronize.guarded import Breach, Calls, Rows, Unfit
from headrace.synchronize.samples import Fork, Place, Sample

MOST_FORKS: Final = 2
LARGEST: Final = 5
"""How many events a run has at most, in the last rounds; whole runs have twice that, and some batches more."""
LONGEST_BATCH: Final = 40


@dataclass(frozen=True)
class Saw:
    """An event, by its number; `rank` is its place in the sequential run, where there is one."""

    event: int
    rank: int = 0


Path: TypeAlias = tuple[Saw | Fork, ...]
"""From the initial state on: an event, or a fork of which one side goes on."""


def numbers(events: tuple[Saw, ...]) -> list[int]:
    return [saw.event for saw in events]


@dataclass(frozen=True)
class Case(ABC):
    """One try of a rule, on a state that is reached by a path."""

    path: Path

    def judge(self, calls: Calls) -> None:
        """Raises Breach where the rule is broken, and Unfit where this is no case."""
        if not all(calls.sample.in_order(numbers(chain)) for chain in self.chains()):
            raise Unfit
        state, place = self.walk(calls)
        self.judge_at(calls, state, place)

    @abstractmethod
    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        """The rule itself, on the state that was reached."""

    def chains(self) -> list[tuple[Saw, ...]]:
        """Events that come one after the other; where there is a time, in its order."""
        return [tuple(step for step in self.path if isinstance(step, Saw))]

    def walk(self, calls: Calls) -> tuple[Any, Place]:
        sample, place = calls.sample, calls.sample.root
        state = calls.start()
        for step in self.path:
            if isinstance(step, Saw):
                fit(calls, place, (step,))
                state, _ = calls.update(state, step.event)
            elif sample.are_sides(place, step):
                left, right = calls.fork(step, state)
                state, place = (left, place.after(step)) if step.side == "left" else (right, place.after(step))
                calls.say("", f"on the {step.side} side:")
            else:
                raise Unfit
        return state, place


def fit(calls: Calls, place: Place, events: tuple[Saw, ...]) -> None:
    """Raises Unfit where one of the events cannot come to a state at this place."""
    if not all(calls.sample.tag_of[saw.event] in place.tags for saw in events):
        raise Unfit


# ----------------------------------------------------------------------- rules


@dataclass(frozen=True)
class PlainState(Case):
    """A state survives the way to another worker."""

    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        calls.expect_plain(state)


@dataclass(frozen=True)
class Independence(Case):
    """Two independent events, in either order."""

    first: Saw
    second: Saw

    def chains(self) -> list[tuple[Saw, ...]]:
        (before,) = super().chains()
        return [(*before, self.first), (*before, self.second)]

    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        fit(calls, place, (self.first, self.second))
        tags = [calls.sample.tag_of[saw.event] for saw in (self.first, self.second)]
        if not calls.sample.independent(*tags):
            raise Unfit
        first, second = (calls.sample.tags_text([tag]) for tag in tags)
        other_tag = "itself" if first == second else second
        calls.say("", f"{first} is independent of {other_tag}; in one order:")
        one, one_rows = calls.updated(state, numbers((self.first, self.second)))
        calls.say("", "and in the other:")
        other, other_rows = state, Rows()
        for saw in (self.second, self.first):
            other, rows = calls.update(other, saw.event, counts=False)
            other_rows += rows
        calls.expect("independence", ("one order", "other order"), (one, other), (one_rows, other_rows))


@dataclass(frozen=True)
class ForkJoin(Case):
    """What was forked is joined at once."""

    fork: Fork

    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        if not calls.sample.are_sides(place, self.fork, may_be_empty=True):
            raise Unfit
        joined = calls.join(self.fork, *calls.fork(self.fork, state))
        calls.expect("fork-join", ("forked", "joined"), (state, joined), ((), ()))


@dataclass(frozen=True)
class JoinUpdate(Case):
    """An event on its side of a fork, or after the join."""

    fork: Fork
    left: tuple[Saw, ...]
    right: tuple[Saw, ...]
    event: Saw

    def chains(self) -> list[tuple[Saw, ...]]:
        (before,) = super().chains()
        last = {self.fork.side: (self.event,)}
        return [(*before, *self.left, *last.get("left", ())), (*before, *self.right, *last.get("right", ()))]

    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        fork = self.fork
        if not calls.sample.are_sides(place, fork):
            raise Unfit
        is_left = fork.side == "left"
        fit(calls, place.on(fork, "left"), (*self.left, *([self.event] if is_left else [])))
        fit(calls, place.on(fork, "right"), (*self.right, *([] if is_left else [self.event])))
        left, right = calls.fork(fork, state)
        left, _ = calls.updated(left, numbers(self.left), "left")
        right, _ = calls.updated(right, numbers(self.right), "right")
        calls.say("", f"an event on the {fork.side} side, then the join:")
        changed, side_rows = calls.update(left if is_left else right, self.event.event, fork.side)
        one = calls.join(fork, *((changed, right) if is_left else (left, changed)))
        calls.say("", "the join first, then the event:")
        whole = calls.join(fork, left, right)
        other, rows = calls.update(whole, self.event.event, counts=False)
        calls.expect("join-update", ("on its side", "after join"), (one, other), (side_rows, rows))


@dataclass(frozen=True)
class Batches(Case):
    """A run of events in pieces of update_batch, or one by one."""

    pieces: tuple[tuple[Saw, ...], ...]

    def chains(self) -> list[tuple[Saw, ...]]:
        (before,) = super().chains()
        return [(*before, *(saw for piece in self.pieces for saw in piece))]

    def judge_at(self, calls: Calls, state: Any, place: Place) -> None:
        fit(calls, place, tuple(saw for piece in self.pieces for saw in piece))
        calls.say("", "one by one:")
        one, rows = calls.updated(state, [saw.event for piece in self.pieces for saw in piece])
        calls.say("", "with update_batch:")
        other, batch_rows = state, []
        for piece in self.pieces:
            if piece:
                other, given = calls.update_batch(other, numbers(piece))
                batch_rows += given
        written = calls.rows_as_written(rows)
        calls.expect("batches", ("update", "update_batch"), (one, other), (written, batch_rows))


# ---------------------------------------------------------------------- making


@dataclass(frozen=True)
class _Reached:
    path: Path
    place: Place
    last: int | None
    """The event that came last."""


def _draw_path(rng: Random, sample: Sample, size: int, most_forks: int = MOST_FORKS) -> _Reached:
    place, last = sample.draw_root(rng), None
    path: list[Saw | Fork] = []
    forks = rng.randint(0, most_forks)
    for number in range(forks + 1):
        events = sample.draw(rng, rng.randint(0, size), place.tags, last)
        path += map(Saw, events)
        last = events[-1] if events else last
        fork = sample.draw_fork(rng, place) if number < forks else None
        if fork is not None:
            path.append(fork)
            place = place.after(fork)
    return _Reached(tuple(path), place, last)


def draw_plain_state(rng: Random, sample: Sample, size: int) -> Case | None:
    return PlainState(_draw_path(rng, sample, size).path)


def draw_independence(rng: Random, sample: Sample, size: int) -> Case | None:
    reached = _draw_path(rng, sample, size, MOST_FORKS if size > 2 else 0)
    there = sorted(reached.place.tags & sample.has_events)
    pairs = [(a, b) for a in there for b in there if sample.independent(a, b)]
    if not pairs:
        return None
    drawn = [sample.draw(rng, 1, frozenset([tag]), reached.last) for tag in rng.choice(pairs)]
    return Independence(reached.path, Saw(drawn[0][0]), Saw(drawn[1][0])) if all(drawn) else None


def draw_fork_join(rng: Random, sample: Sample, size: int) -> Case | None:
    reached = _draw_path(rng, sample, size)
    fork = sample.draw_fork(rng, reached.place, may_be_empty=True)
    return None if fork is None else ForkJoin(reached.path, fork)


def draw_join_update(rng: Random, sample: Sample, size: int) -> Case | None:
    reached = _draw_path(rng, sample, size)
    fork = sample.draw_fork(rng, reached.place)
    if fork is None:
        return None
    sides = [(side, reached.place.on(fork, side).tags) for side in ("left", "right")]
    runs = {side: sample.draw(rng, rng.randint(0, size), tags, reached.last) for side, tags in sides}
    own = runs[fork.side]
    event = sample.draw(rng, 1, reached.place.after(fork).tags, own[-1] if own else reached.last)
    if not event:
        return None
    return JoinUpdate(reached.path, fork, tuple(map(Saw, runs["left"])), tuple(map(Saw, runs["right"])), Saw(event[0]))


def draw_batches(rng: Random, sample: Sample, size: int) -> Case | None:
    reached = _draw_path(rng, sample, size, 1)
    # A batch on Spark has thousands of events: what is wrong in long ones alone is looked for at the end.
    longest = 2 * size if size < LARGEST else LONGEST_BATCH
    run = sample.draw(rng, rng.randint(1, longest), reached.place.tags, reached.last)
    edges = [0, *sorted(rng.randint(0, len(run)) for _ in range(rng.randint(0, 2))), len(run)]
    pieces = [tuple(map(Saw, run[a:b])) for a, b in pairwise(edges)]
    return Batches(reached.path, tuple(pieces)) if run else None


# ------------------------------------------------------------------- shrinking


def smaller(value: Any, sample: Sample) -> Iterator[Any]:
    """Values with one thing less in them, or with one simpler event."""
    if isinstance(value, Saw):
        simplest = sample.simplest(value.event)
        if simplest != value.event:
            yield dataclasses.replace(value, event=simplest)
    elif isinstance(value, tuple):
        for at, each in enumerate(value):
            yield value[:at] + value[at + 1 :]
            if hasattr(each, "inlined"):
                yield value[:at] + each.inlined() + value[at + 1 :]
        for at, each in enumerate(value):
            for less in smaller(each, sample):
                yield (*value[:at], less, *value[at + 1 :])
    elif isinstance(value, frozenset):
        # Sides that nothing comes to are not what a person has in mind.
        for each in sorted(value) if len(value) > 1 else ():
            yield value - {each}
    elif isinstance(value, Case | Fork) or hasattr(value, "inlined"):
        for field in dataclasses.fields(value):
            for less in smaller(getattr(value, field.name), sample):
                yield dataclasses.replace(value, **{field.name: less})


def judged(case: Case, calls: Calls) -> Breach | None:
    """How a case breaks a rule, with its story; None where it does not, or is no case."""
    try:
        case.judge(calls)
    except Breach as breach:
        breach.story = [*calls.story, *breach.lines]
        breach.events = calls.events
        return breach
    except Unfit:
        return None
    return None
