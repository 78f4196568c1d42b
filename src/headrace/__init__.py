"""Headrace makes Spark streams exact, ordered, synchronized, complete and always on."""

from headrace.errors import (
    BindError,
    DefinitionError,
    EnvironmentProblem,
    HeadraceError,
    InputError,
    MeasureError,
    MetricOverflow,
    ParseError,
    QueryError,
    StateDamaged,
    StateError,
    StateMismatch,
)
from headrace.spark.metrics import Metrics

__version__ = "0.1.0"

__all__ = [
    "BindError",
    "DefinitionError",
    "EnvironmentProblem",
    "HeadraceError",
    "InputError",
    "MeasureError",
    "MetricOverflow",
    "Metrics",
    "ParseError",
    "QueryError",
    "StateDamaged",
    "StateError",
    "StateMismatch",
]
