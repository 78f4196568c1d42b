"""Options that make no sense are refused before anything else is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import headrace as hr
from headrace.flow.options import check_options

from .coordinator_script import ignored, make

_USUAL = {"workers": None, "commit_s": 1.0, "room_bytes": 1, "batch_records": 1, "heartbeat_s": 0.01}
_FROM_1, _FROM_0, _SECONDS = (
    "a whole number from 1 on",
    "a whole number from 0 on",
    "seconds, a finite number from 0 on",
)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        *[("batch_records", value, _FROM_1) for value in (0, -1, 1.5, True, None, "9")],
        *[("workers", value, _FROM_1) for value in (0, -1, 2.0, False)],
        *[("room_bytes", value, _FROM_0) for value in (-1, 1e6, None)],
        *[("commit_s", value, _SECONDS) for value in (-0.1, float("nan"), float("inf"), "1", None, True)],
        *[("heartbeat_s", value, _SECONDS) for value in (-1, float("nan"), float("inf"), None)],
    ],
)
def test_an_option_is_refused_by_name(option: str, value: Any, allowed: str, tmp_path: Path) -> None:
    flow = hr.Flow("f")
    flow.sink("out", flow.source("numbers", hr.generate(make, 10)), hr.callback(ignored))
    with pytest.raises(hr.FlowError) as refused:
        flow.start(cast(Any, None), tmp_path, **{option: value})
    assert str(refused.value) == f"{option}={value!r}: use {allowed}"


@pytest.mark.parametrize(
    ("option", "value"),
    [("room_bytes", 0), ("commit_s", 0), ("heartbeat_s", 0.0), ("workers", np.int64(1)), ("commit_s", np.float32(0.5))],
)
def test_the_least_is_allowed(option: str, value: Any) -> None:
    check_options(**{**_USUAL, option: value})
