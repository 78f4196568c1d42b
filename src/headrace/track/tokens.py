"""Tokens: a word for each record that is sent. Whoever sends it and whoever receives it reckon the same word, and
the exclusive or of all words that were sent and received is zero when all that was sent has been received.

A token derives from where a record is, its channel and its number there: a task that starts again sends the same
records under the same numbers, and so under the same tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.model.jit import kernel

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@kernel
def mixed(value: Any) -> Any:
    """The finalizer of splitmix64: every bit of the value is in every bit of the word."""
    z = (value ^ (value >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@kernel
def token(channel: Any, number: Any) -> Any:
    """Of one record. Never zero."""
    found = mixed(mixed(np.uint64(channel) + _GOLDEN) ^ (np.uint64(number) * _GOLDEN))
    return found if found else _GOLDEN


def tokens_from(channel: int, first: int, count: int) -> Words:
    """Of records of a channel that follow one another."""
    found: Words = np.empty(count, np.uint64)
    _tokens_from(channel, first, found)
    return found


@kernel
def _tokens_from(channel: Any, first: Any, found: Any) -> None:
    for at in range(len(found)):
        found[at] = token(channel, first + at)
