"""Which substreams have left a row of streaming queries, told by positions in the topics between them.

A *link* is a topic and the query that reads it. A *ledger* reads the topics too, and tells the last offset of each
substream in each partition. Positions can be told any number of times: what a query writes again, when it runs a batch
again, moves the last offset and nothing else.

- A substream is complete on the first link when its end is promised, by a marker that is its last record there.
- A query has done it when it has committed positions behind all its last offsets on a link where it is complete.
- Then the ends of the next topic are asked for: all that the query made of it is below them. The substream is complete
  there when the ledger has read up to these ends. If there is nothing of it, no query behind has anything to do.
- When the last query has done it, it is done.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.errors import FlowError

Offsets = Mapping[int, int]
"""Of partitions. Positions and ends are the offset after the last record."""
REMEMBERED: Final = 100_000
"""How many done substreams are known by name."""
NAMED: Final = 1000
"""How many of those that are not as they should be are known by name."""


class Seen(NamedTuple):
    """A row of the ledger: the last offset of a substream in a partition, and that of its marker (-1: none)."""

    link: int
    partition: int
    substream: str
    last: int
    marker: int


@dataclass(frozen=True)
class LinkName:
    """What people call it."""

    topic: str
    checkpoint: str
    by: str = ""
    """What names substreams there."""


# --------------------------------------------------------------------- stimuli


@dataclass(frozen=True)
class Read:
    """The ledger has read links up to positions, and found rows. Rows of a batch that is read again change nothing."""

    positions: Mapping[int, Offsets]
    rows: Sequence[Seen]


KEEP_THEM: Final = (
    "what it reads again it makes again, and nothing tells that from what is new: keep checkpoints, or start a tracker "
    "anew, with another folder (at=)"
)


@dataclass(frozen=True)
class Committed:
    """How far a query is, which Spark knows by an id."""

    query: str
    positions: Offsets


@dataclass(frozen=True)
class Looked:
    """A look at the checkpoints has begun; these queries have committed something since the last one."""

    committed: Mapping[int, Committed]


@dataclass(frozen=True)
class Ends:
    """Of the topics that `AskEnds` named, asked for after it."""

    ends: Mapping[int, Offsets]


@dataclass(frozen=True)
class Told:
    """So many of the done substreams that are `untold` were told. The first time, even of none, says: somebody asks."""

    count: int


Stimulus = Read | Looked | Ends | Told

# --------------------------------------------------------------------- effects


@dataclass(frozen=True)
class AskEnds:
    """Ask for the ends of the topics of these links, and say `Ends`."""

    links: tuple[int, ...]


@dataclass(frozen=True)
class Done:
    """These substreams have left the last query, and are `untold`."""

    substreams: tuple[str, ...]


Effect = AskEnds | Done

# ----------------------------------------------------------------------- state


class Phase(IntEnum):
    """What a substream waits for, on the link where it is."""

    OPEN = 0
    """That its end is promised."""
    WAITS = 1
    """That the query which reads the link has done it."""
    ASKS = 2
    """That the end of the topic is asked for."""
    READS = 3
    """That the ledger has read up to there."""


@dataclass(slots=True)
class Substream:
    """One that is not done. Where it asks or reads on the first link, it was seen on later ones only, see `_see`."""

    phase: Phase = Phase.OPEN
    link: int = 0
    is_promised: bool = False
    group: int = -1
    last: dict[int, dict[int, int]] = field(default_factory=dict)
    """By link and partition."""


@dataclass(frozen=True)
class Group:
    """Substreams that wait for the ledger to read a link up to the same ends."""

    number: int
    ends: Offsets
    substreams: list[str]


class Notice:
    """Substreams that are not as they should be: how many, and why, of the newest `NAMED`."""

    def __init__(self, count: int = 0, why: Mapping[str, str] | None = None):
        self.count, self.why = count, OrderedDict(why or {})

    def add(self, substream: str, why: str) -> None:
        self.count += substream not in self.why
        self.why[substream] = why
        self.why.move_to_end(substream)
        if len(self.why) > NAMED:
            self.why.popitem(last=False)


class LinkAgent:
    """Stimuli in, effects out. It knows no Kafka, no Spark and no files; the same stimuli give the same state."""

    def __init__(self, links: Sequence[LinkName], starts: Sequence[Offsets], remembered: int = REMEMBERED):
        count = len(links)
        self.links, self.remembered = tuple(links), remembered
        self.read = [dict(start) for start in starts]
        """How far the ledger is."""
        self.committed: list[Committed | None] = [None] * count
        self.open: dict[str, Substream] = {}
        """In the order in which they were first seen."""
        self.done: OrderedDict[str, int] = OrderedDict()
        """The newest ones, with their numbers."""
        self.done_count, self.untold, self.is_asked = 0, deque[str](), False
        self.strangers, self.late, self.after_end = Notice(), Notice(), Notice()
        self.wanted: list[list[str]] = [[] for _ in range(count)]
        self.asked: list[list[str]] = [[] for _ in range(count)]
        self.groups: list[deque[Group]] = [deque() for _ in range(count)]
        self.group_count = 0
        self._heaps: list[dict[int, list[tuple[int, str]]]] = [{} for _ in range(count)]
        self._found: list[str] = []

    @property
    def wants_ends(self) -> bool:
        """Is there something to look for, even if no query has committed anything?"""
        return any(self.wanted) or any(self.asked)

    def on(self, stimulus: Stimulus) -> list[Effect]:
        """Raises FlowError, and changes nothing, where a query has gone back."""
        effects: list[Effect] = []
        if isinstance(stimulus, Read):
            self._on_read(stimulus)
        elif isinstance(stimulus, Looked):
            self._on_looked(stimulus)
            links = tuple(link for link, asked in enumerate(self.asked) if asked)
            effects += [AskEnds(links)] if links else []
        elif isinstance(stimulus, Ends):
            self._on_ends(stimulus)
        else:
            self._on_told(stimulus)
        if self._found:
            effects.append(Done(self._number()))
        return effects

    # ------------------------------------------------------------------ ledger

    def _on_read(self, read: Read) -> None:
        moved: dict[str, int] = {}
        for row in sorted(read.rows, key=_link_of):
            if row.last >= self.read[row.link].get(row.partition, 0):
                self._see(row, moved)
        # Not before all rows are seen: a substream may have several.
        for name, link in moved.items():
            self.wait(name, self.open[name], link)
        for link, positions in read.positions.items():
            mine = self.read[link]
            for partition, position in positions.items():
                mine[partition] = max(position, mine.get(partition, 0))
        for link in range(len(self.links)):
            self._complete(link)

    def _see(self, row: Seen, moved: dict[str, int]) -> None:
        """Puts those that have to wait for a query, from now on or again, into `moved`."""
        link, partition, name, last, _ = row
        if name in self.done:
            self.late.add(name, f"{self._place(row)}, came after it was done")
            return
        it = self.open.get(name)
        if it is None:
            it = self.open[name] = Substream()
            if link:
                # Its parents on the first link are below the end that is asked for from now on, if there are any.
                self._ask(name, it, 0)
        offsets = it.last.setdefault(link, {})
        offsets[partition] = max(last, offsets.get(partition, -1))
        if link == 0:
            self._see_first(it, row, moved)
        elif link < it.link:
            # A copy by a task that nobody waited for: wait for this one too.
            self.late.add(name, f"{self._place(row)}, came after query {link + 1} had done it")
            moved.setdefault(name, link)

    def _see_first(self, it: Substream, row: Seen, moved: dict[str, int]) -> None:
        """A row of the first link."""
        if it.is_promised or row.last > row.marker >= 0:
            self.after_end.add(row.substream, f"{self._place(row)}, comes after its marker")
        elif len(it.last[0]) > 1:
            self.after_end.add(row.substream, f"{self._place(row)}, is in another partition than those before")
        it.is_promised |= row.marker >= 0
        if not it.is_promised:
            it.phase = Phase.OPEN
        elif it.link > 0 or it.phase is not Phase.WAITS:
            moved.setdefault(row.substream, 0)

    def _place(self, row: Seen) -> str:
        return f"topic {self.links[row.link].topic}, partition {row.partition}, offset {row.last}"

    def _complete(self, link: int) -> None:
        """Let those go on for whom the ledger has read far enough."""
        groups, read = self.groups[link], self.read[link]
        while groups and all(read.get(partition, 0) >= end for partition, end in groups[0].ends.items()):
            group = groups.popleft()
            for name in group.substreams:
                it = self.open.get(name)
                if it is not None and it.phase is Phase.READS and it.link == link and it.group == group.number:
                    self._is_read(name, it)

    def _is_read(self, name: str, it: Substream) -> None:
        later = [link for link in it.last if link > it.link]
        if it.link == 0:
            where = " and ".join(self.links[link].topic for link in sorted(it.last))
            self.strangers.add(name, f"seen on topic {where}, and never on {self.links[0].topic}")
            del self.open[name]
        elif it.last.get(it.link):
            self.wait(name, it, it.link)
        elif later:
            self._ask(name, it, min(later))
        else:
            self._finish(name)

    # ----------------------------------------------------------------- queries

    def wait(self, name: str, it: Substream, link: int) -> None:
        """Complete on a link: until the query that reads it has done it."""
        it.phase, it.link = Phase.WAITS, link
        for partition, last in self.ahead(it):
            # One partition at a time. Entries that are no longer true are looked at again when it is their turn.
            heapq.heappush(self._heaps[link].setdefault(partition, []), (last, name))
            return
        if link + 1 == len(self.links):
            self._finish(name)
        else:
            self._ask(name, it, link + 1)

    def ahead(self, it: Substream) -> Iterator[tuple[int, int]]:
        """Partitions and last offsets that the query of its link has not committed."""
        known = self.committed[it.link]
        for partition, last in it.last.get(it.link, {}).items():
            if known is None or known.positions.get(partition, 0) <= last:
                yield partition, last

    def _ask(self, name: str, it: Substream, link: int) -> None:
        it.phase, it.link = Phase.ASKS, link
        self.wanted[link].append(name)

    def _finish(self, name: str) -> None:
        del self.open[name]
        self._found.append(name)

    def _on_looked(self, looked: Looked) -> None:
        for link, found in looked.committed.items():
            self._check(link, found)
        for link, found in looked.committed.items():
            self.committed[link] = found
            for partition, heap in list(self._heaps[link].items()):
                position = found.positions.get(partition, 0)
                while heap and heap[0][0] < position:
                    _, name = heapq.heappop(heap)
                    it = self.open.get(name)
                    if it is not None and it.phase is Phase.WAITS and it.link == link:
                        self.wait(name, it, link)
        for link, wanted in enumerate(self.wanted):
            self.asked[link] += wanted
            wanted.clear()

    def _check(self, link: int, found: Committed) -> None:
        known, name = self.committed[link], self.links[link]
        if known is None:
            return
        query = f"query {link + 1} (checkpoint {name.checkpoint})"
        if known.query != found.query:
            raise FlowError(f"{query} is another one than before: its checkpoint was deleted or replaced; {KEEP_THEM}")
        for partition, was in sorted(known.positions.items()):
            now = found.positions.get(partition, 0)
            if now < was:
                place = f"topic {name.topic}, partition {partition}"
                raise FlowError(f"{query} has gone back from offset {was} to {now} on {place}; {KEEP_THEM}")

    def _on_ends(self, ends: Ends) -> None:
        for link, offsets in ends.ends.items():
            names, number = [], self.group_count
            for name in self.asked[link]:
                it = self.open.get(name)
                if it is not None and it.phase is Phase.ASKS and it.link == link:
                    it.phase, it.group = Phase.READS, number
                    names.append(name)
            self.asked[link].clear()
            if names:
                self.group_count += 1
                self.groups[link].append(Group(number, dict(offsets), names))
                self._complete(link)

    # ----------------------------------------------------------------- telling

    def _number(self) -> tuple[str, ...]:
        # A restored agent may find those of one stimulus in another order, and must give them the same numbers.
        found = tuple(sorted(self._found))
        self._found.clear()
        self.untold.extend(found)
        for name in found:
            self.done[name] = self.done_count
            self.done_count += 1
        self._forget()
        return found

    def _on_told(self, told: Told) -> None:
        self.is_asked = True
        for _ in range(told.count):
            self.untold.popleft()
        self._forget()

    def _forget(self) -> None:
        """The oldest done ones; not before they are told, if anybody asks."""
        first_untold = self.done_count - len(self.untold)
        while len(self.done) > self.remembered:
            name = next(iter(self.done))
            if self.done[name] >= first_untold:
                if self.is_asked:
                    return
                self.untold.popleft()
                first_untold += 1
            del self.done[name]


def _link_of(row: Seen) -> int:
    return row.link
