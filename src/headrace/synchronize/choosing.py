"""Which tags of a sample are tried, where there are too many: of every kind, and those that much depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from headrace.synchronize.program import Program, Tag, kind_of

MOST_TAGS: Final = 16
"""That one case is about: with more, no two events would have to do with each other."""
MOST_KEPT: Final = 64
"""That all cases are about."""
_MOST_ALWAYS: Final = 8
_MOST_ASKED: Final = 1000
"""Kinds of which is asked what depends on them, each with so many others:"""
_OTHERS: Final = 32


@dataclass(frozen=True)
class Chosen:
    """Tags, in the order that they came in."""

    kept: list[Tag]
    always: list[Tag]
    """What each case may have: the rarest kinds, as all may depend on these, and those that most depend on."""


def chosen_tags(program: Program, counts: Counter[Tag], rng: Random) -> Chosen:
    """Those of one key together, or nothing would depend on anything; which keys, is drawn."""
    if len(counts) <= MOST_TAGS:
        return Chosen(list(counts), list(counts))
    groups = families(counts)
    rng.shuffle(groups)
    groups.sort(key=len, reverse=True)
    first = _one_of_each_kind(groups)
    ranked = _by_weight(program, first, counts, rng)
    order = dict.fromkeys([*ranked, *(tag for group in groups for tag in group)])
    kept, always = set(list(order)[:MOST_KEPT]), set(ranked[:_MOST_ALWAYS])
    return Chosen([tag for tag in counts if tag in kept], [tag for tag in counts if tag in always])


def families(tags: Iterable[Tag]) -> list[list[Tag]]:
    """Those of one key; a tag of one column is alone."""
    found: dict[Any, list[Tag]] = {}
    for tag in tags:
        found.setdefault(tag[1:] if isinstance(tag, tuple) else tag, []).append(tag)
    return list(found.values())


def _one_of_each_kind(groups: list[list[Tag]]) -> list[Tag]:
    """From few families."""
    found: dict[Any, Tag] = {}
    for group in groups:
        for tag in group:
            found.setdefault(kind_of(tag), tag)
    return list(found.values())


def _by_weight(program: Program, tags: list[Tag], counts: Counter[Tag], rng: Random) -> list[Tag]:
    """By turns the one of the rarest kind, and the one that depends on the most others."""
    of_kind: Counter[Any] = Counter()
    for tag, count in counts.items():
        of_kind[kind_of(tag)] += count
    rare = sorted(tags, key=lambda tag: of_kind[kind_of(tag)])
    asked = tags if len(tags) <= _MOST_ASKED else rng.sample(tags, _MOST_ASKED)
    others = asked if len(asked) <= _OTHERS else rng.sample(asked, _OTHERS)
    near = sorted(asked, key=lambda tag: -sum(_may_depend(program, tag, other) for other in others))
    turns = [tag for pair in zip(near, rare, strict=False) for tag in pair]
    return list(dict.fromkeys([*turns, *rare]))


def _may_depend(program: Program, a: Tag, b: Tag) -> bool:
    try:
        return program.dependent(a, b)
    except Exception:  # the rule about `depends` tells of it
        return False
