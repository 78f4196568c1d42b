"""What a person is told of a function: its name; of one that raised the stage, the record, the line."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.errors import StageFailed

RAISED: Final = (Exception, SystemExit)
"""What a function of a user may raise. A `sys.exit()` in it is not meant for the worker that calls it."""
_SHOWN: Final = 300
_NOT_THEIRS: Final = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")


def stage_failed(stage: str, error: BaseException, record: str) -> StageFailed:
    return StageFailed(stage, problem_of(error), record, place_of(error))


def problem_of(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # of the user's class; or a number of thousands of digits
        text = f"a {type(value).__name__}, which cannot be shown ({type(error).__name__})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def place_of(error: BaseException) -> str:
    """The innermost line that is the user's: not ours, not of an installed package."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(_NOT_THEIRS) and "site-packages" not in f.filename]
    if not (theirs or frames):
        return "an unknown line"
    at = (theirs or frames)[-1]
    return f"{at.filename}, line {at.lineno}, in {at.name}" + (f": {at.line}" if at.line else "")


def name_of(function: Callable[..., Any]) -> str:
    """As its author knows it."""
    name = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return name
    try:
        line = inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return "a lambda"
    return f"the lambda of line {line}"
