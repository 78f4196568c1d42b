"""Errors of ours that were raised in a Python worker, and come back inside an exception of Spark's."""

from __future__ import annotations

import re
from typing import Final

# A worker's traceback ends in the error's qualified name and message; the JVM's own trace follows it.
_OURS: Final = re.compile(
    r"^\s*headrace\.errors\.(?P<type>[A-Za-z]+): (?P<message>.*?)(?=\n\s*\n|\n\s*at [\w.$]+\(|\n\S*Traceback|\Z)",
    re.DOTALL | re.MULTILINE,
)


def raised_in_a_worker(text: str) -> tuple[str, str] | None:
    """The name of the error's class, and its message; None where the text has none."""
    found = list(_OURS.finditer(text))
    return (found[-1]["type"], found[-1]["message"].rstrip()) if found else None
