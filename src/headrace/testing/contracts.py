"""The contracts: what every aggregation and every definition must pass, whoever wrote it.

```python
@pytest.mark.parametrize("function", [signature.name for signature in FUNCTIONS])
def test_contract(function):
    check_aggregation(function)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from headrace.errors import MetricOverflow
from headrace.measure.definition import Definition
from headrace.measure.functions import FUNCTIONS
from headrace.measure.run import measure_table
from headrace.model.signature import Signature
from headrace.testing.compare import assert_same_answers
from headrace.testing.definitions import canonical, result_type
from headrace.testing.oracle import Oracle
from headrace.testing.scenarios import Scenario, near_the_limits, scenario
from headrace.testing.texts import FOR_NUMBERS
from headrace.testing.values import KINDS, WINDOWS, Kind

PARAMETERS = {"percentile": ("0", "0.37", "1"), "topK": ("1", "3")}
"""What to put after the argument, for functions that take a constant."""

CAN_OVERFLOW = ("sum", "avg")
"""Functions whose exact result may not fit the type of the answer."""


def check_aggregation(function: str) -> None:
    """The contract of an aggregation; raises AssertionError with the event and its window where it is broken.

    For every type of argument and every kind of window the answer to every event equals a recomputation by the
    definition: with removals, ties, nulls, NaN, infinities, negative zero, decimals, integers near overflow, texts,
    moments, empty groups and windows, in order of time and with late arrivals, cut into frames anywhere. A result that
    does not fit its type raises MetricOverflow, and one that fits does not, whatever was added and removed on the way.
    The signature says which types the function takes, and refuses the others with a sentence.
    """
    signature = next((known for known in FUNCTIONS if known.name == function), None)
    assert signature is not None, f"{function} is not in FUNCTIONS"
    check_signature(signature)
    for kind in kinds_for(function):
        check_answers(function, kind)
    if 0 in signature.arguments:
        check_star(function)
    check_limits(function)


def check_signature(signature: Signature) -> None:
    """The types in the signature are those of the documentation; other arguments get a sentence, not an exception."""
    assert signature.about, f"{signature.name}: say in `about` what it does"
    taken = kinds_for(signature.name)
    for kind in KINDS:
        answer = signature.result_type(kind.type)
        if kind in taken:
            expected = result_type(signature.name, kind.type)
            assert answer == expected, f"{signature.name}({kind.type}) is {answer}, not {expected}"
        else:
            assert isinstance(answer, str), f"{signature.name} must refuse {kind.type}, not answer {answer}"
    for alias in signature.aliases:
        assert canonical(alias) == signature.name, f"the oracle does not know {alias} for {signature.name}"


def check_answers(function: str, kind: Kind) -> None:
    """Every window kind, filtered and not, in order of time and of late arrival: equal to the definition."""
    text = _text(calls(function, "x"))
    check_scenario(text, scenario(kind, seed=1), frames=(None, [7, 0, 13]))
    check_scenario(text, scenario(kind, seed=2, arrival="arrival"), frames=(None, [20] + [1] * 20))


def check_star(function: str) -> None:
    """The form without an argument, `count(*)`."""
    case = scenario(KINDS[0], seed=3, arrival="arrival")
    check_scenario(_text([f"{function}(*)"]), case, frames=(None, [1] * case.table.num_rows))


def check_limits(function: str) -> None:
    """Values at the end of the range: the answer where it fits, MetricOverflow where it does not, never a wrap."""
    windows = ("sliding 2s", "sliding 2 events", "infinite", "tumbling 3s delayed by 1s")
    asked = [
        f"SELECT {call} AS m{n}_{i} FROM events OVER {window}"
        for n, window in enumerate(windows)
        for i, call in enumerate(calls(function, "x"))
    ]
    # One overflow hides all other answers of its text, so metrics that can overflow are asked for one by one.
    texts = asked if function in CAN_OVERFLOW else [";".join(asked)]
    for case in near_the_limits():
        for text in texts:
            check_scenario(text, case, frames=(None, [1, 1]))


def check_scenario(text: str, case: Scenario, frames: Sequence[Sequence[int] | None] = (None,)) -> None:
    """`measure_table` and the oracle agree on a scenario, in answers or in MetricOverflow, for each cut into frames."""
    oracle = Oracle(text, case.table, time=case.time, id=case.id, arrival=case.arrival)
    definition = Definition(text, time=case.time, id=case.id, arrival=case.arrival)
    expected = outcome(oracle.table)
    for sizes in frames:
        actual = outcome(partial(measure_table, definition, case.table, sizes))
        assert_same_outcome(actual, expected, oracle, f"frames {sizes}, arrival {case.arrival}, {text}")


def check_frame_independence(definition: Definition, table: pa.Table) -> None:
    """However the rows are cut into frames, the answers are those of one frame: the cut is not in the data."""
    whole = outcome(partial(measure_table, definition, table))
    for sizes in cuts(table.num_rows):
        actual = outcome(partial(measure_table, definition, table, sizes))
        assert_same_outcome(actual, whole, None, f"frames {sizes}, {definition.text}")


def cuts(rows: int) -> Iterator[list[int]]:
    """Every cut into two, row by row, in pieces of three, and with empty pieces."""
    yield from ([first] for first in range(rows))
    yield [1] * rows
    yield [3] * (rows // 3)
    yield [0, rows // 2, 0, 0, 1]


def kinds_for(function: str) -> tuple[Kind, ...]:
    """The types of argument that a function takes."""
    return tuple(kind for kind in KINDS if kind.number) if function in FOR_NUMBERS else KINDS


def calls(function: str, argument: str) -> list[str]:
    """The function's calls to try: one, or one for each constant that goes after the argument."""
    constants = PARAMETERS.get(function)
    return (
        [f"{function}({argument}, {constant})" for constant in constants] if constants else [f"{function}({argument})"]
    )


def every_metric(window: str) -> str:
    """A text with every function over every type it takes, for the columns of `scenarios.every_kind`."""
    items = [
        f"{calls(signature.name, kind.name)[-1]} AS {signature.name}_{kind.name}"
        for signature in FUNCTIONS
        for kind in kinds_for(signature.name)
    ]
    return f"SELECT count(*) AS n, {', '.join(items)} FROM events WHERE ok GROUP BY key OVER {window}"


Outcome: TypeAlias = "pa.Table | type[MetricOverflow]"


def outcome(run: Callable[[], pa.Table]) -> Outcome:
    """The table, or MetricOverflow where that was raised."""
    try:
        return run()
    except MetricOverflow:
        return MetricOverflow


def assert_same_outcome(actual: Outcome, expected: Outcome, oracle: Oracle | None, about: str) -> None:
    """Both overflow, or both have the same answers (to the bit, or within the oracle's ulps)."""
    if isinstance(actual, type) or isinstance(expected, type):
        shown = [side.__name__ if isinstance(side, type) else "answers" for side in (actual, expected)]
        assert actual is expected, f"{shown[0]}, expected {shown[1]}\n  {about}"
        return
    try:
        ulps, inputs = (oracle.ulps(), oracle.inputs) if oracle is not None else (0, None)
        assert_same_answers(actual, expected, ulps=ulps, inputs=inputs)
    except AssertionError as error:
        raise AssertionError(f"{error}\n  {about}") from None


def _text(asked: Sequence[str]) -> str:
    """The calls over every window: by group, and filtered."""
    statements = []
    for n, window in enumerate(WINDOWS):
        for about, where in (("plain", ""), ("filtered", " WHERE ok")):
            items = ", ".join(f"{call} AS {about}{n}_{i}" for i, call in enumerate(asked))
            statements.append(f"SELECT {items} FROM events{where} GROUP BY key OVER {window}")
    return ";\n".join(statements)
