"""The names of types in a CAST: Spark SQL's, with the synonyms people use."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
SYNONYMS: Final = {
    "bool": "boolean", "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "text": "string", "timestamp_ltz": "timestamp", "dec": "decimal", "numeric": "decimal",
}  # fmt: skip
TYPE_NAMES: Final = (*_SIMPLE, "decimal", *SYNONYMS)
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def canonical_type_name(name: str, sizes: tuple[int, ...]) -> str | None:
    """`DECIMAL`, (10, 2) -> `decimal(10,2)`; None if there is no such type or it takes no such sizes."""
    word = name.lower()
    word = SYNONYMS.get(word, word)
    if word == "decimal":
        precision, scale = (*sizes, *(10, 0)[len(sizes) :]) if len(sizes) <= 2 else (0, 0)
        return f"decimal({precision},{scale})" if 1 <= precision <= 38 and scale <= precision else None
    return word if word in _SIMPLE and not sizes else None


def arrow_type(type_name: str) -> pa.DataType:
    """The Arrow type of a canonical name."""
    if match := _DECIMAL.fullmatch(type_name):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _SIMPLE[type_name]


def spark_name(data_type: pa.DataType) -> str:
    """How a type is called in a message: Spark's word for it where there is one."""
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_list(data_type):
        return f"array<{spark_name(data_type.value_type)}>"
    if pa.types.is_struct(data_type):
        return f"struct<{', '.join(f'{part.name}: {spark_name(part.type)}' for part in data_type)}>"
    return next((name for name, known in _SIMPLE.items() if known == data_type), str(data_type))
