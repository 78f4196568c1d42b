"""prev(x): x of the newest counted event but one in the window, null if it is null there or there is none."""

from __future__ import annotations

from headrace.measure.aggregator import same_type
from headrace.measure.newest import Newest
from headrace.model.signature import Signature


class Prev(Newest):
    signature = Signature(name="prev", result_type=same_type, about="x of the newest event but one in the window")
    rank = 1
