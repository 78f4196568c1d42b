"""Which worker has which copies of tasks. Two copies of a task are in different workers, and on different hosts.

Where a worker runs is known only once it runs. So at first every worker gets a share; where two copies of a task turn
out to be on one host, and there are others, as few copies move as can be, one worker after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.flow.copies import Replication, by_task, copy_of, task_of
from headrace.flow.plan import Plan
from headrace.flow.regions import AGENT, Ends
from headrace.replicate import assignment
from headrace.replicate.assignment import Assignment, Copy, Share, TaskLoad, WorkerSeen

_MOST_MOVES: Final = 20
_MANY: Final = 8
"""Tasks of a worker. Where it has fewer, one of them may be most of its work: each vertex is shared evenly."""


class Placing:
    """Of one run of a flow."""

    def __init__(self, plan: Plan, workers: int, replication: Replication):
        self.of = shared_out(replication.names(plan), workers, _heavy(plan, workers))
        """The copies of each worker."""
        self.worker_of = _worker_of(self.of)
        self.copies = by_task(replication.names(plan))
        self._wanted = {task: len(copies) for task, copies in self.copies.items()}
        self.has_copies = replication.most > 1
        self._moves = 0
        self.notes: tuple[str, ...] = ()
        self._steps: deque[tuple[int, tuple[str, ...]]] = deque()
        self._seen: Mapping[int, str] = {}

    def next_move(self, hosts: Mapping[int, str]) -> int | None:
        """A worker that is to start again, with another share, while all are up; None if all is well."""
        if not self._steps and hosts != self._seen and self._moves < _MOST_MOVES:
            self._seen = hosts
            better = self._better(hosts)
            # First what leaves, then what comes: no copy is in two workers at a time.
            self._steps.extend((worker, _both(self.of[worker], names)) for worker, names in better.items())
            self._steps.extend(better.items())
        while self._steps:
            worker, names = self._steps.popleft()
            if set(names) != set(self.of[worker]):
                self.of = {**self.of, worker: names}
                self.worker_of = _worker_of(self.of)
                self._moves += 1
                return worker
        return None

    def _better(self, hosts: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
        """The shares that change, where two copies of a task share a host and need not."""
        workers = [WorkerSeen(worker, hosts[worker]) for worker in self.of]
        before = Assignment(
            tuple(
                Share(worker, hosts[worker], tuple(Copy(task_of(name), copy_of(name)) for name in names), 0.0, 0.0)
                for worker, names in self.of.items()
            ),
            {task: copy_of(copies[0]) for task, copies in self.copies.items()},
        )
        after = assignment.assign([TaskLoad(task) for task in self._wanted], workers, self._wanted, before)
        self.notes = after.notes
        if len(set(hosts.values())) < 2 or not self._is_crowded(hosts):
            return {}
        found = {int(share.worker): tuple(str(copy) for copy in share.copies) for share in after.shares}
        return {worker: names for worker, names in found.items() if set(names) != set(self.of[worker])}

    def _is_crowded(self, hosts: Mapping[int, str]) -> bool:
        worker_of = self.worker_of
        return any(
            len({hosts[worker_of[name]] for name in copies if name in worker_of}) < len(copies)
            for copies in self.copies.values()
        )

    def explain(self, hosts: Mapping[int, str], voices: Mapping[str, str]) -> str:
        """For a terminal: a line for each worker."""
        shares = tuple(
            Share(
                worker,
                hosts.get(worker, "?"),
                tuple(Copy(task_of(name), copy_of(name)) for name in names),
                float(len(names)),
                float(-(-sum(self._wanted.values()) // len(self.of))),
            )
            for worker, names in self.of.items()
        )
        active = {task: copy_of(voices.get(task, copies[0])) for task, copies in self.copies.items()}
        return Assignment(shares, active, self.notes).explain()


def _heavy(plan: Plan, workers: int) -> dict[str, float]:
    """Vertices whose tasks do more than others, and for how much of a share they count (measured in bench/track.py)."""
    found = {AGENT: 1 / 6}
    for node in plan.graph.nodes:
        if isinstance(node.behaviour, Ends):
            found[node.name] = 1 / 12
        elif node.source is not None and node.parallelism < workers:
            found[node.name] = 1 / 2
    return found


def _both(names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in others)


def shared_out(
    names: Sequence[str], workers: int, heavy: Mapping[str, float] | None = None
) -> dict[int, tuple[str, ...]]:
    """Every worker gets a share of every vertex, and no two copies of a task, where there are as many workers.

    `heavy`: vertices whose tasks count for so much of a share.
    """
    found: dict[int, list[str]] = {worker: [] for worker in range(min(workers, len(names)))}
    first = {task: place for place, task in enumerate(by_task(names))}
    for name in names:
        found[(first[task_of(name)] + copy_of(name)) % len(found)].append(name)
    if len(first) == len(names) and len(names) >= _MANY * len(found):  # copies have to keep apart
        _relieved(found, len(names) / len(found), heavy or {})
    return {worker: tuple(names) for worker, names in found.items()}


def _relieved(found: dict[int, list[str]], share: float, heavy: Mapping[str, float]) -> None:
    """A task of the tracker hears all workers, who asked for ends all of these, and one source feeds many tasks: other
    workers take over what else they have."""

    def weight(worker: int) -> float:
        extra = [share * heavy.get(name.rpartition(".")[0], 0.0) - 1 for name in found[worker]]
        return len(found[worker]) + sum(max(0.0, each) for each in extra)

    for worker in [worker for worker in found if weight(worker) > share + 1]:
        others = [name for name in found[worker] if name.rpartition(".")[0] not in heavy]
        lightest = min(found, key=weight)
        while others and weight(worker) > weight(lightest) + 1:
            found[worker].remove(others[-1])
            found[lightest].append(others.pop())
            lightest = min(found, key=weight)


def _worker_of(shares: Mapping[int, Sequence[str]]) -> dict[str, int]:
    return {name: worker for worker, names in shares.items() for name in names}
