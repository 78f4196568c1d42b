"""From an exception to what a person reads: a message, and the exit code that goes with it.

2: something the person can mend (the metric text, an argument, a file). 1: something we did not expect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError
from headrace.spark.raised import raised_in_a_worker

MENDABLE: Final = 2
UNEXPECTED: Final = 1
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Problem:
    """What to print on stderr, and how to exit."""

    message: str
    exit_code: int


def problem_of(error: BaseException) -> Problem:
    """The problem behind an exception, told without a traceback."""
    if isinstance(error, HeadraceError):
        return Problem(str(error), MENDABLE)
    if isinstance(error, KeyboardInterrupt):
        return Problem("stopped", INTERRUPTED)
    if isinstance(error, OSError) and error.filename is not None:
        return Problem(f"{error.filename}: {(error.strerror or 'cannot be used').lower()}", MENDABLE)
    text = str(error)
    raised = raised_in_a_worker(text)
    if raised is not None:
        return Problem(raised[1], MENDABLE)
    return _refused_by_spark(text) or _unexpected(error, text)


# Spark's error classes that blame the data or its place, not the program.
_REFUSED: Final = re.compile(
    r"\[(?P<condition>FAILED_READ_FILE|PATH_NOT_FOUND|PATH_ALREADY_EXISTS|UNABLE_TO_INFER_SCHEMA|CANNOT_READ_FILE_FOOTER"
    r"|MALFORMED_CSV_RECORD|MALFORMED_RECORD_IN_PARSING|DATA_SOURCE_NOT_FOUND|CANNOT_PARSE_DATETIME"
    r"|INVALID_DATETIME_PATTERN|INCONSISTENT_BEHAVIOR_CROSS_VERSION|UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE)"
    r"[.\w]*\]\s*(?P<message>[^\n]*)"
)


def _refused_by_spark(text: str) -> Problem | None:
    found = _REFUSED.search(text)
    return Problem(f"Spark: {_without_state(found['message'])}", MENDABLE) if found else None


def _unexpected(error: BaseException, text: str) -> Problem:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    detail = _without_state(lines[0] if len(lines) == 1 else _telling_line(lines)) if lines else ""
    name = type(error).__name__
    return Problem(
        f"something unexpected happened: {name}{': ' + detail if detail else ''}\n"
        "run the same command with --debug to see the whole story",
        UNEXPECTED,
    )


def _telling_line(lines: list[str]) -> str:
    """The line that says most: the innermost cause of a Java trace, else the first line."""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return causes[-1].removeprefix("Caused by: ") if causes else lines[0]


def _without_state(message: str) -> str:
    return re.sub(r"\s*SQLSTATE: \w+\s*$", "", message).strip()
