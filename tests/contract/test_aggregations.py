"""Every aggregation passes the one contract; a new one is tested by being in FUNCTIONS."""

from __future__ import annotations

import pytest

from headrace.measure.definition import Definition
from headrace.measure.functions import FUNCTIONS
from headrace.testing.contracts import PARAMETERS, calls, check_aggregation, check_frame_independence
from headrace.testing.definitions import KEEPS_NULLS, SKIPS_NULLS
from headrace.testing.scenarios import scenario
from headrace.testing.values import DOUBLE, WINDOWS

NAMES = [signature.name for signature in FUNCTIONS]


@pytest.mark.parametrize("function", NAMES)
def test_aggregation_passes_the_contract(function: str) -> None:
    check_aggregation(function)


def test_the_contract_knows_every_aggregation() -> None:
    defined = {*KEEPS_NULLS, *SKIPS_NULLS} - {"count(*)"}
    assert set(NAMES) == defined
    assert {signature.name for signature in FUNCTIONS if signature.parameters} == set(PARAMETERS)


@pytest.mark.parametrize("arrival", [None, "arrival"])
def test_answers_do_not_depend_on_the_frames(arrival: str | None) -> None:
    case = scenario(DOUBLE, seed=4, rows=40, arrival=arrival)
    items = ", ".join(calls(name, "x")[0] + f" AS {name}" for name in NAMES)
    text = ";".join(
        f"SELECT {items.replace(' AS ', f' AS w{n}_')} FROM events WHERE ok GROUP BY key OVER {window}"
        for n, window in enumerate(WINDOWS)
    )
    check_frame_independence(Definition(text, time="ts", id="id", arrival=arrival), case.table)
