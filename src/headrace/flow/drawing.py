"""What is given to draw a flow with, checked: names, numbers, functions and columns."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.batch_stages import ForBatch
from headrace.flow.operators import STOP, Behaviour, OnError, Stage
from headrace.flow.record_stages import ForRecord
from headrace.flow.routing import Route
from headrace.flow.substreams import Tracked
from headrace.flow.window_join import WindowJoin

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}")
_RESERVED: Final = "headrace-"


def behaviour_of(name: str, function: Any, each: str, on_error: OnError, one_to_one: bool) -> Behaviour:
    if each not in ("batch", "record"):
        raise FlowError(f'stage {name}: each={each!r}; use "batch" or "record"')
    if isinstance(function, type) and issubclass(function, Stage):
        if inspect.isabstract(function):
            raise FlowError(f"stage {name}: class {function.__name__} has no on_batch(self, batch); write one")
        if on_error != STOP:
            raise FlowError(f"stage {name}: on_error and retries are for functions; a class of hr.Stage catches itself")
        return ForBatch(function, on_error, is_class=True)
    if one_to_one and each == "record":
        raise FlowError(
            f"stage {name}: one_to_one is for functions over batches; of records it is known what they give"
        )
    if not callable(function):
        raise FlowError(f"stage {name}: {function!r} is neither a function nor a class of hr.Stage")
    if each == "record":
        return ForRecord(function, on_error)
    return ForBatch(function, on_error, one_to_one=one_to_one or getattr(function, "one_to_one", False) is True)


def check_reading(
    name: str, behaviour: Behaviour, tracked: Sequence[Tracked | None], route: Route | None, tasks: int
) -> None:
    """Raises FlowError where a stage is not told what it needs to know of substreams, or not given what belongs to it.

    `tracked`: how its inputs are.
    """
    if not isinstance(behaviour, ForBatch) or not behaviour.is_class:
        return
    kind, asked = cast(type[Stage], behaviour.function), [each for each in tracked if each is not None]
    problem = kind.reading_problem(tracked, route, tasks) if issubclass(kind, WindowJoin) else None
    if problem is not None:
        raise FlowError(f"stage {name}: {kind.__name__} {problem}")
    for method, needs, is_called in (
        ("on_ended", "stream.tracked(by=...)", bool(asked)),
        ("on_started", "stream.tracked(by=..., starts=True)", any(each.starts for each in asked)),
    ):
        if getattr(kind, method) is not getattr(Stage, method) and not is_called:
            raise FlowError(f"stage {name}: {kind.__name__} has {method}, which nobody would call; let it read {needs}")


def on_error_of(name: str, policy: str, retries: int) -> OnError:
    if policy not in ("stop", "side"):
        raise FlowError(f'stage {name}: on_error={policy!r}; use "stop" or "side"')
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise FlowError(f"stage {name}: retries={retries!r}; use a number from 0 on")
    return OnError(policy, retries)


def checked_sides(name: str, sides: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    for side, schema in sides.items():
        checked_node(f"stage {name}: side output", side)
        if not isinstance(schema, pa.Schema):
            raise FlowError(f"stage {name}: side output {side} needs its columns, a pa.schema, not {schema!r}")
    return dict(sides)


def with_reason(name: str, schema: pa.Schema) -> pa.Schema:
    if "reason" in schema.names:
        raise FlowError(
            f'stage {name}: with on_error="side" records get a column reason, and they have one already; rename it'
        )
    return schema.append(pa.field("reason", pa.string()))


def checked_name(kind: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FlowError(f"{kind} name {name!r}: a name is up to 60 letters, digits, - and _, and begins with a letter")
    return name


def checked_node(kind: str, name: str) -> str:
    """A name that a stage or an output of one may have."""
    if checked_name(kind, name).startswith(_RESERVED):
        raise FlowError(
            f"{kind} name {name!r}: names that begin with {_RESERVED} are those of Headrace; take another one"
        )
    return name


def check_plain(what: str, schemas: Iterable[pa.Schema | None]) -> None:
    """Raises FlowError where a column is of codes: frames have plain columns."""
    for schema in schemas:
        coded = [entry.name for entry in schema or () if pa.types.is_dictionary(entry.type)]
        if coded:
            raise FlowError(
                f"{what}: column {coded[0]} is dictionary-encoded, and frames have plain columns; give it as plain "
                f"values, for example column.dictionary_decode()"
            )


def checked_parallelism(name: str, parallelism: int | None, default: int = 1) -> int:
    count = default if parallelism is None else parallelism
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 10_000:
        raise FlowError(f"{name}: parallelism must be a number from 1 to 10000, not {parallelism!r}")
    return count
