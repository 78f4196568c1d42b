"""The least that must move, by a flow of least cost; and the rules that every assignment keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.replicate.assignment import Assignment, TaskLoad, WorkerName, WorkerSeen, by_name


class _Flow:
    """Edges in pairs, there and back: the end, what is left, the cost."""

    def __init__(self) -> None:
        self.ends: list[object] = []
        self.left: list[int] = []
        self.costs: list[int] = []
        self.of: dict[object, list[int]] = {}

    def join(self, start: object, end: object, most: int, cost: int = 0) -> None:
        for node, to, left, sign in ((start, end, most, 1), (end, start, 0, -1)):
            self.of.setdefault(node, []).append(len(self.ends))
            self.ends.append(to)
            self.left.append(left)
            self.costs.append(sign * cost)

    def run(self) -> tuple[int, int]:
        """How much gets from `in` to `out`, and at what cost."""
        amount = cost = 0
        while True:
            costs: dict[object, int] = {"in": 0}
            by: dict[object, int] = {}
            changed = ["in"] if "in" in self.of else []
            while changed:
                node = changed.pop(0)
                for edge in self.of[node]:
                    end = self.ends[edge]
                    if self.left[edge] and costs[node] + self.costs[edge] < costs.get(end, 10**9):
                        costs[end], by[end] = costs[node] + self.costs[edge], edge
                        changed.append(end)  # type: ignore[arg-type]
            if "out" not in by:
                return amount, cost
            amount, cost, at = amount + 1, cost + costs["out"], "out"
            while at != "in":
                edge = by[at]
                self.left[edge] -= 1
                self.left[edge ^ 1] += 1
                at = self.ends[edge ^ 1]  # type: ignore[assignment]


def places_of(workers: Sequence[WorkerSeen]) -> dict[WorkerName, object]:
    """The place of failure of each."""
    by_worker = len({worker.host for worker in workers}) == 1
    return {worker.name: worker.name if by_worker else worker.host for worker in workers}


def copies_of(tasks: Sequence[TaskLoad], copies: Mapping[str, int] | int) -> dict[str, int]:
    return {task.name: copies if isinstance(copies, int) else copies.get(task.name, 1) for task in tasks}


def fit_and_moves(
    tasks: Sequence[TaskLoad],
    workers: Sequence[WorkerSeen],
    copies: Mapping[str, int] | int,
    before: Assignment | None,
    budgets: Mapping[WorkerName, int],
) -> tuple[int, int]:
    """How many copies fit within the budgets, and how many of them must run where they did not run before."""
    places, flow = places_of(workers), _Flow()
    was = {(share.worker, share.host): share.copies for share in before.shares} if before else {}
    homes = {(copy.task, worker) for (worker, _), each in was.items() for copy in each}
    for name, count in copies_of(tasks, copies).items():
        flow.join("in", ("task", name), count)
        for place in dict.fromkeys(places.values()):
            flow.join(("task", name), ("place", name, place), 1)
        for worker in workers:
            is_new = (name, worker.name) not in homes
            flow.join(("place", name, places[worker.name]), ("worker", worker.name), 1, int(is_new))
    for worker in workers:
        flow.join(("worker", worker.name), "out", budgets[worker.name])
    return flow.run()


def check_rules(
    tasks: Sequence[TaskLoad], workers: Sequence[WorkerSeen], copies: Mapping[str, int] | int, after: Assignment
) -> None:
    """Every copy that fits runs, never twice in a place; numbers, loads and active copies are what they should be."""
    places, weights = places_of(workers), {task.name: task.weight for task in tasks}
    assert {share.worker for share in after.shares} == set(places)
    for task, count in copies_of(tasks, copies).items():
        found = [(copy.number, share.worker) for share in after.shares for copy in share.copies if copy.task == task]
        assert len(found) == min(count, len(set(places.values())))
        assert len({places[worker] for _, worker in found}) == len(found), f"{task} runs twice in one place"
        assert len({number for number, _ in found} & set(range(count))) == len(found)
        assert not found or after.active[task] in {number for number, _ in found}
    for share in after.shares:
        assert abs(share.load - sum(weights[copy.task] for copy in share.copies)) < 1e-6
        assert list(share.copies) == sorted(share.copies, key=lambda copy: by_name(copy.task))
