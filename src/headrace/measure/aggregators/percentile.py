"""percentile(x, p): the value below which the share p of the values lies, interpolated as Spark does."""

from __future__ import annotations

from headrace.measure.quantile import Quantile, quantile_type
from headrace.model.signature import Parameter, Signature


def _check(p: Parameter) -> str | None:
    return None if 0 <= p <= 1 else f"the share must be between 0 and 1, not {p}; for the 90th percentile write 0.9"


class Percentile(Quantile):
    signature = Signature(
        name="percentile",
        result_type=lambda type: quantile_type("percentile", type),
        parameters=("p",),
        check_parameter=_check,
        about="the value below which the share p (0 to 1) of the values of x lies",
    )
