"""`Program`: a sequential loop, which of its events depend on each other, and how its state is forked and joined.

```python
class EventWindows(hr.Program):
    outputs = pa.schema([("time", pa.int64()), ("total", pa.int64())])
    depends = {"barrier": ("barrier", "value")}

    def init(self):
        return 0

    def update(self, state, event):
        if event.kind == "value":
            return state + event.value, []
        return 0, [(event.time, state)]

    def fork(self, state, left, right):
        return state, 0

    def join(self, left, right):
        return left + right
```

A *tag* is what dependence is about: the value of a column (`"barrier"`), or of several, a tuple (`("reset", 17)`).
An *event* is a row as a named tuple. A *state* is plain values, or a frozen dataclass of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from headrace.errors import ProgramError

Tag: TypeAlias = Any
"""The value of the tag column, or a tuple of the values of several."""
Tags: TypeAlias = Callable[[Tag], bool]
"""A predicate: may an event with this tag come here?"""
Table: TypeAlias = Mapping[Any, Iterable[Any]]
"""What each kind of event depends on; read both ways. Where a tag is a tuple, its first value is the kind, and only
events whose other values are equal depend on each other."""
Update: TypeAlias = tuple[Any, Iterable[Any]]
"""The state from now on, and the rows to give: tuples in the order of the output's columns, or dicts."""


class Program(ABC):
    """A sequential program that can be run in parallel. See the head of this module, and `hr.check`."""

    outputs: ClassVar[pa.Schema]
    """The columns of what `update` gives."""
    tags: ClassVar[Sequence[Tag] | None] = None
    """All tags there are, where they are few and known: an event with another one is then an error."""
    depends: Any
    """`depends(self, a, b)`: does the order of events with these tags matter? Or a table of that (`Table`)."""

    @abstractmethod
    def init(self) -> Any:
        """The state before the first event."""

    @abstractmethod
    def update(self, state: Any, event: Any) -> Update:
        """The state after an event, and what to give. Changes nothing that it was given."""

    def fork(self, state: Any, left: Tags, right: Tags) -> tuple[Any, Any]:
        """One state into two: the first for events that `left` says yes to, the second for those of `right`.

        Every event of the one side is independent of every event of the other. A tag may be on both sides, and on none:
        what belongs to it must then go to either side, so that `join` gives back what there was.
        """
        raise ProgramError(self.name, "it has no fork; without fork and join it can only run sequentially")

    def join(self, left: Any, right: Any) -> Any:
        """Two states into one: what the sequential program would have, had it seen the events of both."""
        raise ProgramError(self.name, "it has no join; without fork and join it can only run sequentially")

    # update_batch(self, state, events: pa.RecordBatch) -> (state, pa.RecordBatch | None) may be there as well: the same
    # as update, event by event, of a run of events.

    def handles(self, kind: type, tag: Tag) -> bool:
        """May a state of this type be given an event with this tag? For programs with several types of state.

        Where `depends` is a table, tags have a key, and `tags` does not list them, it is asked with `(kind,)`.
        """
        return True

    # ----------------------------------------------------------------- derived

    def dependent(self, a: Tag, b: Tag) -> bool:
        """Does the order of two events with these tags matter?"""
        table = self.table
        if table is None:
            return bool(self.depends(a, b))
        one, two = kind_of(a), kind_of(b)
        return same_key(a, b) and (two in table.get(one, ()) or one in table.get(two, ()))

    @property
    def table(self) -> dict[Any, tuple[Any, ...]] | None:
        """What each kind depends on, where that is given as a table."""
        found = getattr(self, "depends", None)
        if not isinstance(found, Mapping):
            if found is not None and not callable(found):
                problem = f"depends is {found!r}; give a function of two tags, or a table"
                raise ProgramError(self.name, f"{problem}, such as {{'close': ('close', 'sale')}}")
            return None
        for kind, others in found.items():
            if not isinstance(others, Iterable):
                said = f"depends has {kind!r}: {others!r}; a table has for each kind a list of those it depends on"
                raise ProgramError(self.name, f"{said}, such as {{'close': ('close', 'sale')}}")
        return {kind: (others,) if isinstance(others, str) else tuple(others) for kind, others in found.items()}

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def is_columnar(self) -> bool:
        return callable(getattr(self, "update_batch", None))


def kind_of(tag: Tag) -> Any:
    return tag[0] if isinstance(tag, tuple) else tag


def same_key(a: Tag, b: Tag) -> bool:
    return (a[1:] if isinstance(a, tuple) else ()) == (b[1:] if isinstance(b, tuple) else ())


# ------------------------------------------------------------ several state types


@dataclass(frozen=True)
class Forking:
    """A fork of one type of state into two others, or a join of those."""

    method: str
    whole: type
    left: type
    right: type


def fork(whole: type, left: type, right: type) -> Callable[[Any], Any]:
    """Marks a method `(self, state, left, right)` of a program that forks a state of one type into two others."""

    def marked(method: Any) -> Any:
        method.forking = Forking(method.__name__, whole, left, right)
        return method

    return marked


def join(left: type, right: type, whole: type) -> Callable[[Any], Any]:
    """Marks a method `(self, left, right)` of a program that joins states of two types into one of a third."""

    def marked(method: Any) -> Any:
        method.joining = Forking(method.__name__, whole, left, right)
        return method

    return marked


@dataclass(frozen=True)
class Pair:
    """A fork and the join that belongs to it, by the names of their methods."""

    fork: str
    join: str
    whole: type | None
    left: type | None
    right: type | None


def pairs_of(program: Program) -> tuple[Pair, ...]:
    """The forks of a program with their joins. Raises ProgramError where one has no other half.

    Methods called `fork` and `join` that are not marked are of one type of state, whatever it is.
    """
    kind = type(program)
    forks: list[Forking] = []
    joins: list[Forking] = []
    for name in dir(kind):
        method: Any = getattr(kind, name, None)
        forks += [method.forking] if hasattr(method, "forking") else []
        joins += [method.joining] if hasattr(method, "joining") else []
    plain_fork = kind.fork is not Program.fork and not hasattr(kind.fork, "forking")
    plain_join = kind.join is not Program.join and not hasattr(kind.join, "joining")
    if plain_fork != plain_join:
        has, lacks = ("fork", "join") if plain_fork else ("join", "fork")
        raise ProgramError(program.name, f"it has a {has} and no {lacks}; without both it can only run sequentially")
    found = [Pair("fork", "join", None, None, None)] if plain_fork else []
    for each in forks:
        matching = [j for j in joins if (j.whole, j.left, j.right) == (each.whole, each.left, each.right)]
        if not matching:
            shape = f"{each.left.__name__}, {each.right.__name__}"
            raise ProgramError(
                program.name,
                f"{each.method} forks {each.whole.__name__} into {shape}, and no method is marked "
                f"@hr.join({shape}, {each.whole.__name__})",
            )
        found.append(Pair(each.method, matching[0].method, each.whole, each.left, each.right))
    return tuple(found)
