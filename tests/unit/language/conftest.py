"""Signatures like those of `measure`, so that the language is tested by itself."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.model.signature import Parameter, Signature


def _sum_type(found: pa.DataType | None) -> pa.DataType | str:
    if found is None or pa.types.is_integer(found):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(found) else f"sum needs a number, not {found}"


def _fraction(value: Parameter) -> str | None:
    return None if 0 <= value <= 1 else f"percentile takes a share from 0 to 1, not {value}"


@pytest.fixture(scope="session")
def functions() -> tuple[Signature, ...]:
    return (
        Signature("count", lambda found: pa.int64(), arguments=(0, 1)),
        Signature("sum", _sum_type),
        Signature("max", lambda found: found or "max needs a value"),
        Signature("stdDev", lambda found: pa.float64(), aliases=("stddev_samp", "stddev")),
        Signature("countDistinct", lambda found: pa.int64(), aliases=("count_distinct",)),
        Signature("percentile", lambda found: pa.float64(), parameters=("p",), check_parameter=_fraction),
    )
