"""Drawing a flow: sources, stages and sinks, and the streams between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.checks import checked
from headrace.flow.drawing import (
    behaviour_of,
    check_plain,
    check_reading,
    checked_name,
    checked_node,
    checked_parallelism,
    checked_sides,
    on_error_of,
    with_reason,
)
from headrace.flow.explain import explain
from headrace.flow.graph import Graph, Input, Node, Ordering
from headrace.flow.io import Sink, Source
from headrace.flow.kafka_ends import KafkaSink, KafkaSource
from headrace.flow.kafka_topic import KafkaTopic
from headrace.flow.labelling import Labels
from headrace.flow.measured import measured_stages
from headrace.flow.operators import MAIN, Behaviour, Identity, Stage, listed
from headrace.flow.record_stages import Keyed
from headrace.flow.regions import Ends, ends_schema
from headrace.flow.routing import Key, Route, custom, forward, rebalance
from headrace.flow.substreams import FLUSH_S, Tracked, checked_tracking
from headrace.flow.substreams import Ends as EndsBy
from headrace.flow.synchronized import MESSAGES, Marked, Tree, beat_of, check_names, envelope, planned, to_worker
from headrace.measure.definition import MetricSet
from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import inputs_of
from headrace.synchronize.optimize import Optimizer
from headrace.synchronize.program import Program


@dataclass(frozen=True)
class Stream:
    """What a source or a stage gives: the input of others."""

    flow: Flow = field(repr=False, compare=False)
    node: str
    output: str = MAIN
    ordering: Ordering | None = None
    tracking: Tracked | None = None

    def ordered(self, by: str | None = None, *, wait_s: float | None = None) -> Stream:
        """In the order of the source, whatever the parallelism of the stages between: what reads it merges the paths.

        Every task of the stage or sink that reads it gets its records in order, exactly once. Several sources, or one
        with several tasks, have no order among them: give a column `by`, in whose order each of them is.

        `wait_s`: no record waits longer for those before it; a record that comes later than that leaves late, and is
        counted (`inversions` in the status of the task).
        """
        if wait_s is not None and not 0 < wait_s < 1e6:
            raise FlowError(f"{self.node}: ordered(wait_s={wait_s!r}): give seconds above 0, or leave it out")
        return replace(self, ordering=Ordering(by, wait_s))

    def tracked(
        self,
        by: str | Labels,
        *,
        ends: EndsBy | None = None,
        bound: Literal["soft", "firm"] = "soft",
        starts: bool = False,
        consistent: bool = False,
        agents: int = 1,
        flush_s: float = FLUSH_S,
        slack_s: float = 0.01,
    ) -> Stream:
        """Its readers are told when all of a substream has come, through whatever stages and loops.

        `by`          a column whose values tell substreams apart; or a function of a batch that gives a label for each
                      record, or True for those of one substream and False for all others; null belongs to none
        `ends`        who promises that no more will come: `hr.marker(column)`, `hr.rising()`, `hr.whenever()`; by
                      default a substream has ended when all sources have ended
        `bound`       "firm": records of later substreams wait until those before them have ended (for `hr.rising`)
        `starts`      starts are reported, too
        `consistent`  ends are reported in the order of starts, by coarse time (`slack_s`: how far clocks may differ);
                      or in the order of labels where they rise
        `agents`      how many tasks share the tracking
        `flush_s`     how long reports are gathered: longer means less traffic and later notices. A worker that takes
                      more than 32 records in that time, for 16 times as long, gathers for eight times as long

        A class of `hr.Stage` hears of ends by `on_ended(substream)`, and `flow.keyed` by `on_ended=`; `flow.ends` gives
        them as records.
        """
        if bound not in ("soft", "firm"):
            raise FlowError(f'{self.node}.tracked(bound={bound!r}): use "soft" or "firm"')
        asked = Tracked(
            by, EndsBy() if ends is None else ends, consistent, agents, flush_s, slack_s, bound == "firm", starts
        )
        return replace(self, tracking=checked_tracking(self.node, asked))

    def side(self, name: str) -> Stream:
        """One of the side outputs of the stage."""
        sides = self.flow.drawn(self.node).sides
        if name not in sides:
            known = f"it has {', '.join(sides)}" if sides else "it has none: give it sides={...}"
            raise FlowError(f"stage {self.node} has no side output {name}; {known}")
        return Stream(self.flow, self.node, name, self.ordering, self.tracking)


@dataclass(frozen=True)
class Loop(Stream):
    """A stream that goes round: what enters, and what is sent back."""

    def back(self, stream: Stream, route: Route | None = None) -> None:
        """Send a stream back to the start of the loop."""
        self.flow.close_loop(self.node, stream, route)


class Flow:
    """Stages joined by FIFO queues.

    ```python
    flow = hr.Flow("trades")
    raw = flow.source("capture", hr.kafka("capture", "broker:9092"))
    parsed = flow.stage("parse", parse, raw, parallelism=15)
    flow.sink("clean", parsed, hr.kafka("clean", "broker:9092"))
    job = flow.start(spark, at="/data/flows")
    ```
    """

    def __init__(self, name: str):
        self.name = checked_name("flow", name)
        self._nodes: dict[str, Node] = {}
        self._loops: set[str] = set()

    # ------------------------------------------------------------------- draw

    def source(self, name: str, source: Source | KafkaTopic, *, parallelism: int | None = None) -> Stream:
        """Where records come from. `parallelism` is how many tasks share the reading, if the source has no splits."""
        source = KafkaSource(source) if isinstance(source, KafkaTopic) else source
        if not isinstance(source, Source):
            raise FlowError(f"source {name}: {source!r} is no source; use hr.parquet_files, hr.kafka, hr.queue, ...")
        splits = source.splits()
        if splits is not None and parallelism not in (None, splits):
            raise FlowError(
                f"source {name}: it has {splits} splits, one task each; leave parallelism={parallelism} out"
            )
        count = checked_parallelism(name, parallelism if splits is None else splits)
        self._add(Node(name, count, source=source, schema=source.schema))
        return Stream(self, name)

    def stage(
        self,
        name: str,
        function: Callable[..., Any] | Callable[[], Stage],
        *streams: Stream,
        parallelism: int | None = None,
        route: Route | None = None,
        each: Literal["batch", "record"] = "batch",
        schema: pa.Schema | None = None,
        sides: Mapping[str, pa.Schema] | None = None,
        on_error: Literal["stop", "side"] = "stop",
        retries: int = 0,
        one_to_one: bool = False,
    ) -> Stream:
        """A function over record batches (or over records, `each="record"`), or a class of `hr.Stage` with state.

        `schema`      the columns that it gives; by default those it is given. A function over batches is asked, with an
                      empty batch
        `route`       how records come here; by default forward if the parallelism is the same, otherwise in turn
        `sides`       more outputs, by name, with their columns: `stream.side(name)` reads them
        `on_error`    "side" sends a record that the function raises for to the side output `errors`, with the reason
        `retries`     how often a function that raises is called again first
        `one_to_one`  a function over batches gives one record for each, in their order: a function that makes new
                      batches must say so if its output is to be ordered (`stream.ordered()`)
        """
        behaviour = behaviour_of(name, function, each, on_error_of(name, on_error, retries), one_to_one)
        known = self._schema_of_inputs(name, streams)
        given = checked_sides(name, sides or {})
        if on_error == "side":
            given["errors"] = with_reason(name, known)
        return self._stage(name, behaviour, streams, parallelism, route, schema, given)

    def keyed(
        self,
        name: str,
        function: Callable[[Any, dict[str, Any]], Any],
        *streams: Stream,
        by: str | tuple[str, ...],
        parallelism: int | None = None,
        initial: Any = None,
        on_ended: Callable[[Any, Any], Any] | None = None,
        schema: pa.Schema | None = None,
        on_error: Literal["stop", "side"] = "stop",
        retries: int = 0,
    ) -> Stream:
        """`function(state, record)` returns the new state of the record's key, and what to send on.

        The state is plain values: numbers, texts, times, lists, dicts; `None` forgets the key. It is `initial` for a
        new key. What to send on is a record, a list of records, or None.

        `on_ended(state, substream)`, if the stream is tracked by the very column of the keys, is called for keys that
        have a state when the substream has ended, and returns the same two things.
        """
        columns = (by,) if isinstance(by, str) else tuple(by)
        behaviour = Keyed(function, columns, initial, on_error_of(name, on_error, retries), on_ended)
        if on_ended is not None and any(not each.tracking or columns != (each.tracking.by,) for each in streams):
            raise FlowError(f"stage {name}: on_ended needs streams that are tracked by the column of its keys")
        known = self._schema_of_inputs(name, streams)
        sides = {"errors": with_reason(name, known)} if on_error == "side" else {}
        return self._stage(name, behaviour, streams, parallelism, Key(columns), schema, sides)

    def measure(
        self, name: str, metrics: MetricSet, *streams: Stream, parallelism: int | None = None, changeable: bool = False
    ) -> Stream:
        """Every record with its metrics (`hr.Metrics`), computed the moment it comes.

        Records go to tasks by the groups of the metrics. Metrics that cannot share groups, such as those by card and
        those by merchant, become stages one after the other, and a record leaves the last one with all answers. Records
        arrive in the order in which the queue of a task has them, whatever their times; `arrival=` does not change
        that. If the stream is `ordered()`, they arrive at every stage in the order of their source, whatever the
        parallelism.

        `changeable`: metrics can be added and removed while the flow runs (`job.add_metrics`). For this, each task
        gets a queue of its own, even where it could read the source itself.
        """
        if not isinstance(metrics, MetricSet):
            raise FlowError(f"{name}: metrics are an hr.Metrics, not a {type(metrics).__name__}")
        if metrics.backend != "columnar":
            raise FlowError(f'{name}: a flow keeps its state in memory; leave backend="{metrics.backend}" out')
        known = self._schema_of_inputs(name, streams)
        count = checked_parallelism(name, parallelism, self._default_parallelism(streams[0]))
        stages = measured_stages(name, metrics.definition, known, metrics.memory_bytes // count, metrics.keep_columns)
        for number, behaviour in enumerate(stages, 1):
            by = behaviour.stage.partitioner
            node = name if behaviour.is_last else f"{name}-{number}"
            tasks = count if by else 1
            # One task has all groups: it can be the very task that the records come from.
            route = Key(by) if tasks > 1 else rebalance() if changeable and number == 1 else None
            given = self._stage(node, behaviour, streams, tasks, route, behaviour.given, {})
            streams = (given if behaviour.is_last else replace(given, ordering=streams[0].ordering),)
        return streams[0]

    def synchronize(
        self,
        name: str,
        program: Program,
        *streams: Stream,
        time: str | None = None,
        tag: str | tuple[str, ...] | None = None,
        parallelism: int | None = None,
        rates: Mapping[Any, float] | None = None,
        optimizer: str | Optimizer = "by_rate",
        heartbeat: int | None = None,
    ) -> Stream:
        """What a sequential program (`hr.Program`) gives, run by a tree of workers, each of them a task.

        Events are taken by `time`. Those of one time are taken by their stream, in the order in which streams were
        drawn, and within a stream as they come. Along each task of a stream times must rise. If a stream falls silent,
        events that depend on it wait: records without a tag are heartbeats, which say that all events up to their time
        have come.

        `parallelism`  how many leaves the tree has at most; by default as many as its streams have tasks
        `rates`        how often each tag comes, in any unit; without it, what depends on itself is taken to be rare
        `optimizer`    "by_rate", "balanced", "sequential", or a function that makes the tree
        `heartbeat`    how far times go between two marks of how far a source has come, in their unit; by default 5 ms
                       for timestamps, otherwise 1
        """
        inputs = inputs_of(program, time, tag, None, None)
        known = self._schema_of_inputs(name, streams)
        inputs.check(known.names)
        check_names(program.name, known.names)
        counts = [self._nodes[stream.node].parallelism for stream in streams]
        plan = planned(program, inputs, checked_parallelism(name, parallelism, sum(counts)), rates, optimizer)
        beat, sources, arrows = beat_of(known, inputs, heartbeat), list[str](), []
        for number, (stream, count) in enumerate(zip(streams, counts, strict=True), 1):
            entry = f"{name}-in" if len(streams) == 1 else f"{name}-in-{number}"
            marked = Marked(plan, inputs, len(sources), beat, known)
            self._stage(entry, marked, (stream,), count, forward() if stream.ordering is None else None, None, {})
            sources += [f"{stream.node}.{task}" for task in range(count)]
            arrows.append(Input(entry, MAIN, custom(to_worker)))
        arrows.append(Input(name, MESSAGES, custom(to_worker), back=True))
        tree, sides = Tree(plan, tuple(sources), known, inputs.time, Codec(program)), {MESSAGES: envelope(known)}
        self._add(Node(name, len(plan.members), tuple(arrows), behaviour=tree, schema=program.outputs, sides=sides))
        self._loops.add(name)
        return Stream(self, name)

    def ends(self, name: str, stream: Stream) -> Stream:
        """The ends of the substreams of a tracked stream as records, `substream` and `event` ("end", or "start").

        A substream has ended when all of it has left the stage before and has come to all that read the tracked stream.
        """
        self._check_streams(name, (stream,))
        if stream.tracking is None:
            raise FlowError(f"{name}: {stream.node} is not tracked; say {stream.node}.tracked(by=...)")
        known = self._nodes[stream.node].schema_of(stream.output)
        problem = stream.tracking.problem(known)
        if problem is not None or known is None:
            raise FlowError(f"{name}: {stream.node}: {problem or 'its columns are not known'}")
        schema = ends_schema(stream.tracking.type_in(known))
        self._add(Node(name, 1, (_arrow(stream, rebalance()),), behaviour=Ends(), schema=schema))
        return Stream(self, name)

    def loop(self, name: str, *streams: Stream, parallelism: int | None = None, route: Route | None = None) -> Loop:
        """The start of a loop: `again = flow.loop("again", entry)`, and later `again.back(more)`."""
        self._stage(name, Identity(), streams, parallelism, route, None, {})
        self._loops.add(name)
        return Loop(self, name)

    def sink(
        self,
        name: str,
        stream: Stream,
        sink: Sink | KafkaTopic,
        *,
        parallelism: int | None = None,
        route: Route | None = None,
    ) -> None:
        """Where records go."""
        sink = KafkaSink(sink) if isinstance(sink, KafkaTopic) else sink
        if not isinstance(sink, Sink):
            raise FlowError(f"sink {name}: {sink!r} is no sink; use hr.parquet, hr.kafka, hr.queue or hr.callback")
        self._check_streams(name, (stream,))
        count = checked_parallelism(name, parallelism, self._default_parallelism(stream))
        self._add(Node(name, count, (_arrow(stream, route),), sink=sink))

    # ------------------------------------------------------------------ freeze

    def graph(self) -> Graph:
        """The flow as it is now, checked. Raises FlowError that names the stage and the fix."""
        return checked(Graph(self.name, tuple(self._nodes.values())), frozenset(self._loops))

    def explain(self, form: Literal["tree", "mermaid"] = "tree") -> str:
        """What will run: tasks, queues and routes, as a tree or as Mermaid text."""
        return explain(self.graph(), form)

    # ----------------------------------------------------------------- helpers

    def drawn(self, name: str) -> Node:
        return self._nodes[name]

    def close_loop(self, name: str, stream: Stream, route: Route | None) -> None:
        self._check_streams(name, (stream,))
        node = self._nodes[name]
        self._nodes[name] = replace(node, inputs=(*node.inputs, Input(stream.node, stream.output, route, back=True)))

    def _stage(
        self,
        name: str,
        behaviour: Behaviour,
        streams: tuple[Stream, ...],
        parallelism: int | None,
        route: Route | None,
        schema: pa.Schema | None,
        sides: dict[str, pa.Schema],
    ) -> Stream:
        known = self._schema_of_inputs(name, streams)
        count = checked_parallelism(name, parallelism, self._default_parallelism(streams[0]))
        check_reading(name, behaviour, [stream.tracking for stream in streams], route, count)
        given = schema if schema is not None else behaviour.schema(name, known)
        arrows = [_arrow(stream, route) for stream in streams]
        self._add(Node(name, count, tuple(arrows), behaviour=behaviour, schema=given, sides=sides))
        return Stream(self, name)

    def _default_parallelism(self, stream: Stream) -> int:
        """One task has all in one order; several have each their own."""
        return 1 if stream.ordering is not None else self._nodes[stream.node].parallelism

    def _schema_of_inputs(self, name: str, streams: tuple[Stream, ...]) -> pa.Schema:
        self._check_streams(name, streams)
        schemas = [self._nodes[stream.node].schema_of(stream.output) for stream in streams]
        for stream, schema in zip(streams, schemas, strict=True):
            if schema != schemas[0]:
                raise FlowError(
                    f"stage {name}: its inputs have different columns: {streams[0].node} gives {listed(schemas[0])}, "
                    f"{stream.node} gives {listed(schema)}; let a stage before it make them alike"
                )
        return schemas[0]

    def _check_streams(self, name: str, streams: tuple[Stream, ...]) -> None:
        if not streams:
            raise FlowError(f"stage {name} has no input; name the streams it reads, or use flow.source")
        for stream in streams:
            if not isinstance(stream, Stream):
                raise FlowError(f"{name}: its input must be what flow.source or flow.stage gave, not {stream!r}")
            if stream.flow is not self:
                raise FlowError(f"{name}: its input {stream.node} belongs to another flow, {stream.flow.name}")

    def _add(self, node: Node) -> None:
        checked_node(node.kind, node.name)
        check_plain(f"{node.kind} {node.name}", (node.schema, *node.sides.values()))
        if node.name in self._nodes:
            raise FlowError(f"{node.kind} {node.name}: there is a {self._nodes[node.name].kind} of this name already")
        self._nodes[node.name] = node


def _arrow(stream: Stream, route: Route | None) -> Input:
    return Input(stream.node, stream.output, route, ordering=stream.ordering, tracked=stream.tracking)
