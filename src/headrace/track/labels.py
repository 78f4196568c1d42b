"""What tells substreams apart: labels, their ids, and their order where they rise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FlowError
from headrace.track.tokens import Words


@dataclass(frozen=True)
class Meaning:
    """What substreams a flow has: ids of labels, and what a source says of their ends."""

    labels: Callable[[Sequence[pa.RecordBatch]], pa.Array]
    """The label of each record; null where it belongs to no substream."""
    ids: Callable[[pa.Array], Words]
    """0 for null, and for nothing else."""
    ends: Callable[[Sequence[pa.RecordBatch]], npt.NDArray[np.bool_]] | None = None
    """Of each record of a source: is it the last of its substream?"""
    slack: int | None = None
    """Where labels of a source rise: how far one may fall back."""
    opens_anywhere: bool = False
    """May any task begin a substream? Where ends are promised, only sources do."""


def is_nanoseconds(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) and type.unit == "ns")


def as_numbers(labels: pa.Array) -> pa.Array:
    """Labels that rise, as whole numbers: days of dates, microseconds of time stamps, or nanoseconds if they have them.

    Raises FlowError.
    """
    if is_nanoseconds(labels.type):
        return labels.view(pa.int64())
    if pa.types.is_timestamp(labels.type):
        return labels.cast(pa.timestamp("us", labels.type.tz), safe=False).view(pa.int64())
    if pa.types.is_date32(labels.type):
        return labels.cast(pa.int32()).cast(pa.int64())
    if not pa.types.is_integer(labels.type):
        raise FlowError(f"substreams are {labels.type}; those that rise are whole numbers, dates or time stamps")
    try:
        return labels.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise FlowError(
            f"substreams that rise are whole numbers below 2**63 ({error}); take away what is above"
        ) from None


def names_of(labels: pa.Array) -> list[Any]:
    """As who is told of ends has them. Raises NoName where Python has no such value."""
    try:
        return labels.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError, LookupError) as error:
        raise NoName(f"{labels.type}: {error}") from None


class NoName(Exception):
    """As of a time behind the year 9999, or of a zone that Python does not know."""
