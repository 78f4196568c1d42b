"""Limits that only a long run comes to, in short ones: what is to be right must be so whatever they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from headrace.track import agent

_LIMITS: Final[dict[str, tuple[int, ...]]] = {
    "track.local._KEPT_PROMISES": (0, 1, 4),
    "flow.substream_reports._MOST_ROWS": (1, 5),
    "flow.substream_reports._BUSY_RECORDS": (0, 1),
    "flow.substream_reports._WATCHED_FLUSHES": (1, 2),
    "flow.telling._FEW_ROWS": (0, 1, 3),
    "flow.regions._OFTEN": (1, 2),
    "flow.state_files._MOST_FILES": (1, 2, 3),
    "flow.state_files._LARGE": (64, 1000),
    "flow.pieces.MOST_RECORDS": (1, 2, 7),
    "flow.task.MOST_RECORDS": (1, 2, 7),
}


@contextmanager
def low_limits(seed: int) -> Iterator[None]:
    """Some of them, for every other seed or so."""
    rng = random.Random(f"limits {seed}")
    with ExitStack() as stack:
        if rng.random() < 0.5:
            for name in rng.sample(list(_LIMITS), rng.randint(0, len(_LIMITS))):
                stack.enter_context(patch(f"headrace.{name}", rng.choice(_LIMITS[name])))
            every = rng.choice((1, 2, 3, 5))
            stack.enter_context(patch.object(agent, "drop_every", lambda tasks: every))
        yield
