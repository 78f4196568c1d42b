"""Finding the data a person named, and looking at it before Spark is started: cheap checks, clear words."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.cli.query import did_you_mean
from headrace.errors import InputError

FORMATS: Final = ("parquet", "csv", "json")
_EXTENSIONS: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_PARQUET_MAGIC: Final = (b"PAR1", b"PARE")


@dataclass(frozen=True)
class Source:
    """Data that is there and looks like its format. `files` is empty where only Spark can look (`s3a://…`)."""

    path: str
    format: str
    files: tuple[Path, ...] = ()

    @property
    def location(self) -> str:
        """The path as Spark needs it: its JVM may stand in another folder than we do."""
        return self.path if is_remote(self.path) else os.path.abspath(self.path)

    @property
    def separator(self) -> str:
        """What parts the fields of a CSV file: a tab in .tsv files, else a comma."""
        names = [str(file) for file in self.files] or [self.path]
        return "\t" if _bare(names[0]).endswith(".tsv") else ","

    @property
    def is_json_array(self) -> bool:
        """One JSON array over many lines, instead of one object a line."""
        return self.format == "json" and bool(self.files) and _first_character(self.files[0]) == b"["


def find_source(path: str, said_format: str | None) -> Source:
    """The data at `path`: a file, a folder of part files, or a pattern such as `day-*.csv`."""
    if said_format is not None and said_format.lower() not in FORMATS:
        raise InputError(f"--input-format {said_format}: Headrace reads {_listed(FORMATS)}")
    if is_remote(path):
        return Source(path, (said_format or _format_of([path], path)).lower())
    files = _files_at(path)
    kind = (said_format or _format_of([str(file) for file in files], path)).lower()
    with_content = tuple(file for file in files if file.stat().st_size > 0)
    if not with_content:
        raise InputError(f"{path}: is empty (0 bytes){_EMPTY_HINT[kind]}")
    for file in with_content:
        _check_content(file, kind)
    return Source(path, kind, with_content)


def is_remote(path: str) -> bool:
    """A place that only Spark can look at, such as `s3a://bucket/payments`."""
    return "://" in path


_EMPTY_HINT: Final = {
    "parquet": "; a Parquet file without rows still has a footer: was the copy cut short?",
    "csv": "; a CSV file needs at least its header line",
    "json": "; a JSON file needs at least one object",
}


def _files_at(path: str) -> tuple[Path, ...]:
    place = Path(path)
    if place.is_dir():
        files = tuple(_part_files(place))
        if not files:
            raise InputError(f"{path}: there are no data files in this folder")
        return files
    if place.exists():
        return (place,)
    matches = tuple(Path(match) for match in sorted(glob.glob(path)))
    if not matches:
        raise InputError(f"{path}: there is no such file or folder{did_you_mean(place)}")
    return tuple(file for match in matches for file in (_part_files(match) if match.is_dir() else (match,)))


def _part_files(folder: Path) -> Iterable[Path]:
    """The data files below a folder, as Spark sees them: names that start with _ or . do not count."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith(("_", ".")))


def _format_of(names: list[str], path: str) -> str:
    kinds = {_EXTENSIONS.get(Path(_bare(name)).suffix.lower()) for name in names}
    if len(kinds) > 1:
        raise InputError(f"{path}: has files of several kinds; name one with --input-format ({_listed(FORMATS)})")
    kind = kinds.pop()
    if kind is None:
        raise InputError(f"{path}: cannot tell the format from the name; add --input-format ({_listed(FORMATS)})")
    return kind


def _check_content(file: Path, kind: str) -> None:
    with file.open("rb") as stream:
        head = stream.read(4096)
        stream.seek(max(0, file.stat().st_size - 4))
        tail = stream.read(4)
    is_parquet = head[:4] in _PARQUET_MAGIC
    if kind == "parquet":
        if not is_parquet:
            raise InputError(f"{file}: is not a Parquet file; if it is CSV or JSON, say so with --input-format")
        if tail not in _PARQUET_MAGIC or file.stat().st_size < 12:
            raise InputError(f"{file}: is a damaged Parquet file: its end is missing; was the copy cut short?")
    elif is_parquet:
        raise InputError(f"{file}: is a Parquet file; read it with --input-format parquet")
    elif not str(file).lower().endswith(_COMPRESSED):
        _check_text(file, kind, head)


def _check_text(file: Path, kind: str, head: bytes) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{file}: is written in UTF-16; save it as UTF-8")
    if b"\0" in head:
        raise InputError(f"{file}: is not a {kind.upper()} file: it has NUL bytes")
    if kind == "json" and _first_character(file) not in (b"{", b"["):
        raise InputError(
            f"{file}: is not a JSON file: it does not start with an object; is it CSV? (--input-format csv)"
        )


def _first_character(file: Path) -> bytes:
    if str(file).lower().endswith(_COMPRESSED):
        return b"{"  # cannot be seen from here; one object a line is what compressed files hold
    with file.open("rb") as stream:
        return stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def _bare(name: str) -> str:
    """The name without the ending of a compression."""
    lowered = name.lower()
    for ending in _COMPRESSED:
        lowered = lowered.removesuffix(ending)
    return lowered


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
