"""A sample of events to try a program with: their tags, which of them are independent, random runs and sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.failures import RAISED, stage_failed
from headrace.synchronize.choosing import MOST_TAGS, chosen_tags, families
from headrace.synchronize.inputs import names_of_tag
from headrace.synchronize.program import Pair, Program, Tag, pairs_of
from headrace.synchronize.running import event_type
from headrace.synchronize.tags import tag_text

MOST_EVENTS: Final = 40
"""Of each tag. What is beyond is not tried: small runs show what large ones would."""
_TRIES: Final = 4
"""To find two sides that both have tags."""


@dataclass(frozen=True)
class Fork:
    """A fork with the tags of its sides, by their numbers; `side` is the one of which the rest of a case speaks."""

    pair: Pair
    left: frozenset[int]
    right: frozenset[int]
    side: str = "left"


@dataclass(frozen=True)
class Place:
    """What is known of a state before it is made: its type, and the tags of the events that may come to it."""

    kind: type
    tags: frozenset[int]

    def after(self, fork: Fork) -> Place:
        """On the side of which the case speaks."""
        return self.on(fork, fork.side)

    def on(self, fork: Fork, side: str) -> Place:
        kind, tags = (fork.pair.left, fork.left) if side == "left" else (fork.pair.right, fork.right)
        return Place(kind or self.kind, tags)


class Sample:
    """The events that are tried, in the order they came in. Tags and events are spoken of by their numbers."""

    def __init__(self, program: Program, table: pa.Table, tag: tuple[str, ...], rng: Random, time: str | None = None):
        """Raises ProgramError where the events do not fit. `time`: runs have their events in the order of it."""
        self.program, self.pairs = program, pairs_of(program)
        rows = table.num_rows
        table = table.filter(_column(program, table, tag[0]).is_valid())
        self.heartbeats = rows - table.num_rows
        """Rows without a tag, which no run gives to the program."""
        if not table.num_rows:
            raise ProgramError(program.name, f"there are no events to try it with: no row has a {tag[0]}")
        self.is_typed = any(pair.whole is not None for pair in self.pairs)
        self.all_tags, chosen, always = _chosen(program, table, tag, rng)
        self.tags = list(dict.fromkeys(self.all_tags[number] for number in chosen.values()))
        self.batch: pa.RecordBatch = table.take(pa.array(list(chosen), pa.int64())).combine_chunks().to_batches()[0]
        self.events = list(map(event_type(table.schema.names), zip(*self.batch.to_pydict().values(), strict=True)))
        numbers = {known: number for number, known in enumerate(self.tags)}
        self.tag_of = [numbers[self.all_tags[number]] for number in chosen.values()]
        # Tags of which there is no event may be in a predicate as well.
        self.tags += [declared for declared in program.tags or () if declared not in numbers][:MOST_TAGS]
        self._of_tag: dict[int, list[int]] = {}
        for event, number in enumerate(self.tag_of):
            self._of_tag.setdefault(number, []).append(event)
        self.has_events = frozenset(self._of_tag)
        self._always = frozenset(numbers[known] for known in always)
        self._times = None if time is None else _column(program, table, time).take(list(chosen)).to_pylist()
        self._near: dict[tuple[int, int], bool] = {}
        self.root = Place(type(program.init()), frozenset(range(len(self.tags))))

    # -------------------------------------------------------------------- look

    def independent(self, a: int, b: int) -> bool:
        if (a, b) not in self._near:
            self._near[a, b] = self._near[b, a] = self.program.dependent(self.tags[a], self.tags[b])
        return not self._near[a, b]

    def are_sides(self, place: Place, fork: Fork, may_be_empty: bool = False) -> bool:
        """May a state at this place be forked so? No plan has a worker that no event comes to."""
        within = fork.left <= place.tags and fork.right <= place.tags and fork.pair.whole in (None, place.kind)
        filled = may_be_empty or bool(fork.left and fork.right)
        return within and filled and all(self.independent(a, b) for a in fork.left for b in fork.right)

    def predicate(self, numbers: frozenset[int]) -> Any:
        known = frozenset(self.tags[number] for number in numbers)
        return lambda tag: tag in known

    def text_of(self, event: int) -> str:
        """An event as people write it."""
        row = self.events[event]
        return " ".join(f"{name}={value!r}" for name, value in zip(row._fields, row, strict=True))

    def tags_text(self, numbers: Iterable[int]) -> str:
        return ", ".join(tag_text(self.tags[number]) for number in sorted(numbers)) or "nothing"

    def simplest(self, event: int) -> int:
        """Of the events with the same tag, the one that is told in the fewest words."""
        return min(self._of_tag[self.tag_of[event]], key=lambda each: (len(self.text_of(each)), each))

    # ------------------------------------------------------------------ random

    def draw_root(self, rng: Random) -> Place:
        """Where a case begins: with all tags, if they are few; else with some that are drawn anew each time."""
        if len(self.has_events) <= MOST_TAGS:
            return self.root
        found = set(self._always)
        groups = families(self.tags[number] for number in sorted(self.has_events - found))
        rng.shuffle(groups)
        numbers = {self.tags[number]: number for number in self.has_events}
        for group in groups:
            room = MOST_TAGS - len(found)
            found.update(numbers[tag] for tag in rng.sample(group, min(room, len(group))))
        return Place(self.root.kind, frozenset(found) | (self.root.tags - self.has_events))

    def draw(self, rng: Random, count: int, tags: frozenset[int], after: int | None = None) -> list[int]:
        """A run of so many events with these tags, or fewer. `after`: the event that came last."""
        there = {tag: self._later(tag, after) for tag in sorted(tags & self.has_events)}
        open_to = [events for events in there.values() if events]
        if not open_to:
            return []
        found = [rng.choice(rng.choice(open_to)) for _ in range(count)]
        return found if self._times is None else sorted(set(found), key=self.key)

    def _later(self, tag: int, after: int | None) -> list[int]:
        own = self._of_tag[tag]
        if self._times is None or after is None:
            return own
        return [event for event in own if self.key(event) > self.key(after)]

    def key(self, event: int) -> Any:
        """Where there is a time, events come in this order."""
        return (0 if self._times is None else self._times[event]), event

    def in_order(self, events: Sequence[int]) -> bool:
        return self._times is None or all(self.key(a) < self.key(b) for a, b in pairwise(events))

    def draw_fork(self, rng: Random, place: Place, may_be_empty: bool = False) -> Fork | None:
        """Sides that are independent of each other; a tag may be on both, or on none."""
        fitting = [pair for pair in self.pairs if pair.whole in (None, place.kind)]
        for _ in range(_TRIES if fitting else 0):
            pair = rng.choice(fitting)
            left, right = self._draw_sides(rng, place, pair)
            if may_be_empty or (left and right):
                return Fork(pair, left, right, rng.choice(["left", "right"]))
        return None

    def _draw_sides(self, rng: Random, place: Place, pair: Pair) -> tuple[frozenset[int], frozenset[int]]:
        left_kind, right_kind = pair.left or place.kind, pair.right or place.kind
        left: set[int] = set()
        right: set[int] = set()
        order = sorted(place.tags)
        rng.shuffle(order)
        for number in order:
            may_left = self._handled(left_kind, number) and all(self.independent(number, other) for other in right)
            may_right = self._handled(right_kind, number) and all(self.independent(number, other) for other in left)
            choices = ["left"] * 3 * may_left + ["right"] * 3 * may_right + ["none"]
            if may_left and may_right and self.independent(number, number):
                choices += ["both"] * 3
            choice = rng.choice(choices)
            if choice in ("left", "both"):
                left.add(number)
            if choice in ("right", "both"):
                right.add(number)
        return frozenset(left), frozenset(right)

    def _handled(self, kind: type, number: int) -> bool:
        return bool(self.program.handles(kind, self.tags[number]))


# --------------------------------------------------------------------- reading


def read_events(program: Program, events: Any) -> pa.Table:
    """A table of what was given, or of `program.examples()`. Raises ProgramError."""
    if events is None:
        examples = getattr(program, "examples", None)
        if not callable(examples):
            raise ProgramError(
                program.name,
                "there are no events to try it with; give some (--events), or a method examples() of dicts",
            )
        try:
            events = examples()
        except RAISED as error:
            raise stage_failed(f"{program.name}.examples", error, "none") from error
    if isinstance(events, pa.RecordBatch):
        events = pa.Table.from_batches([events])
    if not isinstance(events, pa.Table):
        events = _table_of(program, events)
    if not events.num_rows:
        raise ProgramError(program.name, "there are no events to try it with: the sample is empty")
    return events


def tag_columns(program: Program, tag: str | Sequence[str] | None) -> tuple[str, ...]:
    found = getattr(program, "tag", None) if tag is None else tag
    if not found:
        raise ProgramError(
            program.name, 'say which column has the tag of an event: tag="kind" (--tag kind), or several'
        )
    return names_of_tag(program, found)


def _table_of(program: Program, rows: Any) -> pa.Table:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ProgramError(program.name, f"events must be a table or a list of dicts, not {type(rows).__name__}")
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise ProgramError(program.name, f"an event must be a dict of its columns, not {row!r}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ProgramError(program.name, f"its events do not make a table: {error}") from error


def _column(program: Program, table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise ProgramError(program.name, f"its events have no column {name}; they have {', '.join(table.column_names)}")
    return table.column(name)


def _plain_values(program: Program, table: pa.Table, name: str) -> list[Any]:
    column = _column(program, table, name)
    if pa.types.is_nested(column.type):
        raise ProgramError(
            program.name,
            f"its tag column {name} has values of type {column.type}; tags are plain values: give several columns, or "
            f"make a text of it before",
        )
    values: list[Any] = column.to_pylist()
    return values


def _chosen(
    program: Program, table: pa.Table, columns: tuple[str, ...], rng: Random
) -> tuple[list[Tag], dict[int, int], list[Tag]]:
    """All tags of the events; the rows that are tried, with the numbers of their tags among these; and the tags that
    each case may have."""
    tag_values = [_plain_values(program, table, name) for name in columns]
    found: list[Tag] = tag_values[0] if len(columns) == 1 else list(zip(*tag_values, strict=True))
    counts = Counter(found)
    if program.tags is not None:
        strange = [tag for tag in counts if tag not in program.tags]
        if strange:
            raise ProgramError(program.name, f"an event has the tag {tag_text(strange[0])}, which its tags do not list")
    tags = chosen_tags(program, counts, rng)
    places: dict[Tag, list[int]] = {tag: [] for tag in tags.kept}
    for number, tag in enumerate(found):
        if tag in places:
            places[tag].append(number)
    all_tags = list(counts)
    numbers = {tag: number for number, tag in enumerate(all_tags)}
    chosen = {
        row: numbers[tag]
        for tag, own in places.items()
        for row in (own if len(own) <= MOST_EVENTS else rng.sample(own, MOST_EVENTS))
    }
    return all_tags, dict(sorted(chosen.items())), tags.always
