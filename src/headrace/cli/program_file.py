"""A program from a Python file, and a sample of its events from a data file. Without Spark."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import traceback
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.cli.query import did_you_mean
from headrace.cli.source import Source, find_source
from headrace.errors import HeadraceError, InputError, ProgramError
from headrace.model.failures import RAISED
from headrace.synchronize.program import Program

_MOST_ROWS: Final = 100_000
"""Of the first file: a sample."""


def load_program(file: str, name: str | None) -> Program:
    """The program that a file defines; by its name, where there are several."""
    module = _loaded(Path(file))
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Program) and not inspect.isabstract(value)
    }
    own = {key: value for key, value in found.items() if value.__module__ == module.__name__}
    listed = ", ".join(own or found)
    if not found:
        raise InputError(f"{file} has no program; it needs a class that is a hr.Program, with init and update")
    if name is not None and name not in found:
        raise InputError(f"{file} has no program {name}; it has {listed}")
    if name is None and len(own or found) > 1:
        raise InputError(f"{file} has several programs, {listed}; say which with --class {listed.split(', ')[0]}")
    kind = found[name] if name is not None else next(iter((own or found).values()))
    try:
        return kind()
    except HeadraceError:
        raise
    except RAISED as error:
        raise ProgramError(
            kind.__name__, f"it cannot be made ({error}); give the arguments of its __init__ defaults"
        ) from error


def _loaded(path: Path) -> ModuleType:
    if path.is_dir():
        raise InputError(f"{path}: this is a folder; name the file with the program")
    if not path.is_file():
        raise InputError(f"{path}: there is no such file{did_you_mean(path)}")
    spec = importlib.util.spec_from_file_location(f"headrace_program_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by its name.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except RAISED as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f", line {line}" if line else ""
        raise InputError(f"{path}{where}: {type(error).__name__}: {error}") from error
    return module


def read_sample(path: str, said_format: str | None) -> pa.Table:
    """The first events of a Parquet, CSV or JSON file, or of the first of several."""
    source = find_source(path, said_format)
    if not source.files:
        raise InputError(f"{path}: a sample is read from this machine; copy some of the events to a file")
    try:
        return _read(source, source.files[0])
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path}: it cannot be read as {source.format}: {error}") from error


def _read(source: Source, file: Path) -> pa.Table:
    if source.format == "parquet":
        with pq.ParquetFile(file) as parquet:
            batches = list(islice(parquet.iter_batches(_MOST_ROWS), 1))
            return pa.Table.from_batches(batches, schema=parquet.schema_arrow)
    if source.format == "csv":
        options = pa_csv.ParseOptions(delimiter=source.separator)
        return pa_csv.read_csv(file, parse_options=options).slice(0, _MOST_ROWS)
    with file.open(encoding="utf-8-sig") as lines:
        rows = json.load(lines) if source.is_json_array else _lines(islice(lines, _MOST_ROWS))
    return pa.Table.from_pylist(rows[:_MOST_ROWS], _schema_of(rows)) if rows else pa.table({})


def _lines(lines: islice[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines if line.strip()]


def _schema_of(rows: list[dict[str, object]]) -> pa.Schema:
    """Of the columns of all rows: the first may lack some."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])
