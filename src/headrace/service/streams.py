"""Streams of the front end: what their events are, and which metrics they have.

```sql
CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING, amount DOUBLE);
SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.errors import DefinitionError
from headrace.language import parse
from headrace.language.names import did_you_mean
from headrace.language.type_names import TYPE_NAMES, arrow_type, canonical_type_name
from headrace.spark.metrics import Metrics

STATUS: Final = "status"
REASON: Final = f"{STATUS}_reason"
DEDUP: Final = "1 day"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_CREATE: Final = re.compile(r"CREATE\s+STREAM\s+(\S+?)\s*\(((?:[^()]|\([^()]*\))*)\)\s*(?:;|\Z)", re.IGNORECASE)
_COLUMN: Final = re.compile(r"\s*(\w+)\s+(\w+)\s*(?:\(([\d\s,]*)\))?\s*(ID|TIME)?\s*", re.IGNORECASE)
_EXAMPLE: Final = "CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING, amount DOUBLE);"


@dataclass(frozen=True)
class StreamSpec:
    """`columns` are names with types, as in Spark SQL; `time` and `id` are two of them; `text` are the metrics."""

    name: str
    columns: Mapping[str, str]
    time: str
    id: str
    text: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise DefinitionError(
                f"stream name {self.name!r}: a name is up to 40 letters, digits and _, and begins with a letter"
            )
        for role, name in (("time", self.time), ("id", self.id)):
            if name not in self.columns:
                hint = did_you_mean(name, list(self.columns)) or f"it has {', '.join(self.columns)}"
                raise DefinitionError(f"stream {self.name}: its {role} column {name} is not among its columns; {hint}")
        taken = [name for name in self.columns if name.startswith("__") or name.lower() in (STATUS, REASON)]
        if taken:
            raise DefinitionError(f"stream {self.name}: a column cannot be called {taken[0]}; rename it")
        self.metrics().check(self.schema)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, _type(self.name, name, type)) for name, type in self.columns.items()])

    def metrics(self) -> Metrics:
        return Metrics(
            self.text,
            time=self.time,
            id=self.id,
            stream=self.name,
            status=STATUS,
            dedup=DEDUP,
            keep_columns=[name for name in self.columns if name not in (self.time, self.id)],
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "columns": dict(self.columns),
            "time": self.time,
            "id": self.id,
            "metrics": self.text,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamSpec:
        return cls(found["name"], dict(found["columns"]), found["time"], found["id"], found["metrics"])


def read_streams(text: str) -> list[StreamSpec]:
    """The streams of a file with their metrics. Raises DefinitionError, or ParseError with the place."""
    made = list(_CREATE.finditer(text))
    # Blanks in their places, so that errors in the rest show where they are.
    rest = _CREATE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    if not made:
        raise DefinitionError(f"there is no stream; say what its events are: {_EXAMPLE}")
    found = {}
    statements = parse(rest)
    for create in made:
        name = create[1]
        if name in found:
            raise DefinitionError(f"stream {name} is created twice")
        if not any(statement.stream == name for statement in statements):
            raise DefinitionError(f"no metric is over stream {name}; add SELECT ... FROM {name} ...")
        found[name] = _spec(name, create[2], rest)
    unknown = [statement.stream for statement in statements if statement.stream not in found]
    if unknown:
        hint = did_you_mean(unknown[0], list(found)) or _EXAMPLE.replace("payments", unknown[0])
        raise DefinitionError(f"there is no stream {unknown[0]}; {hint}")
    return list(found.values())


def _spec(name: str, columns: str, text: str) -> StreamSpec:
    types: dict[str, str] = {}
    roles: dict[str, str] = {}
    for part in re.split(r",(?![^(]*\))", columns):
        found = _COLUMN.fullmatch(part)
        if found is None:
            raise DefinitionError(f"stream {name}: {part.strip()!r} is no column; write NAME TYPE, as in {_EXAMPLE}")
        column, word, sizes, role = found.groups()
        numbers = tuple(int(size) for size in (sizes or "").split(",") if size.strip())
        types[column] = canonical_type_name(word, numbers) or word
        if role:
            if role.lower() in roles:
                raise DefinitionError(f"stream {name} has two {role.upper()} columns; one is enough")
            roles[role.lower()] = column
    for role, example in (("time", "ts TIMESTAMP TIME"), ("id", "txn STRING ID")):
        if role not in roles:
            raise DefinitionError(f"stream {name} has no {role} column; mark one, for example {example}")
    return StreamSpec(name, types, roles["time"], roles["id"], text)


def _type(stream: str, column: str, name: str) -> pa.DataType:
    word, _, sizes = name.partition("(")
    numbers = tuple(int(size) for size in sizes.rstrip(")").split(",") if size.strip().isdigit())
    canonical = canonical_type_name(word.strip(), numbers)
    if canonical is None:
        hint = did_you_mean(word.lower(), TYPE_NAMES) or f"there are {', '.join(TYPE_NAMES)}"
        raise DefinitionError(f"stream {stream}, column {column}: there is no type {name}; {hint}")
    return arrow_type(canonical)
