"""Members of gangs, in threads of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.spark.meeting import Roll

HERE: Final = "127.0.0.1"
OTHER_SECRET: Final = b"t" * 32


class Secret:
    """Each test has its own (`conftest.py`): ports follow from it, and nobody of another test may be there."""

    own = b""


def nobody(place: str) -> Sequence[str]:
    raise AssertionError("Spark was asked")


def roll(
    task: int, size: int, gather: Callable[[str], Sequence[str]] = nobody, secret: bytes | None = None, start: str = "1"
) -> Roll:
    return Roll(task, size, secret or Secret.own, [HERE] * size, gather, start)
