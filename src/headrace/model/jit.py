"""The one way Headrace compiles a hot loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.uint8]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Word: TypeAlias = Any
"""A scalar inside a kernel: 64 bits, signed or not, which Python's int cannot say."""

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile on first use and keep the machine code on disk, so that a new Spark worker only loads it.

    Kernels take int64 and uint8 arrays only: one signature each, hence one compilation each.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No folder to keep machine code in (a read-only or zipped install without a home): each process compiles.
        return cast(F, numba.njit(nogil=True)(function))


def grown(array: npt.NDArray[Any], size: int, fill: int = 0) -> npt.NDArray[Any]:
    """The array, or a copy at least `size` long along its first axis, doubling so that growth is amortised."""
    have = len(array)
    if size <= have:
        return array
    bigger = np.full((max(size, 2 * have, 64), *array.shape[1:]), fill, dtype=array.dtype)
    bigger[:have] = array
    return bigger
