"""Reading the metric text: from a file or from standard input, as text that a person wrote."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from headrace.errors import InputError

STDIN: Final = "-"
_LARGEST: Final = 16 * 1024 * 1024
"""More than this is not read at all; the language has a limit of its own, far below."""


def read_query(file: str) -> str:
    """The text of FILE. Raises InputError for what is not there, and for what is not text."""
    name = "standard input" if file == STDIN else file
    content = _bytes_of(file)
    if len(content) > _LARGEST:
        raise InputError(f"{name}: larger than {_LARGEST >> 20} MB, which no metric text is; is it the data? (--input)")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name}: is written in UTF-16; save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: not text: byte {error.start + 1} is no UTF-8. FILE is the metric text; data goes to --input"
        ) from None
    if "\0" in text:
        raise InputError(f"{name}: not text: it has NUL characters. FILE is the metric text; data goes to --input")
    return text


def _bytes_of(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read(_LARGEST + 1)
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{file}: is a folder; give the file with the metric text")
    if not path.exists():
        raise InputError(f"{file}: there is no such file{did_you_mean(path)}")
    with path.open("rb") as stream:
        return stream.read(_LARGEST + 1)


def did_you_mean(path: Path) -> str:
    """A hint with the name in the same folder that is nearest to one that is not there, or nothing."""
    folder = path.parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    near = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"\nhint: did you mean {folder / near[0]}?" if near else ""
