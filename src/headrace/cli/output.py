"""Writing results: part files by Spark into a folder beside the goal, which takes the goal's name when all is there.

A name that ends in .parquet or .csv becomes one file; any other name becomes a folder of part files.
A run that fails leaves nothing behind, and what was there before stays as it was.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.cli.source import is_remote
from headrace.errors import InputError
from headrace.spark.operator import column

FORMATS: Final = ("parquet", "csv")
_REJECTED: Final = ".rejected"
_CSV: Final = {
    "escape": '"',
    # Spark's own defaults cut microseconds, and blanks at both ends of a text.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}


@dataclass(frozen=True)
class Output:
    """Where results go, how they are written, and whether what is there may be replaced."""

    path: str
    format: str
    overwrite: bool = False

    @property
    def is_remote(self) -> bool:
        """Only Spark can write there; it becomes a folder of part files, as Spark does it."""
        return is_remote(self.path)

    @property
    def is_one_file(self) -> bool:
        """One file, not a folder of part files."""
        return not self.is_remote and Path(self.path.removesuffix(_REJECTED)).suffix.lower() in (
            ".parquet",
            ".pq",
            ".csv",
        )

    def rejected(self) -> Output:
        """The place beside it for records that cannot be measured."""
        return Output(self.path.rstrip("/") + _REJECTED, self.format, self.overwrite)


def find_output(path: str, said_format: str | None, overwrite: bool, input_path: str) -> Output:
    """Check, before any work, that results can be written to `path`."""
    suffix = Path(path).suffix.lower().lstrip(".")
    kind = (said_format or {"pq": "parquet"}.get(suffix, suffix) or "parquet").lower()
    if kind not in FORMATS:
        raise InputError(f"{path}: Headrace writes parquet or csv, not {kind}; name one with --output-format")
    output = Output(path, kind, overwrite)
    if not output.is_remote:
        _check_writable(path)
        _check_free(output, input_path)
        _check_free(output.rejected(), input_path)
    return output


def _check_writable(path: str) -> None:
    existing = next(folder for folder in Path(path).absolute().parents if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{path}: cannot be written: {existing} is not a folder that you may write to")


def _check_free(output: Output, input_path: str) -> None:
    goal = Path(output.path)
    if not is_remote(input_path) and _holds(goal.resolve(), Path(input_path).resolve()):
        raise InputError(f"{output.path}: the output would replace the input; choose another name")
    if not goal.exists():
        return
    if not output.overwrite:
        raise InputError(f"{output.path}: already exists; add --overwrite to replace it")
    if goal.is_dir() and not all(_is_ours(entry.name) for entry in goal.iterdir()):
        raise InputError(f"{output.path}: is a folder with other things in it, which --overwrite will not delete")


def _holds(goal: Path, place: Path) -> bool:
    return goal == place or goal in place.parents


def _is_ours(name: str) -> bool:
    return name.startswith(("part-", ".part-", "_SUCCESS", "._SUCCESS"))


def write(frame: DataFrame, output: Output) -> None:
    """Run the DataFrame and put its rows where `output` says."""
    prepared = _flat(frame) if output.format == "csv" else frame
    if output.is_remote:
        _save(prepared, output.path, output, header=True)
        return
    with _workplace(Path(output.path)) as parts:
        _save(prepared, str(parts.absolute()), output, header=not output.is_one_file)
        if output.is_one_file:
            _publish(_merged(parts, prepared.columns, output), Path(output.path))
        else:
            _publish(parts, Path(output.path))


def clear(output: Output) -> None:
    """Remove what an earlier run left there: nothing, where it may not be replaced."""
    if output.overwrite and not output.is_remote:
        _remove(Path(output.path))


def _save(frame: DataFrame, path: str, output: Output, *, header: bool) -> None:
    writer = frame.write.mode("overwrite" if output.overwrite else "errorifexists").format(output.format)
    if output.format == "csv":
        writer = writer.options(**_CSV, header=header)
    writer.save(path)


def _flat(frame: DataFrame) -> DataFrame:
    """CSV holds texts: lists and structures go in as JSON, bytes as base 64."""
    columns = []
    for field in frame.schema.fields:
        cell = column(field.name)
        if isinstance(field.dataType, T.ArrayType | T.StructType | T.MapType):
            cell = F.to_json(cell).alias(field.name)
        elif isinstance(field.dataType, T.BinaryType):
            cell = F.base64(cell).alias(field.name)
        columns.append(cell)
    return frame.select(columns)


@contextmanager
def _workplace(goal: Path) -> Iterator[Path]:
    """A folder that does not exist yet, on the disk of the goal; gone afterwards, whatever happens."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    place = goal.parent / f".{goal.name}.{os.getpid()}.writing"
    try:
        yield place
    finally:
        _remove(place)


def _merged(parts: Path, names: list[str], output: Output) -> Path:
    files = sorted(parts.glob("part-*"))
    merged = parts / "merged"
    if output.format == "csv":
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(names)
        with merged.open("wb") as stream:
            stream.write(header.getvalue().encode())
            for file in files:
                with file.open("rb") as part:
                    shutil.copyfileobj(part, stream)
        return merged
    with pq.ParquetWriter(merged, pq.read_schema(files[0]), compression="snappy") as writer:
        for file in files:
            with pq.ParquetFile(file) as part:
                for batch in part.iter_batches(batch_size=1 << 18):
                    writer.write_batch(batch)
    return merged


def _publish(made: Path, goal: Path) -> None:
    """Give what was made the name of the goal; what had that name goes only when the new one is in place."""
    old = goal.parent / f".{goal.name}.{os.getpid()}.old"
    if goal.exists():
        goal.rename(old)
    made.rename(goal)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
