"""What columns and functions of the user say of records: to which substream one belongs, and whether it is the last.

A label is known by its type as well as by its value: whatever a function gives for one batch or another, all tasks of a
flow must see the one type that was found when it was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FlowError, HeadraceError
from headrace.model.failures import problem_of, shown, stage_failed

Labels = Callable[[pa.RecordBatch], Any]
Flags = npt.NDArray[np.bool_]

_ALIKE: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    lambda type: pa.types.is_string(type) or pa.types.is_large_string(type),
    lambda type: pa.types.is_binary(type) or pa.types.is_large_binary(type),
    lambda type: pa.types.is_timestamp(type) and type.tz is None,
    lambda type: pa.types.is_timestamp(type) and type.tz is not None,
)
"""Types of which one may stand for another, where no value is lost."""


@dataclass(frozen=True)
class Asked:
    """A function of the user, or a column, as `where` names it: a task, and what it was given for."""

    by: str | Labels
    where: str

    def labels(self, batch: pa.RecordBatch, label: pa.DataType | None) -> pa.Array:
        """A label for each record, of the type `label` if that is known. Raises FlowError, StageFailed."""
        if isinstance(self.by, str):
            return self._column(self.by, batch, label)
        found = self._array(self._called(self.by, batch), batch)
        if len(found) != batch.num_rows:
            raise FlowError(f"{self.where} gave {len(found)} labels for {batch.num_rows} records; give one for each")
        if pa.types.is_boolean(found.type):
            # A predicate: what does not fulfil it belongs to no substream.
            found = pc.if_else(found, found, pa.scalar(None, pa.bool_()))
        return found if label is None or found.type == label else self._cast(found, label)

    def flags(self, batches: Sequence[pa.RecordBatch]) -> Flags:
        """Of each record: is it the last of its substream? Raises FlowError, StageFailed."""
        parts = [self._flags(batch) for batch in batches]
        found = parts[0] if len(parts) == 1 else pa.chunked_array(parts, pa.bool_()).combine_chunks()
        return np.asarray(found.fill_null(False) if found.null_count else found).astype(np.bool_)

    def _flags(self, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(self.by, str):
            found = self._column(self.by, batch, None)
        else:
            found = self._array(self._called(self.by, batch), batch)
        if len(found) != batch.num_rows:
            raise FlowError(
                f"{self.where} gave {len(found)} values for {batch.num_rows} records; give True or False for each"
            )
        if not is_flag(found.type):
            raise FlowError(f"{self.where} gave {found.type}; give True and False, or 1 and 0")
        return found if pa.types.is_boolean(found.type) else found.cast(pa.bool_())

    def _column(self, name: str, batch: pa.RecordBatch, label: pa.DataType | None) -> pa.Array:
        try:
            found = batch.column(name)
        except KeyError:
            known = ", ".join(batch.schema.names)
            raise FlowError(f"{self.where}: there is no column {name}; there are {known}") from None
        if label is not None and found.type != label:
            raise FlowError(
                f"{self.where}: column {name} is {found.type} here, and {label} where it is tracked; of another type "
                f"it tells other substreams: cast it before the first stage, or behind what is tracked"
            )
        return found

    def _called(self, function: Labels, batch: pa.RecordBatch) -> Any:
        try:
            return function(batch)
        except HeadraceError:
            raise
        except Exception as error:
            first = shown(batch.slice(0, 1).to_pylist()[0]) if batch.num_rows else "none"
            raise stage_failed(self.where, error, f"one of {batch.num_rows} from {first}") from error

    def _array(self, given: Any, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(given, pa.ChunkedArray):
            given = given.combine_chunks()
        if isinstance(given, pa.Array):
            return given
        try:
            found = pa.array(given)
        except Exception as error:
            raise FlowError(
                f"{self.where} gave {shown(given)} for {batch.num_rows} records, which is no column of values "
                f"({problem_of(error)}); give a pa.array, one value for each record"
            ) from None
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def _cast(self, found: pa.Array, label: pa.DataType) -> pa.Array:
        problem = ""
        if _can_stand(found.type, label):
            try:
                return found.cast(label)
            except pa.ArrowException as error:
                problem = f" ({problem_of(error)})"
        raise FlowError(
            f"{self.where} gave {found.type}, and {label} for a batch of no records{problem}, by which all tasks know "
            f"substreams; give a pa.array of one type whatever the batch, or name a column"
        )


def _can_stand(given: pa.DataType, label: pa.DataType) -> bool:
    # Whole numbers come as fractions where some of them are missing, as from pandas.
    fractions = pa.types.is_floating(given) and pa.types.is_integer(label)
    return bool(pa.types.is_null(given) or fractions or any(kind(given) and kind(label) for kind in _ALIKE))


def is_flag(type: pa.DataType) -> bool:
    """Can it be True and False? Numbers are, as 1 and 0."""
    return bool(
        pa.types.is_boolean(type) or pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_null(type)
    )
