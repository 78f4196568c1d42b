"""A small world of queries that know the truth, and a tracker that looks at them from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.track.link_records import record_of, restore, snapshot, stimulus_of
from headrace.track.links import (
    AskEnds,
    Committed,
    Ends,
    LinkAgent,
    LinkName,
    Looked,
    Read,
    Seen,
    Stimulus,
    Told,
)


def names(count: int) -> list[LinkName]:
    return [LinkName(f"t{link}", f"/c{link}") for link in range(count)]


# ------------------------------------------------------------------- the world


@dataclass
class Query:
    """Reads a topic, as Spark does: the ends of a batch are fixed before it runs, and it runs until it is committed."""

    committed: list[int]
    plan: list[int] | None = None
    is_written: bool = False


class World:
    """Topics, as lists of (substream, is it the marker), and queries between them. It alone knows what is done."""

    def __init__(self, choose: Random, links: int):
        self.choose = choose
        self.topics: list[list[list[tuple[str, bool]]]] = [
            [[] for _ in range(choose.randint(1, 3))] for _ in range(links)
        ]
        self.queries = [Query([0] * len(topic)) for topic in self.topics]
        self.closed: set[str] = set()
        self.begun = 0
        self._running: list[str] = []

    def produce(self) -> None:
        """A record on the first topic. Those of a substream share a partition, and its marker is the last."""
        if not self._running or self.choose.random() < 0.3:
            self._running.append(f"s{self.begun}")
            self.begun += 1
        name, ends = self.choose.choice(self._running), self.choose.random() < 0.4
        partitions = self.topics[0]
        partitions[int(name[1:]) % len(partitions)].append((name, ends))
        if ends:
            self._running.remove(name)
            self.closed.add(name)

    def plan(self, at: int) -> None:
        query, topic = self.queries[at], self.topics[at]
        if query.plan is None:
            ends = zip(query.committed, topic, strict=True)
            query.plan, query.is_written = [self.choose.randint(start, len(log)) for start, log in ends], False

    def run(self, at: int) -> None:
        """An attempt at a batch, which may fail after some of what it writes: the next one writes all of it again."""
        query, made = self.queries[at], list[str]()
        if query.plan is None:
            return
        for start, end, log in zip(query.committed, query.plan, self.topics[at], strict=True):
            for offset in range(start, end):
                made += [log[offset][0]] * self._children(at, offset)
        self.choose.shuffle(made)
        query.is_written = self.choose.random() < 0.6
        self.write(at + 1, made if query.is_written else made[: self.choose.randint(0, len(made))])

    def write(self, to: int, made: list[str]) -> None:
        for name in made if to < len(self.topics) else ():
            self.choose.choice(self.topics[to]).append((name, False))

    @staticmethod
    def _children(at: int, offset: int) -> int:
        return (0, 1, 1, 3)[(at * 7 + offset) % 4]

    def commit(self, at: int) -> None:
        query = self.queries[at]
        if query.plan is not None and query.is_written:
            query.committed, query.plan = query.plan, None

    def crash(self, at: int) -> None:
        self.queries[at].is_written = False

    def is_done(self, name: str, below: list[dict[int, int]] | None = None) -> bool:
        """The truth; of the records `below` positions, or all."""
        for link, (topic, query) in enumerate(zip(self.topics, self.queries, strict=True)):
            for partition, log in enumerate(topic):
                end = len(log) if below is None else below[link][partition]
                if any(log[at][0] == name for at in range(query.committed[partition], end)):
                    return False
        return name in self.closed

    def drain(self) -> None:
        for at, query in enumerate(self.queries):
            while any(len(log) > start for log, start in zip(self.topics[at], query.committed, strict=True)):
                self.plan(at)
                self.run(at)
                self.commit(at)


@dataclass
class Tracker:
    """An agent, what it keeps, and those who ask it."""

    world: World
    zombies: bool = False
    agent: LinkAgent = field(init=False)
    told: list[str] = field(default_factory=list)
    _ask: tuple[int, ...] | None = None
    _answer: Ends | None = None

    def __post_init__(self) -> None:
        topics = self.world.topics
        self.agent = LinkAgent(names(len(topics)), [dict.fromkeys(range(len(topic)), 0) for topic in topics], 10_000)
        self.kept, self.news = json.dumps(snapshot(self.agent)), list[str]()

    def on(self, stimulus: Stimulus) -> None:
        for effect in self.agent.on(stimulus):
            if isinstance(effect, AskEnds):
                self._ask = effect.links
            else:
                below = self.agent.read if self.zombies else None
                assert all(self.world.is_done(name, below) for name in effect.substreams)
        self.news.append(json.dumps(record_of(stimulus)))

    def read(self, everything: bool = False) -> None:
        """A batch of the ledger. It may be told twice."""
        choose, positions, rows = self.world.choose, dict[int, dict[int, int]](), dict[tuple[int, int, str], Seen]()
        for link, topic in enumerate(self.world.topics):
            for partition, log in enumerate(topic):
                start = self.agent.read[link][partition]
                end = len(log) if everything else choose.randint(start, len(log))
                positions.setdefault(link, {})[partition] = end
                for offset in range(start, end):
                    name, ends = log[offset]
                    was = rows.get((link, partition, name))
                    marker = offset if ends else was.marker if was else -1
                    rows[link, partition, name] = Seen(link, partition, name, offset, marker)
        found = list(rows.values())
        choose.shuffle(found)
        self.on(Read(positions, found))
        if choose.random() < 0.2:
            before = self._state()
            self.on(Read(positions, found))
            assert self._state() == before

    def look(self) -> None:
        """Each call is a step: see commits, ask for ends, tell them. All others may do something between them."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self.on(answer)
        elif self._ask is not None:
            ask, self._ask = self._ask, None
            topics = self.world.topics
            self._answer = Ends({link: {p: len(log) for p, log in enumerate(topics[link])} for link in ask})
        else:
            found = [Committed("q", dict(enumerate(query.committed))) for query in self.world.queries]
            new = {link: it for link, it in enumerate(found) if it != self.agent.committed[link]}
            if new or self.agent.wants_ends:
                self.on(Looked(new))

    def tell(self) -> None:
        found = list(self.agent.untold)
        self.told += found
        self.on(Told(len(found)))

    def keep(self) -> None:
        self.kept, self.news = json.dumps(snapshot(self.agent)), []

    def restart(self) -> None:
        before, topics = self._state(), self.world.topics
        self.agent = restore(json.loads(self.kept), names(len(topics)), "here", 10_000)
        for record in self.news:
            self.agent.on(stimulus_of(json.loads(record)))
        self._ask = self._answer = None
        assert self._state() == before

    def _state(self) -> Any:
        state: dict[str, Any] = json.loads(json.dumps(snapshot(self.agent)))
        for key in ("wanted", "asked"):  # have no order
            state[key] = [sorted(each) for each in state[key]]
        return state


def a_step(world: World, tracker: Tracker) -> None:
    choose = world.choose
    at = choose.randrange(len(world.queries))
    steps: list[Callable[[], None]] = [
        world.produce,
        lambda: world.plan(at),
        lambda: world.run(at),
        lambda: world.commit(at),
        lambda: world.crash(at),
        tracker.read,
        tracker.look,
        tracker.tell,
        tracker.keep,
        tracker.restart,
    ]
    choose.choices(steps, [4, 3, 3, 3, 1, 3, 6, 1, 0.3, 0.3])[0]()
    if tracker.zombies and choose.random() < 0.1:
        # A task of a batch that is committed writes its copies late.
        committed = zip(world.topics[at], world.queries[at].committed, strict=True)
        read = [log[choose.randrange(end)][0] for log, end in committed if end]
        world.write(at + 1, read)


def until_nothing_happens(world: World, tracker: Tracker) -> None:
    for _ in range(4 * len(world.topics) + 4):
        world.drain()
        tracker.read(everything=True)
        for _ in range(3):
            tracker.look()
    tracker.tell()
