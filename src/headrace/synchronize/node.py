"""A worker of the tree as a state machine: events, requests and states go in; messages and outputs come out.

Down the tree goes one stream of requests, in the order of their keys, with how far it is complete; and states. Up go
states. A worker puts its own events and the requests from above into one order, and passes that on: so all below see
one order of requests, and no two of them wait for each other.

A leaf takes its events up to the next request that they depend on; when all events that a request depends on have been
taken, its state goes up, and it waits for another. An inner worker waits for the states of its children, joins them,
and updates, if the event is its own, or sends the state up; then it forks, and sends down.

At the end of a stretch (of a micro-batch), when all has been taken, the root *closes* the tree: states go up, and are
joined once more. A join changes nothing, so that may be done at any time.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from headrace.errors import ProgramError
from headrace.model.failures import shown
from headrace.synchronize.mailbox import FIRST, LAST, ByDependence, Events, Key, merged
from headrace.synchronize.plan import Member, Plan
from headrace.synchronize.running import Running

REQUEST: Final = "request"
FRONTIER: Final = "frontier"
DOWN: Final = "down"
UP: Final = "up"
CLOSE: Final = "close"


@dataclass(frozen=True)
class Message:
    """From a worker to its parent, or to a child."""

    to: int
    kind: str
    key: Key = FIRST
    """Of a request; or up to where all requests have been sent."""
    tag: int = -1
    """Of the event that a request is for."""
    sender: int = -1
    state: Any = None


@dataclass
class Item:
    """What an inner worker does next: an event of its own, or a request from above."""

    key: Key
    events: Events | None
    tag: int


class TreeNode:
    """One worker. `work` does all that can be done; what is to be sent is in `out` then."""

    def __init__(
        self, plan: Plan, member: Member, running: Running, lanes: ByDependence, tags: list[frozenset[int]],
        is_total: bool = False,
    ):  # fmt: skip
        """`tags`: the own tags of each lane.

        `is_total`: take everything in the order of keys. Then what it sends is a function of what comes on each of its
        lines, whatever comes first: so one that starts again sends the same again.
        """
        self.member, self.lanes = member, lanes
        self._plan, self._running, self._is_total = plan, running, is_total
        everything = frozenset(range(len(plan.entries)))
        self._near = [everything if is_total else _near(plan, own) for own in tags]
        """For each lane, the tags that its events depend on."""
        above = plan.above(member)
        self._waits = [bool(near & above) for near in self._near]
        """Do the events of a lane wait for what comes from above?"""
        self.marks: list[Key] = []
        """How far its lanes and those above were said to be complete: what those below are to hear."""
        self.requests: deque[tuple[Key, int]] = deque()
        self.above: Key = FIRST if above else LAST
        """All requests below have come."""
        self.told: Key = FIRST
        self.items: deque[Item] = deque()
        self.answers: dict[int, Any] = {}
        """States of children that came up."""
        self.is_up = False
        """Is its state with its parent?"""
        self.has_state = False
        self.state: Any = None
        self.is_closing = False
        self.is_closed = False
        self._told_to_close = False
        self._answered: tuple[Key, list[int]] = (FIRST, [])
        """The key of the last request that was answered, and the tags of all with that key."""
        self.out: list[Message] = []
        if member.children is not None:
            self._sides = [plan.space.covers(plan.subtrees[child]) for child in member.children]

    # ------------------------------------------------------------------- input

    def start(self, state: Any) -> None:
        """With a state: the root's at the beginning, or one from above."""
        self._give(state)

    def on(self, message: Message) -> None:
        if message.kind == REQUEST:
            self.requests.append((message.key, message.tag))
            self.above = max(self.above, message.key)
        elif message.kind == FRONTIER:
            self.above = max(self.above, message.key)
            self.mark(message.key)
        elif message.kind == DOWN:
            self.is_up = False
            self._give(message.state)
        elif message.kind == UP:
            self.answers[message.sender] = message.state
        elif message.kind == CLOSE:
            self.is_closing = True
        else:
            raise ValueError(message.kind)

    def mark(self, key: Key) -> None:
        if self.member.children is not None and key > self.told:
            heapq.heappush(self.marks, key)

    def _give(self, state: Any) -> None:
        """A leaf keeps it, others fork it and send it down."""
        if self.member.children is None:
            self.state, self.has_state = state, True
            return
        pair = self.member.pair
        assert pair is not None
        for child, part in zip(self.member.children, self._running.fork(pair.fork, state, *self._sides), strict=True):
            self.out.append(Message(child, DOWN, state=part))

    # -------------------------------------------------------------------- work

    def work(self) -> None:
        if self.member.children is None:
            self._work_leaf()
        else:
            self._work_inner()
        if self.is_closing and not self.is_closed and (self.is_done or self._told_to_close):
            self._close()

    def _work_leaf(self) -> None:
        while self.has_state:
            limits = self.lanes.limits([self._outer(lane) for lane in range(len(self._near))])
            ready = self.lanes.release(limits)
            # One call for all columns; to put them together costs more than a second loop over rows.
            for part in [merged(ready, is_ordered=False)] if ready and self._running.is_columnar else ready:
                self._check_answered(part)
                self.state = self._running.run(self.state, part.batch)
            if self.requests and self._may_answer(*self.requests[0]):
                self._note_answered(*self.requests.popleft())
                self._send_up(self.state)
                self.state, self.has_state = None, False
            elif not ready:
                return

    def _outer(self, lane: int) -> Key:
        """Up to where what comes from above lets a lane go."""
        limit = self.above if self._waits[lane] else LAST
        for key, tag in self.requests:
            if tag in self._near[lane]:
                return min(limit, key)
        return limit

    def _may_answer(self, key: Key, tag: int) -> bool:
        """Have all events left that a request depends on?"""
        return all(tag not in near or self.lanes.next_of(lane) >= key for lane, near in enumerate(self._near))

    def _send_up(self, state: Any) -> None:
        assert self.member.parent is not None
        self.is_up = True
        self.out.append(Message(self.member.parent, UP, sender=self.member.number, state=state))

    def _work_inner(self) -> None:
        self._order()
        while self.items and not self.is_up and len(self.answers) == 2:
            item = self.items.popleft()
            state = self._joined()
            if item.events is None:
                self._send_up(state)
                return
            state = self._running.run_rows(state, item.events.batch)
            self._give(state)

    def _joined(self) -> Any:
        pair, children = self.member.pair, self.member.children
        assert pair is not None and children is not None  # noqa: PT018
        left, right = (self.answers.pop(child) for child in children)
        return self._running.join(pair.join, left, right)

    def _order(self) -> None:
        """Own events and requests from above, up to where both are complete, in one order; and down with it."""
        limit = min(self.lanes.frontier, self.above)
        if limit <= self.told and not (self.marks and self.marks[0] <= limit):
            return
        found: list[Item] = []
        while self.requests and self.requests[0][0] < limit:
            key, tag = self.requests.popleft()
            found.append(Item(key, None, tag))
        ready = self.lanes.release([limit] * len(self._near))
        for part in ready:
            found += [Item(part.key(row), part.slice(row, row + 1), int(part.tags[row])) for row in range(len(part))]
        if ready:
            found.sort(key=lambda item: item.key)
            self._check_ties(found)
        self.told = max(self.told, limit)
        self.items.extend(found)
        self._send_down(found, self._passed(limit))

    def _passed(self, limit: Key) -> list[Key]:
        """The marks up to here. Where nothing depends on how they are sent, only the last of them: the limit."""
        found: list[Key] = []
        while self.marks and self.marks[0] <= limit:
            key = heapq.heappop(self.marks)
            if not found or key > found[-1]:
                found.append(key)
        return found if self._is_total else [limit]

    def _send_down(self, items: list[Item], marks: list[Key]) -> None:
        """Requests and marks in the order of their keys: a mark is behind all requests below it."""
        children = self.member.children
        assert children is not None
        at = 0
        for mark in marks:
            while at < len(items) and items[at].key < mark:
                self._ask(children, items[at])
                at += 1
            self.out += [Message(child, FRONTIER, mark) for child in children]
        for item in items[at:]:
            self._ask(children, item)

    def _ask(self, children: tuple[int, int], item: Item) -> None:
        self.out += [Message(child, REQUEST, item.key, item.tag) for child in children]

    # -------------------------------------------------------------------- ties

    def _check_ties(self, items: list[Item]) -> None:
        """Raises ProgramError where an event and a request that depend on each other have one key: any order would do
        here, and another one in another tree."""
        if len({item.key for item in items}) == len(items):
            return
        for _, tied in groupby(items, key=lambda item: item.key):
            same = list(tied)
            own, above = [i.events for i in same if i.events is not None], [i.tag for i in same if i.events is None]
            for events in own:
                self._check_tie(events, above)

    def _note_answered(self, key: Key, tag: int) -> None:
        last, tags = self._answered
        self._answered = (key, [*tags, tag] if key == last else [tag])

    def _check_answered(self, events: Events) -> None:
        """As `_check_ties`, of events that leave behind a request."""
        key, tags = self._answered
        if events.key(0) == key:
            time, rank = key
            for row in np.flatnonzero((events.times == time) & (events.ranks == rank)).tolist():
                self._check_tie(events.slice(row, row + 1), tags)

    def _check_tie(self, event: Events, above: list[int]) -> None:
        space, entries, one = self._plan.space, self._plan.entries, int(event.tags[0])
        for other in above:
            if space.dependence[one, other]:
                names = " and ".join(str(replace(entries[tag], parts=1)) for tag in (one, other))
                fix = "give them an arrival that tells them apart, such as row_number() over the order you want"
                raise ProgramError(
                    space.program.name,
                    f"events of {names} depend on each other, and have the same time and the same arrival as "
                    f"{shown(event.batch.to_pylist()[0])}; {fix}",
                )

    # ------------------------------------------------------------------- close

    def _close(self) -> None:
        """A leaf gives up its state; others pass on, and join what comes."""
        children = self.member.children
        if children is None:
            self._send_closed(self.state)
            return
        if not self._told_to_close:
            self._told_to_close = True
            self.out += [Message(child, CLOSE) for child in children]
        elif len(self.answers) == 2:
            self._send_closed(self._joined())

    def _send_closed(self, state: Any) -> None:
        self.is_closed = True
        if self.member.parent is None:
            self.state, self.has_state = state, True
            return
        self.state, self.has_state = None, False
        self.out.append(Message(self.member.parent, UP, sender=self.member.number, state=state))

    # -------------------------------------------------------------------- look

    @property
    def has_requests(self) -> bool:
        return bool(self.requests or self.items)

    @property
    def is_done(self) -> bool:
        """Has all come, and been taken?"""
        if self.requests or self.items or self.is_up or self.lanes.rows:
            return False
        if self.above < LAST or self.lanes.frontier < LAST:
            return False
        return self.has_state if self.member.children is None else self.told == LAST


def _near(plan: Plan, tags: frozenset[int]) -> frozenset[int]:
    """The tags that some depend on."""
    if not tags:
        return frozenset()
    return frozenset(np.flatnonzero(plan.space.dependence[sorted(tags)].any(axis=0)).tolist())
