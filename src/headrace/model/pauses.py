"""Python's search for garbage, kept short: it looks through all that is loaded, and nobody works meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def few_pauses() -> Iterator[None]:
    """What is loaded by now stays: to look through all of it for garbage stops a worker for 30 to 60 ms."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
