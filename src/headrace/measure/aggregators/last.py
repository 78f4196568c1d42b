"""last(x): x of the newest counted event in the window, null if it is null there."""

from __future__ import annotations

from headrace.measure.aggregator import same_type
from headrace.measure.newest import Newest
from headrace.model.signature import Signature


class Last(Newest):
    signature = Signature(name="last", result_type=same_type, about="x of the newest event in the window")
    rank = 0
