"""The order checker: strict order, nothing twice, nothing missing; and the merge of the paper, word by word."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def assert_in_source_order(
    found: Iterable[int] | Ints, expected: Iterable[int] | Ints | None = None, copies: int = 1
) -> None:
    """These sequence numbers, as they came out, rise; each is there `copies` times, as a broadcast makes them.

    With `expected`, in any order, they are just those. Raises AssertionError that names the first place.
    """
    got = np.asarray(found if isinstance(found, np.ndarray) else list(found), np.int64)
    back = np.flatnonzero(np.diff(got) < 0)
    if len(back):
        at = int(back[0])
        raise AssertionError(f"out of order: {got[at + 1]} comes after {got[at]}, at place {at + 1} of {len(got):,}")
    values, counts = np.unique(got, return_counts=True)
    wrong = np.flatnonzero(counts != copies)
    if len(wrong):
        at = int(wrong[0])
        raise AssertionError(f"{values[at]} is there {_times(counts[at])}, not {_times(copies)}")
    if expected is None:
        return
    wanted = np.unique(np.asarray(expected if isinstance(expected, np.ndarray) else list(expected), np.int64))
    missing, extra = np.setdiff1d(wanted, values), np.setdiff1d(values, wanted)
    if len(missing):
        raise AssertionError(f"{len(missing):,} of {len(wanted):,} are missing, the first of them {missing[0]}")
    if len(extra):
        raise AssertionError(f"{len(extra):,} are there that should not be, the first of them {extra[0]}")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


END = 1 << 62
"""The tick of the last heartbeat of a queue."""


def literal_merge(queues: Sequence[Sequence[tuple[int, bool]]]) -> list[tuple[int, int]]:
    """The paper's Algorithm 1, as far as it gets: a queue has (tick, is a heartbeat) and is polled until it is empty.

    Gives (tick, queue) of the records, in the order in which they are emitted.
    """
    at = [0] * len(queues)
    heap: list[tuple[int, bool, int]] = []
    found: list[tuple[int, int]] = []

    def poll(queue: int) -> bool:
        if at[queue] == len(queues[queue]):
            return False  # here the paper's merger would wait
        tick, is_heartbeat = queues[queue][at[queue]]
        at[queue] += 1
        heapq.heappush(heap, (tick, is_heartbeat, queue))
        return True

    if not all(poll(queue) for queue in range(len(queues))):
        return found
    while heap:
        tick, is_heartbeat, queue = heapq.heappop(heap)
        if not is_heartbeat:
            found.append((tick, queue))
        if tick != END and not poll(queue):
            return found
    return found
