"""What the language must know of an aggregation to check a text before any data moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

Parameter: TypeAlias = int | float


@dataclass(frozen=True)
class Signature:
    """One aggregation function as seen from the language.

    - `name`: the spelling we print (`stdDev`); texts may use any case and any of `aliases`.
    - `arguments`: how many value expressions it takes: 0 or 1. `count` has both forms, so it is `(0, 1)`.
    - `parameters`: the constants after the value (`percentile(x, 0.9)`), by name.
    - `check_parameter`: returns the problem with a constant as a sentence, or None.
    - `result_type`: the type of the answer for an argument type (None for `count(*)`), or the problem as a
      sentence, such as "sum needs a number, not string".
    """

    name: str
    result_type: Callable[[pa.DataType | None], pa.DataType | str]
    arguments: tuple[int, ...] = (1,)
    aliases: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    check_parameter: Callable[[Parameter], str | None] | None = None
    about: str = ""
