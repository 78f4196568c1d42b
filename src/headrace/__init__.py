"""Headrace makes Spark streams exact, ordered, synchronized, complete and always on."""

from headrace.errors import (
    BindError,
    DefinitionError,
    EnvironmentProblem,
    FlowError,
    FrameDamaged,
    HeadraceError,
    InputError,
    MeasureError,
    MetricOverflow,
    OrderBroken,
    ParseError,
    PlanError,
    ProgramError,
    ProgramInconsistent,
    QueryError,
    QueueDamaged,
    QueueError,
    QueueUnreachable,
    StageFailed,
    StateDamaged,
    StateError,
    StateMismatch,
    SubstreamBroken,
)
from headrace.flow.arrow_stages import from_arrow, to_arrow
from headrace.flow.epochs import snapshotted, starting_from, state_at, whole_epochs
from headrace.flow.json_stages import from_json, to_json
from headrace.flow.kafka_ends import kafka, kafka_queues
from headrace.flow.operators import Stage
from headrace.flow.pruned import PrunedStage
from headrace.flow.queue_ends import Receiver, Sender, queue
from headrace.flow.record_stages import side
from headrace.flow.routing import broadcast, custom, forward, key, rebalance, rescale, shuffle
from headrace.flow.sinks import callback, parquet
from headrace.flow.sources import generate, parquet_files, rate
from headrace.flow.substreams import marker, rising, whenever, windows
from headrace.flow.window_join import window_join
from headrace.spark.live import Flow
from headrace.spark.metrics import Metrics
from headrace.spark.ordered_query import order_query
from headrace.spark.ordered_rows import ordered
from headrace.spark.synchronized import synchronize
from headrace.spark.tracked_queries import link, track_queries
from headrace.synchronize.check import check
from headrace.synchronize.program import Program, fork, join

__version__ = "0.1.0"

__all__ = [
    "BindError",
    "DefinitionError",
    "EnvironmentProblem",
    "Flow",
    "FlowError",
    "FrameDamaged",
    "HeadraceError",
    "InputError",
    "MeasureError",
    "MetricOverflow",
    "Metrics",
    "OrderBroken",
    "ParseError",
    "PlanError",
    "Program",
    "ProgramError",
    "ProgramInconsistent",
    "PrunedStage",
    "QueryError",
    "QueueDamaged",
    "QueueError",
    "QueueUnreachable",
    "Receiver",
    "Sender",
    "Stage",
    "StageFailed",
    "StateDamaged",
    "StateError",
    "StateMismatch",
    "SubstreamBroken",
    "broadcast",
    "callback",
    "check",
    "custom",
    "fork",
    "forward",
    "from_arrow",
    "from_json",
    "generate",
    "join",
    "kafka",
    "kafka_queues",
    "key",
    "link",
    "marker",
    "order_query",
    "ordered",
    "parquet",
    "parquet_files",
    "queue",
    "rate",
    "rebalance",
    "rescale",
    "rising",
    "shuffle",
    "side",
    "snapshotted",
    "starting_from",
    "state_at",
    "synchronize",
    "to_arrow",
    "to_json",
    "track_queries",
    "whenever",
    "whole_epochs",
    "window_join",
    "windows",
]
