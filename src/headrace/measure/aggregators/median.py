"""median(x): the middle value, or the mean of the two in the middle, as a double."""

from __future__ import annotations

from headrace.measure.quantile import Quantile, quantile_type
from headrace.model.signature import Signature


class Median(Quantile):
    signature = Signature(
        name="median", result_type=lambda type: quantile_type("median", type), about="the middle value of x"
    )

    @property
    def fraction(self) -> float:
        return 0.5
