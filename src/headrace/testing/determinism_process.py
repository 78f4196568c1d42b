"""Stages run in a process of its own, whose clocks and random numbers are those that it is told.

`python -m headrace.testing.determinism_process FOLDER NUMBER`
"""

from __future__ import annotations

import datetime
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark import cloudpickle

from headrace.errors import FlowError, HeadraceError
from headrace.model.failures import problem_of
from headrace.testing.determinism_cases import Case, Outcome, Variation, cut

_BEGAN_NS: Final = 1_700_000_000_000_000_000
_READ_NS: Final = 1_000_000
"""A clock goes on by so much each time it is read: who waits for it waits not for ever."""


class _Clock:
    """Stands for all clocks of Python while a stage runs."""

    def __init__(self) -> None:
        self._time_ns = time.time_ns
        self._told_ns: int | None = None

    def tell(self, ns: int | None) -> None:
        """What time it is; None for what it really is."""
        self._told_ns = ns

    def read_ns(self) -> int:
        if self._told_ns is None:
            return self._time_ns()
        self._told_ns += _READ_NS
        return self._told_ns

    def install(self) -> None:
        for name in ("time", "monotonic", "perf_counter"):
            setattr(time, name, lambda: self.read_ns() / 1e9)
            setattr(time, f"{name}_ns", self.read_ns)
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, self._at_now(getattr(time, name)))
        strftime, localtime = time.strftime, time.localtime
        time.strftime = lambda form, at=None: strftime(form, localtime() if at is None else at)
        datetime.datetime, datetime.date = _datetimes(self.read_ns)  # type: ignore[misc]

    def _at_now(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda at=None: real(self.read_ns() / 1e9 if at is None else at)


def _datetimes(read_ns: Callable[[], int]) -> tuple[Any, Any]:
    """The classes of `datetime` with another now. What they make are real ones, and real ones are theirs."""
    instants, dates = datetime.datetime, datetime.date

    class Standing(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, cls.__mro__[1])

    class Datetime(instants, metaclass=Standing):  # type: ignore[valid-type, misc]
        def __new__(cls, *given: Any, **named: Any) -> Any:
            return instants(*given, **named)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return instants.fromtimestamp(read_ns() / 1e9, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return instants.fromtimestamp(read_ns() / 1e9, datetime.UTC).replace(tzinfo=None)

        today = now

    class Date(dates, metaclass=Standing):  # type: ignore[valid-type, misc]
        def __new__(cls, *given: Any, **named: Any) -> Any:
            return dates(*given, **named)

        @classmethod
        def today(cls) -> Any:
            return dates.fromtimestamp(read_ns() / 1e9)

    return Datetime, Date


class _Randomness:
    """Stands for all that is random: generators of Python and numpy, and what they and uuid4 begin with."""

    def __init__(self) -> None:
        self._bytes = random.Random(0)

    def install(self) -> None:
        os.urandom = lambda size: self._bytes.randbytes(size)
        random._urandom = os.urandom  # type: ignore[attr-defined]

    def tell(self, seed: int) -> None:
        self._bytes = random.Random(f"bytes {seed}")
        random.seed(seed)
        np.random.seed(seed)


def run_all(cases: list[Case], variations: list[Variation], clock: _Clock, chance: _Randomness) -> list[list[Outcome]]:
    """By variation, and by case."""
    return [[_run(case, variation, clock, chance) for case in cases] for variation in variations]


def _run(case: Case, variation: Variation, clock: _Clock, chance: _Randomness) -> Outcome:
    if variation.order >= len(case.orders):
        return Outcome({})
    events = cut(case.orders[variation.order], variation.cuts, variation.seed)
    chance.tell(variation.seed)
    clock.tell(_BEGAN_NS + variation.later_s * 1_000_000_000)
    try:
        return Outcome(case.run(events))
    except HeadraceError as error:
        return Outcome({}, error)
    except Exception as error:
        return Outcome({}, FlowError(f"stage {case.stage}: {problem_of(error)}"))
    finally:
        clock.tell(None)


def main(folder: Path, number: int) -> None:
    clock, chance = _Clock(), _Randomness()
    clock.install()
    chance.install()
    variations = pickle.loads((folder / f"variations-{number}").read_bytes())
    # Functions find the clocks that are installed, since they come after them.
    cases = cloudpickle.loads((folder / "cases").read_bytes())
    outcomes = run_all(cases, variations, clock, chance)
    (folder / f"outcomes-{number}").write_bytes(pickle.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
