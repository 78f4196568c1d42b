"""What a person is told: each rule in words, what to do where it is broken, and the story of a counterexample."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_WIDTH: Final = 78
_WORD: Final = 12


@dataclass(frozen=True)
class Rule:
    """In words: what it asks for, what it is called in a list, and how a program is mended that breaks it."""

    name: str
    short: str
    broken: str
    mend: str


RULES: Final = {
    rule.name: rule
    for rule in (
        Rule(
            "depends",
            "depends(a, b) is depends(b, a)",
            "depends must give True or False, and the same for (a, b) as for (b, a)",
            "Mend depends; or write it as a table, which is read both ways.",
        ),
        Rule(
            "types",
            "forks, joins and handles keep to the types of states",
            "a state is not of the type that it should be",
            "Let each fork and join give the types it is marked with, update the type it was given, and handles say "
            "yes to every tag for the type of the initial state, and look at tag[0] alone where keys share buckets.",
        ),
        Rule(
            "plain state",
            "states survive the way to another worker",
            "a state must be plain values, or a dataclass of them, to go from one worker to another",
            "Keep numbers, texts, bytes, times, decimals, lists, tuples, dicts and sets in it. A dataclass that is not "
            "the initial state, nor in its annotations, is made known with states = (Name,).",
        ),
        Rule(
            "purity",
            "nothing that was given is changed",
            "a function may not change what it was given",
            "Change a copy, and give that: dict(state), list(state), dataclasses.replace(state, ...).",
        ),
        Rule(
            "hidden state",
            "the same arguments give the same",
            "a function must give the same whenever it is given the same",
            "Keep all that is remembered in the state: not in self, not in a global; and use no clock and no chance.",
        ),
        Rule(
            "independence",
            "independent events give the same in any order",
            "independent events must give the same state and outputs in either order",
            "Let depends say that these tags depend on each other; or let update give the same in either order.",
        ),
        Rule(
            "fork-join",
            "join undoes fork",
            "joining what fork gave must give back the state that was forked",
            "Let fork hand each part of the state to exactly one side, also what belongs to tags of neither; and let "
            "join put the parts together and add nothing.",
        ),
        Rule(
            "join-update",
            "an event gives the same beside another worker as alone",
            "an event on its side of a fork must give what it gives after the join",
            "Let fork give a side all that its events look at (ask its predicates), and the other side nothing that "
            "counts twice; let join add up what both sides saw. If an event needs what both sides know, let depends "
            "say so.",
        ),
        Rule(
            "batches",
            "update_batch gives what update gives",
            "update_batch must give what update gives, event by event, wherever a run is cut",
            "Mend update_batch; or leave it out, then update is used.",
        ),
        Rule(
            "whole runs",
            "runs through trees of forks equal the sequential run",
            "a parallel run must give what the sequential one gives",
            "Look for the first fork or join in the story after which something is missing, or is there twice.",
        ),
        Rule(
            "float drift",
            "floats are equal to the last digit",
            "floats differ in their last digits, as rounding depends on the order of additions",
            "Use exact sums: integers, decimals, or math.fsum over parts that are kept; or accept the difference with "
            "tolerance=1e-9.",
        ),
    )
}


def told(lines: Iterable[tuple[str, str]]) -> str:
    """A story for a terminal of 80 columns. A line without a word is a heading."""
    found: list[str] = []
    for word, rest in lines:
        if not word:
            found.append(f"  {rest}")
            continue
        head = f"    {word:<{_WORD}}  "
        what, arrow, result = rest.partition(" → ") if len(head) + len(rest) > _WIDTH else (rest, "", "")
        found += _wrapped(what, head)
        if arrow:
            found += _wrapped(f"→ {result}", " " * len(head))
    return "\n".join(found)


def _wrapped(text: str, head: str) -> list[str]:
    # A state without a space in it is cut as well, and not left hanging out of the window.
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def sentences(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH))
