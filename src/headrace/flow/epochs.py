"""The state of several stages at one moment, while they run on: after all records of an epoch, and none of a later one.

```python
epochs = {"by": "epoch", "ends": hr.rising(), "bound": "firm"}
Balances, Totals = snapshotted(BalanceOf, "balances"), snapshotted(TotalOf, "totals")
balances = flow.stage("balances", Balances, payments.tracked(**epochs), route=hr.key("account"), sides=Balances.sides)
totals = flow.stage("totals", Totals, balances.tracked(**epochs), route=hr.key("country"), sides=Totals.sides)
flow.sink("saved-balances", balances.side("snapshots"), hr.parquet(folder))
flow.sink("saved-totals", totals.side("snapshots"), hr.parquet(folder))
```

No task waits for another: each gives its state when it has heard that an epoch has ended for it, as a record like any
other. So a sink has each of them exactly once, and those of one epoch are one consistent cut of the flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FlowError
from headrace.flow.operators import MAIN, Stage
from headrace.model import plain_json
from headrace.model.failures import problem_of, shown
from headrace.model.moments import moment

SNAPSHOTS: Final = "snapshots"
"""The side output of a stage that is snapshotted."""


def snapshotted(
    stage: type[Stage], name: str | None = None, *, by: str | None = "epoch", epoch: pa.DataType | None = None
) -> type[Snapshotted]:
    """The same stage, which gives its state at the end of each epoch to its side output "snapshots".

    `name`   what the stage is called in these records: as its class, unless said
    `by`     the column of its records that has the epoch, to see that none comes at the wrong time; None where epochs
             are no column
    `epoch`  the type of epochs, if not int64

    Draw it with `sides=` its `sides`, and let it read `stream.tracked(..., ends=hr.rising(), bound="firm")`. A record
    has `epoch`, `stage` and `state`, the state as text: what `snapshot` gave after all records of epochs up to this
    one, and none of a later one, and after `on_ended` of the stage itself. Records without an epoch belong to no cut.

    Every task gives one for each epoch that a source has, also where nothing of it came to the task.
    """
    _check_class("snapshotted", stage)
    fields = [("epoch", epoch or pa.int64()), ("stage", pa.string()), ("state", pa.string())]
    values = {
        "sides": {SNAPSHOTS: pa.schema([pa.field(*each) for each in fields])},
        "named": name or stage.__name__,
        "epochs_by": by,
    }
    return type(f"{stage.__name__} with snapshots", (Snapshotted, stage), values)


class Snapshotted(Stage):
    """What `snapshotted` puts before a stage. Not for use alone."""

    sides: ClassVar[Mapping[str, pa.Schema]]
    named: ClassVar[str]
    epochs_by: ClassVar[str | None]

    _highest: Any = None
    """The highest epoch that has come."""
    _ended: Any = None
    """The highest epoch that has ended."""

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        if self.epochs_by is not None and self.epochs_by not in batch.schema.names:
            known = ", ".join(batch.schema.names)
            raise FlowError(
                f"stage {self.named}: its records have no column {self.epochs_by}, but {known}; say by= the column of "
                f"epochs, or by=None if they are in none"
            )
        if self.epochs_by is not None and batch.num_rows:
            self._look(pc.min_max(batch.column(self.epochs_by)).as_py())
        return super().on_batch(batch)  # type: ignore[safe-super]

    def _look(self, found: Mapping[str, Any]) -> None:
        lowest, highest = found["min"], found["max"]
        if lowest is None:
            return
        if self._ended is not None and moment(lowest) <= moment(self._ended):
            raise FlowError(
                f"stage {self.named}: a record of epoch {lowest} came when the state at the end of epoch {self._ended} "
                f'had been given; let it read stream.tracked(by=..., ends=hr.rising(), bound="firm")'
            )
        self._highest = highest if self._highest is None else max(self._highest, highest, key=moment)

    def on_ended(self, substream: Any) -> Any:
        if self._highest is not None and moment(self._highest) > moment(substream):
            raise FlowError(
                f"stage {self.named}: a record of epoch {self._highest} came before the end of epoch {substream}; let "
                f'it read stream.tracked(by=..., ends=hr.rising(), bound="firm")'
            )
        self._ended = substream if self._ended is None else max(self._ended, substream, key=moment)
        given = super().on_ended(substream)
        state = plain_json.dumps(super().snapshot(), f"stage {self.named}: its snapshot").decode()
        record = pa.record_batch([[substream], [self.named], [state]], schema=self.sides[SNAPSHOTS])
        return {**(given if isinstance(given, Mapping) else {MAIN: given}), SNAPSHOTS: record}

    def snapshot(self) -> Any:
        return [super().snapshot(), self._highest, self._ended]

    def restore(self, state: Any) -> None:
        own, self._highest, self._ended = state
        if own is not None:
            super().restore(own)


# ----------------------------------------------------------------------- restore

Records: TypeAlias = Any
"""A table, a record batch, or a list of dicts."""


def union(states: Sequence[Any]) -> Any:
    """States of tasks that share the keys: dicts together, lists and sets one behind the other; of one, itself.

    Raises FlowError where two have the same key, or are something else.
    """
    if len(states) == 1:
        return states[0]
    if all(isinstance(state, dict) for state in states):
        found: dict[Any, Any] = {}
        for state in states:
            both = found.keys() & state.keys()
            if both:
                raise FlowError(f"two tasks have a state of {min(both, key=repr)!r}; say how they are put together")
            found |= state
        return found
    for kind in (list, set):
        if all(isinstance(state, kind) for state in states):
            return kind(each for state in states for each in state)
    kinds = ", ".join(sorted({type(state).__name__ for state in states}))
    raise FlowError(f"states of {len(states)} tasks ({kinds}) do not go together; say how, with together=")


def state_at(
    records: Records,
    epoch: Any,
    stage: str | None = None,
    *,
    tasks: int | None = None,
    together: Callable[[Sequence[Any]], Any] = union,
) -> Any:
    """The state of a stage at the end of an epoch, of all its tasks together; for `restore`, or `starting_from`.

    `records`  of the side output "snapshots", at least those of the epoch; of several stages, if `stage` says which
    `tasks`    how many tasks it has: a snapshot that not all of them have given yet is refused

    Raises FlowError where there is none.
    """
    rows = [row for row in _rows(records) if stage in (None, row["stage"])]
    found = sorted(row["state"] for row in rows if moment(row["epoch"]) == moment(epoch))
    named = f"stage {stage}: " if stage is not None else ""
    stages = sorted({row["stage"] for row in rows if moment(row["epoch"]) == moment(epoch)})
    if len(stages) > 1:
        raise FlowError(f"there are states of {' and '.join(stages)} at epoch {epoch}; say stage={stages[0]!r}")
    if not found or (tasks is not None and len(found) != tasks):
        have = ", ".join(map(str, sorted({row["epoch"] for row in rows}))) or "none"
        count = f"{len(found)} of {tasks} tasks have" if tasks is not None else "no task has"
        raise FlowError(f"{named}{count} given a state at epoch {epoch}; there are epochs {have}")
    return together([_read(text, f"{named}the state at epoch {epoch}") for text in found])


def _read(text: str, what: str) -> Any:
    try:
        return plain_json.loads(text.encode())
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise FlowError(
            f"{what} is not what a snapshot gave ({problem_of(error)}): {shown(text)}; give the records as they came"
        ) from None


def whole_epochs(records: Records, tasks: Mapping[str, int]) -> list[Any]:
    """The epochs at which all tasks of all these stages have given their states, the oldest first."""
    rows = _rows(records)
    epochs = {moment(row["epoch"]): row["epoch"] for row in rows}
    counts = Counter((moment(row["epoch"]), row["stage"]) for row in rows)
    return [epochs[at] for at in sorted(epochs) if all(counts[at, stage] == n for stage, n in tasks.items())]


def starting_from(stage: type[Stage], state: Any) -> type[Stage]:
    """The same stage, which begins with a state, as of `state_at`: for a flow that reads what came after that epoch.

    A stage with several tasks begins with all of it in each of them: that is right where it looks at nothing but the
    keys that come to it. Let one that tells of all its keys, as in `on_end`, begin with one task.
    """
    _check_class("starting_from", stage)
    if issubclass(stage, Snapshotted):
        raise FlowError(f"{stage.__name__}: say snapshotted(starting_from(...)): the state is that of the stage itself")
    content = plain_json.dumps(state, f"{stage.__name__}: the state that it begins with")

    def begun(self: Any) -> None:
        stage.__init__(self)
        stage.restore(self, plain_json.loads(content))

    return type(stage.__name__, (stage,), {"__init__": begun})


def _check_class(function: str, stage: Any) -> None:
    if not (isinstance(stage, type) and issubclass(stage, Stage)):
        raise FlowError(f"{function}({shown(stage)}): give a class of hr.Stage; a function has no state")


def _rows(records: Records) -> list[Mapping[str, Any]]:
    return records.to_pylist() if isinstance(records, pa.Table | pa.RecordBatch) else list(records)
