"""The workers of a plan that share a task: events go to their lanes, messages to each other or to another task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.synchronize.mailbox import FIRST, LAST, ByDependence, Events, Key
from headrace.synchronize.node import Message, TreeNode
from headrace.synchronize.plan import Member, Plan
from headrace.synchronize.running import Running

_MOST_FAMILIES: Final = 8
_FEW_RUNS: Final = 8


class TreeTask:
    """All workers of one task. `sources` are where events come from, each in the order of its keys."""

    def __init__(self, plan: Plan, task: int, schema: pa.Schema, sources: Sequence[str], is_total: bool = False):
        """`is_total`: see `TreeNode`."""
        self.plan, self.task, self.sources = plan, task, list(sources)
        self._is_total = is_total
        self._running = Running(plan.space.program, schema)
        self.nodes: dict[int, TreeNode] = {}
        self._lane_of = np.full(len(plan.entries), -1, np.int64)
        """For each implementation tag, its family at its worker."""
        self._families: dict[int, int] = {}
        for member in plan.members:
            if member.task == task:
                self.nodes[member.number] = self._made(member)
        self._place_of = (np.array(plan.owner, np.int64) * (_MOST_FAMILIES + 1) + self._lane_of).astype(
            np.uint16 if len(plan.members) * (_MOST_FAMILIES + 1) < 1 << 16 else np.int64
        )
        """For each implementation tag, its worker and its family there. NumPy sorts 16-bit numbers by radix, many times
        faster than others."""
        self._inbox: deque[Message] = deque()
        self._leaf_inbox: deque[Message] = deque()
        """Messages for leaves here, which wait until no other worker here has any: those have others that wait."""
        self.outbox: list[tuple[int, Message]] = []
        """Messages for other tasks, with the task."""
        self.flush: Callable[[], None] | None = None
        """Sends the outbox; called also before a leaf works, so that nobody waits for that."""
        self.frontiers: list[Key] = [FIRST] * len(self.sources)

    def _made(self, member: Member) -> TreeNode:
        families = _families(self.plan, member.tags, 1 if self._is_total else len(self.sources))
        self._families[member.number] = len(families)
        for number, family in enumerate(families):
            self._lane_of[list(family)] = number
        names, tags = [], []
        for source in self.sources:
            for family in families:
                names.append(f"source {source}")
                tags.append(frozenset(family))
        dependence = self.plan.space.dependence
        near = np.array(
            [[self._is_total or bool(dependence[np.ix_(sorted(a), sorted(b))].any()) for b in tags] for a in tags],
            np.bool_,
        ).reshape(len(tags), len(tags))
        return TreeNode(self.plan, member, self._running, ByDependence(names, near), tags, self._is_total)

    # ------------------------------------------------------------------- input

    def start_alone(self) -> None:
        """Each worker with its part of the first state: it forks it as all above would have."""
        for node in self.nodes.values():
            if node.member.children is None:
                node.start(self._first_state(node.member))

    def _first_state(self, member: Member) -> Any:
        if member.parent is None:
            return self.plan.space.program.init()
        parent = self.plan.members[member.parent]
        assert parent.pair is not None and parent.children is not None  # noqa: PT018
        sides = [self.plan.space.covers(self.plan.subtrees[child]) for child in parent.children]
        parts = self._running.fork(parent.pair.fork, self._first_state(parent), *sides)
        return parts[parent.children.index(member.number)]

    def start(self, state: Any) -> None:
        """The state that the root begins with; of tasks without the root, nothing happens."""
        root = self.nodes.get(0)
        if root is not None:
            root.start(state)
            self._send(root)

    def push(self, source: int, events: Events) -> None:
        """Events of a source for workers here. Raises OrderBroken where they go back in time."""
        if not len(events):
            return
        places = self._place_of[events.tags]
        cuts = np.flatnonzero(places[1:] != places[:-1]) + 1
        if len(cuts) > _FEW_RUNS:
            order = np.argsort(places, kind="stable")
            events, places = events.take(order), places[order]
            cuts = np.flatnonzero(places[1:] != places[:-1]) + 1
        # Where there are long runs of one worker, as where barriers are rare, nothing is copied.
        for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(events)], strict=True):
            owner, lane = divmod(int(places[start]), _MOST_FAMILIES + 1)
            self._push(source, owner, lane, events.slice(start, stop))

    def _push(self, source: int, member: int, family: int, events: Events) -> None:
        node = self.nodes[member]
        node.lanes.push(source * self._families[member] + family, events)

    def complete(self, source: int, key: Key) -> None:
        """No event of a source below this key will come any more."""
        if key <= self.frontiers[source]:
            return
        self.frontiers[source] = key
        for number, node in self.nodes.items():
            count = self._families[number]
            for lane in range(source * count, (source + 1) * count):
                node.lanes.complete(lane, key)
            if count:
                node.mark(key)

    def receive(self, message: Message) -> None:
        is_leaf = self.nodes[message.to].member.children is None
        (self._leaf_inbox if is_leaf else self._inbox).append(message)

    def close(self) -> None:
        """All has come: when all has been taken, states are joined once more. Of the task with the root."""
        self.nodes[0].is_closing = True

    # -------------------------------------------------------------------- work

    def work(self, least_rows: int = 0) -> list[pa.RecordBatch]:
        """All that can be done. Gives what the program gave, if that is so many rows by now."""
        for node in self.nodes.values():
            self._work(node)
        while self._inbox or self._leaf_inbox:
            inbox = self._inbox or self._leaf_inbox
            message = inbox.popleft()
            node = self.nodes[message.to]
            node.on(message)
            # Messages that came together for one worker are worked on together.
            if not inbox or inbox[0].to != message.to:
                self._work(node)
        return self._running.fetch(least_rows)

    def _work(self, node: TreeNode) -> None:
        if self.outbox and self.flush is not None and node.member.children is None:
            self.flush()
        node.work()
        self._send(node)

    def _send(self, node: TreeNode) -> None:
        if not node.out:
            return
        sent, node.out = node.out, []
        for message in sent:
            task = self.plan.members[message.to].task
            if task == self.task:
                self.receive(message)
            else:
                self.outbox.append((task, message))

    # -------------------------------------------------------------------- look

    @property
    def rows(self) -> int:
        """How many events wait."""
        return sum(node.lanes.rows for node in self.nodes.values())

    @property
    def is_done(self) -> bool:
        return not (self._inbox or self._leaf_inbox) and all(node.is_done for node in self.nodes.values())

    @property
    def is_closed(self) -> bool:
        """Have all workers here given up their states?"""
        return all(node.is_closed for node in self.nodes.values())

    @property
    def state(self) -> Any:
        """Of the root, once it is closed."""
        return self.nodes[0].state

    def waits_for(self) -> list[int]:
        """The sources that hold up events, or requests: those that have come least far."""
        if not any(node.lanes.rows or node.has_requests for node in self.nodes.values()):
            return []
        least = min(self.frontiers, default=LAST)
        return [source for source, key in enumerate(self.frontiers) if key == least < LAST]

    def tags_waited_for(self) -> list[str]:
        """What the events that wait depend on: one of these may still come before them."""
        entries, waiting = self.plan.entries, [node.lanes.tags for node in self.nodes.values()]
        tags = np.unique(np.concatenate([np.zeros(0, np.int64), *waiting]))
        requested = {tag for node in self.nodes.values() for _, tag in node.requests}
        near = self.plan.space.dependence[sorted({*tags.tolist(), *requested})].any(axis=0)
        return list(dict.fromkeys(str(replace(entries[tag], parts=1)) for tag in np.flatnonzero(near).tolist()))


def _families(plan: Plan, tags: Sequence[int], sources: int) -> list[tuple[int, ...]]:
    """The tags of a worker in groups that are independent of each other: one where there is one source, or many."""
    if not tags:
        return []
    if sources == 1:
        return [tuple(tags)]
    left, found = list(tags), []
    while left:
        family, edge = [left[0]], [left.pop(0)]
        while edge:
            at = edge.pop()
            near = [tag for tag in left if plan.space.dependence[at, tag]]
            left = [tag for tag in left if tag not in near]
            family += near
            edge += near
        found.append(tuple(sorted(family)))
    return found if len(found) <= _MOST_FAMILIES else [tuple(tags)]
