"""Is a stage a function of its records alone? Replicas of a task, and a task that starts again, rely on it.

```python
check_deterministic(stage, batches)                          # a function of a batch, or a class of hr.Stage
check_deterministic(stage, batches, each="record")           # and all else that flow.stage takes
check_deterministic(function, batches, by="card")            # as for flow.keyed
check_deterministic(flow, {"payments": batches})             # all stages of a flow, each with what comes to it
```

The stage is run over the same records again and again, in fresh processes: cut into other batches, opened twice, at
another time, with other random numbers, with other hash seeds. One thing is changed at a time, so that what makes a
difference is known.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.graph import Graph
from headrace.model.failures import shown
from headrace.testing.determinism_cases import Batches, Case, Outcome, Variation, case_of, cases_of

_LATER_S: Final = 400 * 86_400 + 7 * 3600 + 13 * 60 + 5
_FIRST: Final = Variation("first")
_HERE: Final = (
    _FIRST,
    Variation("state"),
    Variation("clock", later_s=_LATER_S),
    Variation("random", seed=1),
    Variation("cuts", cuts="single"),
    Variation("cuts", cuts="random", seed=2),
    Variation("cuts", cuts="random", seed=3),
    Variation("order", order=1),
    Variation("order", order=2),
)
_HASH_SEEDS: Final = (1, 2)

CAUSES: Final[Mapping[str, tuple[str, str, str]]] = {
    "state": (
        "when it was opened a second time in the same process",
        "it keeps something outside of its state (a global, a closure, an attribute of its class: a counter, a cache, "
        "a generator of random numbers), or it reads a clock that is not one of Python's own",
        "keep it in self of a class of hr.Stage, with snapshot and restore, or in the state of flow.keyed",
    ),
    "clock": (
        "at another time",
        "it reads the clock (time.time, datetime.now)",
        "take the time from the records: let the source give them a column of times",
    ),
    "random": (
        "with other random numbers",
        "it draws at random (random, numpy.random, uuid4, os.urandom)",
        'reckon it from the record: random.Random(record["id"]), uuid.uuid5(namespace, record["id"])',
    ),
    "hash": (
        "with another hash seed (PYTHONHASHSEED)",
        "it depends on the order of a set, or on hash() of a text",
        "sort what comes out of a set, or keep the order in a dict (dict.fromkeys); use zlib.crc32 instead of hash()",
    ),
    "process": (
        "in another process",
        "it depends on the process (id(), os.getpid(), the environment, a file), or on a clock of another library",
        "let it depend on the records alone: let the source, or a stage before it, give what it needs as a column",
    ),
    "cuts": (
        "when the same records came in other batches",
        "what it gives for a record depends on those that come with it (batch.num_rows, a sum or a sort of the batch)",
        'give it records one by one (each="record"), or keep what goes across records in a class of hr.Stage',
    ),
    "rounding": (
        "when the same records came in other batches",
        "it adds floating-point numbers in an order that depends on the batch (a sum of sums rounds otherwise)",
        "add them one by one in the order of the records, or exactly: whole numbers, decimals, fractions.Fraction",
    ),
    "order": (
        "when its inputs came in another interleaving",
        "it depends on which of its inputs comes first",
        "say stream.ordered() where it reads them, and leave any_interleaving out",
    ),
}
"""What a difference can come of: which run made it, what the stage does, and the fix."""


@dataclass(frozen=True)
class Difference:
    """Two runs of a stage that differ: the first record that does, with its number among those of the output."""

    stage: str
    cause: str
    """One of `CAUSES`."""
    output: str
    record: int
    column: str
    """Empty where one run gave fewer records, or failed."""
    first: Any
    second: Any

    def story(self) -> str:
        when, does, fix = CAUSES[self.cause]
        output = f" of its output {self.output}" if self.output else ""
        place = f"Record {self.record}{output}" + (f", column {self.column}," if self.column else "")
        return (
            f"stage {self.stage} is not a function of its records alone.\n"
            f"  {place} was {shown(self.first)} first, and {shown(self.second)} {when}.\n"
            f"  It seems that {does}.\n"
            f"  The fix: {fix}."
        )


class NotDeterministic(AssertionError):
    """Has the `difference`; its text is the story of it."""

    def __init__(self, difference: Difference):
        super().__init__(difference.story())
        self.difference = difference

    def __reduce__(self) -> tuple[Any, ...]:
        return NotDeterministic, (self.difference,)


def check_deterministic(
    stage: Any, batches: Batches | Mapping[str, Batches] | None, *, timeout_s: float = 120.0, **drawn: Any
) -> None:
    """Raises NotDeterministic, an AssertionError, unless a stage gives the same for the same records, bit for bit.

    `stage`    as for `flow.stage`: a function, or a class of hr.Stage; `drawn` is what else it takes (`each`, `schema`,
               `sides`, ...). With `by=` it is a function as for `flow.keyed`. Or a flow: each of its stages is checked
    `batches`  what comes to it, in this order; by the name of an input where there are several, which come in turn. Of
               a flow, by the names of its sources; None for what they give themselves
    `any_interleaving`  the inputs may come in any interleaving, and the same records come out, in whatever order

    A stage that raises for these records raises here. NaN equals NaN, and -0.0 is not 0.0.
    """
    if isinstance(stage, Flow | Graph):
        if drawn:
            raise FlowError(f"flow {stage.name} is drawn already; {', '.join(drawn)} cannot be said of it here")
        cases = cases_of(stage, batches)
    elif batches is None:
        raise FlowError(f"stage {stage!r}: give the batches that come to it")
    else:
        cases = [case_of(stage, batches, **drawn)]
    for difference in find_differences(cases, timeout_s=timeout_s, is_one_enough=True):
        if difference is not None:
            raise NotDeterministic(difference)


def find_differences(
    cases: Sequence[Case], *, timeout_s: float = 120.0, is_one_enough: bool = False
) -> list[Difference | None]:
    """For each stage, the first difference between its runs. All of them share their processes."""
    with tempfile.TemporaryDirectory() as folder:
        processes = _Processes(Path(folder), cases, timeout_s)
        here = processes.run([(0, _HERE)])[0]
        for outcome in here[0]:
            if outcome.error is not None:
                raise outcome.error
        found = _differences(cases, here[0], list(zip(_HERE, here, strict=True))[1:])
        is_enough = any(found) if is_one_enough else all(found)
        return found if is_enough else _found_elsewhere(processes, cases, here[0], found)


def _found_elsewhere(
    processes: _Processes, cases: Sequence[Case], first: Sequence[Outcome], found: Sequence[Difference | None]
) -> list[Difference | None]:
    """With what differs in other processes, which come some time later."""
    hashed, plain = Variation("hash"), Variation("process")
    there = processes.run([(seed, (hashed,)) for seed in _HASH_SEEDS])
    more = _differences(cases, first, [(hashed, outcomes[0]) for outcomes in there])
    if any(new is not None and was is None for was, new in zip(found, more, strict=True)):
        # Is it the hash seed, or only that it is another process?
        again = _differences(cases, first, [(plain, processes.run([(0, (plain,))])[0][0])])
        more = [other if new and other else new for new, other in zip(more, again, strict=True)]
    return [new if was is None else was for was, new in zip(found, more, strict=True)]


# --------------------------------------------------------------------- processes


class _Processes:
    """Fresh ones, that run all cases."""

    def __init__(self, folder: Path, cases: Sequence[Case], timeout_s: float):
        self._folder, self._timeout_s, self._count = folder, timeout_s, 0
        (folder / "cases").write_bytes(_pickled(list(cases)))

    def run(self, wanted: Sequence[tuple[int, Sequence[Variation]]]) -> list[list[list[Outcome]]]:
        """For each hash seed and its variations: what each variation gave, by case. They run side by side."""
        with ExitStack() as stack:
            numbers = range(self._count, self._count + len(wanted))
            self._count += len(wanted)
            started = [self._start(stack, n, *each) for n, each in zip(numbers, wanted, strict=True)]
            return [self._ended(number, process) for number, process in zip(numbers, started, strict=True)]

    def _start(self, stack: ExitStack, number: int, seed: int, variations: Sequence[Variation]) -> Any:
        (self._folder / f"variations-{number}").write_bytes(pickle.dumps(list(variations)))
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "headrace.testing.determinism_process", str(self._folder), str(number)],
                env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": paths},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        )
        stack.callback(process.kill)
        return process

    def _ended(self, number: int, process: subprocess.Popen[bytes]) -> list[list[Outcome]]:
        try:
            _, said = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise FlowError(
                f"the stages did not come to an end within {self._timeout_s:g} s; give fewer records, or timeout_s="
            ) from None
        if process.returncode != 0:
            raise FlowError(f"the process that runs the stages has failed: {said.decode(errors='replace')[-2000:]}")
        found: list[list[Outcome]] = pickle.loads((self._folder / f"outcomes-{number}").read_bytes())
        return found


def _pickled(cases: list[Case]) -> bytes:
    """Modules of users may be such that another process cannot import them: their functions travel by value."""
    pickles: Any = cloudpickle  # it has no type hints
    functions = [getattr(case.behaviour, "function", None) for case in cases]
    names = {getattr(each, "__module__", None) or type(each).__module__ for each in functions}
    own = [sys.modules[name] for name in sorted(names) if name in sys.modules and _is_own(sys.modules[name])]
    for module in own:
        pickles.register_pickle_by_value(module)
    try:
        return bytes(pickles.dumps(cases))
    finally:
        for module in own:
            pickles.unregister_pickle_by_value(module)


def _is_own(module: ModuleType) -> bool:
    """Is it of a user? What is installed can be imported anywhere, and `__main__` travels by value anyway."""
    file = getattr(module, "__file__", None) or ""
    is_installed = "site-packages" in file or file.startswith(sys.base_prefix)
    return bool(file) and not is_installed and module.__name__.split(".")[0] not in ("headrace", "__main__")


# ----------------------------------------------------------------------- compare


def _differences(
    cases: Sequence[Case], first: Sequence[Outcome], others: Sequence[tuple[Variation, Sequence[Outcome]]]
) -> list[Difference | None]:
    """For each case, the first of the others that differs."""
    found: list[Difference | None] = [None] * len(cases)
    for variation, outcomes in others:
        for number, case in enumerate(cases):
            if found[number] is None and variation.order < len(case.orders):
                found[number] = _difference(case.stage, variation, first[number], outcomes[number])
    return found


def _difference(stage: str, variation: Variation, first: Outcome, second: Outcome) -> Difference | None:
    if second.error is not None:
        return Difference(stage, variation.cause, "", 0, "", "given without an error", str(second.error))
    for output, was in first.tables.items():
        now = second.tables[output]
        if variation.cause == "order":
            was, now = _sorted(was), _sorted(now)
        place = first_difference(was, now)
        if place is None:
            continue
        row, column = place
        if not column:
            counts = [f"one of {table.num_rows} records" for table in (was, now)]
            return Difference(stage, variation.cause, output, row, "", *counts)
        values = [table.column(column)[row].as_py() for table in (was, now)]
        return _named(Difference(stage, variation.cause, output, row, column, *values))
    return None


def _named(found: Difference) -> Difference:
    """With what the two values tell of the cause."""
    first, second = found.first, found.second
    if found.cause != "cuts" or not isinstance(first, float) or not isinstance(second, float) or first == second:
        return found
    return replace(found, cause="rounding") if math.isclose(first, second, rel_tol=1e-9) else found


def _sorted(table: pa.Table) -> pa.Table:
    order = sorted(range(table.num_rows), key=[repr(record) for record in table.to_pylist()].__getitem__)
    return table.take(pa.array(order, pa.int64()))


def first_difference(was: pa.Table, now: pa.Table) -> tuple[int, str] | None:
    """The first row in which two tables of the same columns differ, with the column; none where one is shorter."""
    rows = min(was.num_rows, now.num_rows)
    places = []
    for name in was.schema.names:
        different = np.flatnonzero(_different(was.column(name)[:rows], now.column(name)[:rows]))
        places += [(int(different[0]), name)] if len(different) else []
    if places:
        return min(places, key=lambda place: place[0])
    return None if was.num_rows == now.num_rows else (rows, "")


def _different(was: pa.ChunkedArray, now: pa.ChunkedArray) -> Any:
    """Bit for bit, where all that are not a number are one."""
    if pa.types.is_floating(was.type) or pa.types.is_nested(was.type):
        # What is written of a double is another text for every other one, and for -0.0.
        pairs = zip(was.to_pylist(), now.to_pylist(), strict=True)
        return np.array([repr(a) != repr(b) for a, b in pairs], np.bool_)
    same = pc.fill_null(pc.equal(was, now), False)
    both_null = pc.and_(pc.is_null(was), pc.is_null(now))
    return ~np.asarray(pc.or_(same, both_null), np.bool_)
