"""The aggregations, one a file, all behind `aggregator.Aggregator`."""

from headrace.measure.aggregator import Aggregator
from headrace.measure.aggregators.avg import Avg
from headrace.measure.aggregators.count import Count
from headrace.measure.aggregators.count_distinct import CountDistinct
from headrace.measure.aggregators.first import First
from headrace.measure.aggregators.last import Last
from headrace.measure.aggregators.max import Max
from headrace.measure.aggregators.median import Median
from headrace.measure.aggregators.min import Min
from headrace.measure.aggregators.percentile import Percentile
from headrace.measure.aggregators.prev import Prev
from headrace.measure.aggregators.std_dev import StdDev
from headrace.measure.aggregators.sum import Sum
from headrace.measure.aggregators.top_k import TopK

AGGREGATORS: tuple[type[Aggregator], ...] = (
    Count,
    Sum,
    Avg,
    StdDev,
    Min,
    Max,
    First,
    Last,
    Prev,
    CountDistinct,
    Median,
    Percentile,
    TopK,
)

__all__ = ["AGGREGATORS", "Aggregator"]
