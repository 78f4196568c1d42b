"""A set of metrics and the columns that give their events time, identity and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast, runtime_checkable

import pyarrow as pa

from headrace.errors import BindError, DefinitionError
from headrace.language import (
    BoundMetric,
    Statement,
    bind,
    default_name,
    find_function,
    format_statements,
    parse,
)
from headrace.language.names import did_you_mean, listed
from headrace.language.nodes import Item
from headrace.language.type_names import spark_name
from headrace.measure.explain import explain_plan
from headrace.measure.functions import FUNCTIONS
from headrace.measure.plan import Plan, make_plan
from headrace.measure.policy import Policy
from headrace.measure.reservoir import MEMORY_BYTES
from headrace.measure.task import TaskSettings
from headrace.model.signature import Parameter

STREAM_CHUNK_EVENTS: Final = 1 << 14
"""A stream has many shards, each with chunks of its own: small ones."""


@dataclass(frozen=True)
class Definition:
    """`text` in the metric language over one stream; `time`, `id` and `arrival` name columns.

    Arrival order is the order of `arrival`, then `time`, then `id`, then of all columns the metrics read:
    the answers depend on the data alone.
    """

    text: str
    time: str
    id: str | None = None
    arrival: str | None = None
    stream: str | None = None
    policy: Policy = field(default_factory=Policy)
    status: str | None = None
    """The name of a column that says what became of each row, if it is wanted."""
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    """Names of metrics that came to, or left, a stream that has been running."""
    statements: tuple[Statement, ...] = field(init=False, compare=False)
    names: tuple[str, ...] = field(init=False, compare=False)
    """The names of the metrics, in the order of the text."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DefinitionError(f"the metrics must be a text, not {type(self.text).__name__}")
        if not self.time or not isinstance(self.time, str):
            raise DefinitionError("time= must name the column that holds the time of an event")
        object.__setattr__(self, "statements", self._of_one_stream(parse(self.text)))
        # What can be wrong with a text is said at once, not only when there is data.
        object.__setattr__(self, "names", tuple(metric.name for metric in sketch(self.statements, self.text)))

    def _of_one_stream(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        streams = list(dict.fromkeys(statement.stream for statement in statements))
        if self.stream is None:
            if len(streams) > 1:
                raise DefinitionError(
                    f"the text has metrics over {len(streams)} streams ({', '.join(streams)}), a DataFrame is one: "
                    f'choose it with stream="{streams[0]}"'
                )
            return statements
        if self.stream not in streams:
            raise DefinitionError(f"no metric is over stream {self.stream}; the text has {', '.join(streams)}")
        return tuple(statement for statement in statements if statement.stream == self.stream)

    def bind(self, schema: pa.Schema) -> tuple[BoundMetric, ...]:
        """Check every name and type against the data's schema."""
        self._check_columns(schema)
        return bind(self.statements, self.text, schema, FUNCTIONS, self.time)

    def plan(self, schema: pa.Schema) -> Plan:
        return make_plan(self.bind(schema), self.added)

    def adding(self, text: str) -> Definition:
        """With the metrics of another text: they come to a stream that has been running without them."""
        joined = replace(self, text=f"{self.text.rstrip().rstrip(';')};\n{text}")
        new = frozenset(joined.names) - frozenset(self.names)
        return replace(joined, added=self.added | new, removed=self.removed - new)

    def removing(self, name: str) -> Definition:
        """Without the metric of this name."""
        if name not in self.names:
            hint = did_you_mean(name, self.names) or f"there are {listed(self.names, 20)}"
            raise DefinitionError(f"there is no metric {name} to remove; {hint}")
        if len(self.names) == 1:
            raise DefinitionError(f"{name} is the only metric; stop the query instead")
        names, left = iter(self.names), []
        for statement in self.statements:
            items = tuple(item for item in statement.items if next(names) != name)
            if items:
                left.append(replace(statement, items=items))
        return replace(self, text=format_statements(left), added=self.added - {name}, removed=self.removed | {name})

    def settings(
        self, memory_bytes: int = MEMORY_BYTES, *, schema: pa.Schema | None = None, columns: Sequence[str] = ()
    ) -> TaskSettings:
        """What a task is told beside its metrics: of a stream where a schema is given, else of a batch.

        A stream remembers `columns` for metrics to come. A batch has all events at hand: none is too old for it.
        """
        common: dict[str, Any] = {
            "time": self.time,
            "id": self.id,
            "arrival": self.arrival,
            "memory_bytes": memory_bytes,
        }
        if schema is not None:
            kept = {name: schema.field(name).type for name in columns}
            return TaskSettings(
                **common, may_be_late=True, policy=self.policy, chunk_events=STREAM_CHUNK_EVENTS, kept=kept
            )
        plain = self.status is None and self.policy.late == "accept" and (self.id is None or self.policy.dedup is None)
        policy = None if plain else replace(self.policy, keep=None)
        return TaskSettings(**common, may_be_late=self.arrival is not None, policy=policy)

    def explain(self, schema: pa.Schema | None = None) -> str:
        """The plan as a tree; with a schema, checked against it and with types."""
        if schema is not None:
            return explain_plan(self.plan(schema), self.time, self.id, self.arrival, self.policy, typed=True)
        plan = make_plan(sketch(self.statements, self.text))
        return explain_plan(plan, self.time, self.id, self.arrival, self.policy, typed=False)

    def _check_columns(self, schema: pa.Schema) -> None:
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice:
            raise DefinitionError(f"column {twice[0]} is in the data more than once; rename or drop one of them")
        for role, name in (("time", self.time), ("id", self.id), ("arrival", self.arrival)):
            if name is not None and name not in schema.names:
                hint = did_you_mean(name, schema.names) or f"it has {listed(schema.names, 20)}"
                raise DefinitionError(f"{role} column {name} is not in the data; {hint}")
        type = schema.field(self.time).type
        if not (pa.types.is_timestamp(type) or pa.types.is_date(type)):
            raise DefinitionError(
                f"time column {self.time} is {spark_name(type)}, not a time; convert it first, for example with "
                f"to_timestamp({self.time}) for text, timestamp_millis({self.time}) for epoch milliseconds"
            )
        for role, name in (("id", self.id), ("arrival", self.arrival)):
            if name is not None and pa.types.is_nested(schema.field(name).type):
                raise DefinitionError(f"{role} column {name} is {schema.field(name).type}, which has no order")


@runtime_checkable
class MetricSet(Protocol):
    """A definition, and how its state is kept: what the hosts take."""

    definition: Definition
    memory_bytes: int
    keep_columns: tuple[str, ...]
    backend: str


def sketch(statements: tuple[Statement, ...], text: str) -> tuple[BoundMetric, ...]:
    """Metrics without types: what can be said of a text before there is data.

    Raises BindError for aggregations that do not exist, and for two metrics of a stream with one name.
    """
    metrics = []
    taken: set[tuple[str, str]] = set()
    for statement in statements:
        for item in statement.items:
            metric = _sketch_item(item, statement, text)
            if (statement.stream, metric.name.lower()) in taken:
                problem = f"a metric cannot be called {metric.name}: another metric has that name"
                raise BindError(problem, text, item.at, "give it another name: AS other_name")
            taken.add((statement.stream, metric.name.lower()))
            metrics.append(metric)
    return tuple(metrics)


def _sketch_item(item: Item, statement: Statement, text: str) -> BoundMetric:
    return BoundMetric(
        name=item.name or default_name(item, statement),
        function=find_function(item, FUNCTIONS, text),
        argument=item.args[0] if item.args else None,
        argument_type=pa.null() if item.args else None,
        parameters=tuple(cast(Parameter, getattr(arg, "value", None)) for arg in item.args[1:]),
        where=statement.where,
        group_by=tuple(column.name for column in statement.group_by),
        window=statement.window,
        type=pa.null(),
    )
