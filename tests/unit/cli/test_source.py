from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.source import find_source
from headrace.errors import InputError


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.csv", b"x\n1\n", "csv"),
        ("a.TSV", b"x\ty\n1\t2\n", "csv"),
        ("a.csv.gz", gzip.compress(b"x\n1\n"), "csv"),
        ("a.json", b'{"x": 1}\n', "json"),
        ("a.jsonl", b'\n {"x": 1}\n', "json"),
        ("a.ndjson", b'{"x": 1}\n', "json"),
    ],
)
def test_the_format_follows_from_the_name(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_source(str(tmp_path / name), None).format == kind


def test_parquet_is_known_by_name_and_by_content(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), file)
    assert find_source(str(file), None).format == "parquet"
    file.rename(tmp_path / "data")
    assert find_source(str(tmp_path / "data"), "PARQUET").format == "parquet"


def test_tabs_part_the_fields_of_tsv_files_and_an_array_of_json_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\ty\n")
    (tmp_path / "a.csv").write_text("x,y\n")
    (tmp_path / "array.json").write_text('[{"x": 1},\n {"x": 2}]')
    (tmp_path / "lines.json").write_text('{"x": 1}\n{"x": 2}')
    assert find_source(str(tmp_path / "a.tsv"), None).separator == "\t"
    assert find_source(str(tmp_path / "a.csv"), None).separator == ","
    assert find_source(str(tmp_path / "array.json"), None).is_json_array
    assert not find_source(str(tmp_path / "lines.json"), None).is_json_array


def test_a_folder_of_part_files_is_looked_at_as_spark_does(tmp_path: Path) -> None:
    day = tmp_path / "day=1"
    day.mkdir()
    (day / "part-0.csv").write_text("x\n1\n")
    (day / "part-1.csv").touch()
    (day / "_SUCCESS").touch()
    (day / ".part-0.csv.crc").write_bytes(b"\0")
    source = find_source(str(tmp_path), None)
    assert (source.format, source.files) == ("csv", (day / "part-0.csv",))


def test_a_pattern_names_several_files(tmp_path: Path) -> None:
    for day in "12":
        (tmp_path / f"day-{day}.csv").write_text("x\n1\n")
    (tmp_path / "notes.txt").touch()
    assert len(find_source(str(tmp_path / "day-*.csv"), None).files) == 2


def test_only_spark_can_look_at_remote_data() -> None:
    assert find_source("s3a://bucket/payments.parquet", None).files == ()


BAD = [
    ("a.csv", b"", r"is empty \(0 bytes\); a CSV file needs at least its header line"),
    ("a.parquet", b"", r"is empty \(0 bytes\); a Parquet file without rows still has a footer"),
    ("a.json", b"", r"is empty \(0 bytes\)"),
    ("a.parquet", b"x,y\n1,2\n3,4\n", "is not a Parquet file; if it is CSV or JSON, say so with --input-format"),
    ("a.parquet", b"PAR1" + b"x" * 20, "is a damaged Parquet file: its end is missing"),
    ("a.csv", b"PAR1" + b"x" * 20, "is a Parquet file; read it with --input-format parquet"),
    ("a.csv", b"x,y\n\0\0", "is not a CSV file: it has NUL bytes"),
    ("a.csv", b"\xff\xfex\0", "is written in UTF-16"),
    ("a.json", b"x,y\n1,2\n", "is not a JSON file: it does not start with an object"),
    ("a.txt", b"x\n", "cannot tell the format from the name; add --input-format"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_data_that_cannot_be_used_is_refused_before_spark_starts(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        find_source(str(tmp_path / name), None)


def test_a_format_that_we_do_not_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n")
    with pytest.raises(InputError, match="--input-format xml: Headrace reads parquet, csv or json"):
        find_source(str(tmp_path / "a.csv"), "xml")


def test_a_missing_file_an_empty_folder_and_a_mixed_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file or folder"):
        find_source(str(tmp_path / "a.csv"), None)
    with pytest.raises(InputError, match="no data files in this folder"):
        find_source(str(tmp_path), None)
    (tmp_path / "a.csv").write_text("x\n")
    (tmp_path / "b.json").write_text("{}\n")
    with pytest.raises(InputError, match="files of several kinds"):
        find_source(str(tmp_path), None)
