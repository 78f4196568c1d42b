"""The merges of the replication paper, word by word and item by item: what the fast ones are compared with.

An item of an input is a record (a str), a beat (an int, its number) or END.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

Item: TypeAlias = str | int | None
END: Final = None


class LiteralLiveRobin:
    """Algorithm 1, with an end of inputs: from there on it is as if its beat were always there, and is not sent on.

    Lines 15 to 17 are outside the `if` of line 12, as its prose says; with the other reading it stalls.
    """

    def __init__(self, inputs: int):
        self.queues: list[deque[Item]] = [deque() for _ in range(inputs)]
        self.everything = set(range(inputs))
        self.active = set(self.everything)
        self.ended: set[int] = set()
        self.next = 0
        self.gen = 0
        self.taken = [0] * inputs

    def run(self) -> Iterator[tuple[int, str] | int]:
        """What it processes, (input, record), and the beats it sends on, until it blocks or all inputs have ended."""
        while len(self.ended) < len(self.everything):
            if self.next in self.ended:
                self._ignore()
            elif not self.queues[self.next]:
                return
            else:
                event = self.queues[self.next].popleft()
                self.taken[self.next] += 1
                if isinstance(event, str):
                    yield self.next, event
                elif event is END:
                    self.ended.add(self.next)
                    self._ignore()
                else:
                    if event > self.gen:
                        yield event
                        self.gen = event
                    self._ignore()
            self._go_on()

    def _ignore(self) -> None:
        self.active -= {self.next}
        if not self.active:
            self.active = set(self.everything)

    def _go_on(self) -> None:
        if self.next >= max(self.active):
            self.next = min(self.active)
        else:
            self.next = min(c for c in self.active if c > self.next)


def live_robin(queues: Sequence[Sequence[Item]]) -> list[tuple[int, str] | int]:
    """What it processes and sends on of these queues before it blocks."""
    literal = LiteralLiveRobin(len(queues))
    for at, queue in enumerate(queues):
        literal.queues[at].extend(queue)
    return list(literal.run())


def kazoo(queues: Sequence[Sequence[Item]], order: Iterable[int]) -> list[tuple[int, str]]:
    """What a copy processes of these queues, when the order names one of them for each item, before it blocks."""
    left = [deque(queue) for queue in queues]
    found: list[tuple[int, str]] = []
    for at in order:
        if not left[at]:
            return found
        event = left[at].popleft()
        if isinstance(event, str):
            found.append((at, event))
    return found


def first_copies(numbers: Iterable[int]) -> list[int]:
    """Of the numbers of one producer, from all of its copies, those that are kept: above the last that was kept."""
    found: list[int] = []
    for number in numbers:
        if not found or number > found[-1]:
            found.append(number)
    return found
