"""What goes wrong in a simulated run, and when: a list that can be printed, replayed and made smaller."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import FlowError

KINDS: Final = {
    "crash": "a worker dies right before it does something",
    "pause": "a worker stands still, perhaps so long that it is replaced, and then goes on",
    "lost": "a worker is taken for dead and replaced, while it goes on for a while",
    "driver": "the driver dies with all its workers, and is started again",
    "power": "the machine goes down: all processes die, and what no disk has is lost",
}
MORE_KINDS: Final = {
    "host": "all workers on a host die",
    "broker": "the queues stand still: nothing is read, and what is appended comes later",
}
"""For worlds with several hosts, and queues in a cluster of their own."""


@dataclass(frozen=True)
class Fault:
    """`at` counts what workers have done so far; `length_s` is for what stands still, or is taken for dead."""

    kind: str
    at: int
    length_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}@{self.at}" + (f"+{self.length_s:g}s" if self.length_s else "")


def draw_faults(seed: int, kinds: Sequence[str] = tuple(KINDS), most: int = 6, within: int = 400) -> tuple[Fault, ...]:
    """Faults of a seed: none, some or many, early and late."""
    unknown = [kind for kind in kinds if kind not in KINDS and kind not in MORE_KINDS]
    if unknown:
        raise FlowError(f"there is no fault {unknown[0]!r}; there are {', '.join((*KINDS, *MORE_KINDS))}")
    rng = random.Random(f"faults {seed}")
    found = []
    for _ in range(rng.randint(0, most) if kinds else 0):
        kind = rng.choice(list(kinds))
        lengths = {"pause": (0.05, 0.5, 5.0, 40.0), "lost": (0.05, 0.5, 5.0, 40.0), "broker": (0.05, 0.5, 5.0)}
        length = round(rng.choice(lengths[kind]) * rng.uniform(0.5, 1.5), 3) if kind in lengths else 0
        found.append(Fault(kind, int(within * rng.random() ** 2), length))
    return tuple(sorted(found, key=lambda fault: fault.at))


def parse_fault(text: str) -> Fault:
    """The inverse of `str`."""
    kind, _, rest = text.partition("@")
    at, _, length = rest.partition("+")
    if kind not in {**KINDS, **MORE_KINDS} or not at.isdigit() or not re.fullmatch(r"([0-9.]+s?)?", length):
        raise FlowError(f"fault {text!r}: write it as crash@120 or pause@40+5s; kinds are {', '.join(KINDS)}")
    return Fault(kind, int(at), float(length.rstrip("s") or 0))
