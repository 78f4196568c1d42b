from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.output import Output, find_output
from headrace.errors import InputError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests stand in an empty folder but for the data."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/in.csv").touch()


@pytest.mark.parametrize(
    ("path", "said", "kind", "is_one_file"),
    [
        ("out.parquet", None, "parquet", True),
        ("out.PQ", None, "parquet", True),
        ("out.csv", None, "csv", True),
        ("out", None, "parquet", False),
        ("new/out/", "CSV", "csv", False),
        ("s3a://bucket/out.csv", None, "csv", False),
    ],
)
def test_the_name_says_format_and_shape(path: str, said: str | None, kind: str, is_one_file: bool) -> None:
    output = find_output(path, said, overwrite=False, input_path="data/in.csv")
    assert (output.format, output.is_one_file) == (kind, is_one_file)
    assert (output.rejected().format, output.rejected().is_one_file) == (kind, is_one_file)


def test_rejected_rows_go_beside_the_output() -> None:
    assert Output("out/scored.csv", "csv").rejected().path == "out/scored.csv.rejected"
    assert Output("out/scored/", "parquet").rejected().path == "out/scored.rejected"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("out.orc", "out.orc: Headrace writes parquet or csv, not orc"),
        ("data/in.csv", "the output would replace the input"),
        ("data", "the output would replace the input"),
        ("data/in.csv/deeper.csv", "is not a folder that you may write to"),
        ("there.csv", "there.csv: already exists; add --overwrite to replace it"),
        ("left.csv", "left.csv.rejected: already exists"),
    ],
)
def test_an_output_that_cannot_be_is_refused(path: str, problem: str) -> None:
    Path("there.csv").touch()
    Path("left.csv.rejected").touch()
    with pytest.raises(InputError, match=problem):
        find_output(path, None, overwrite=False, input_path="data/in.csv")


def test_a_link_to_the_input_is_the_input() -> None:
    Path("link.csv").symlink_to("data/in.csv")
    with pytest.raises(InputError, match="would replace the input"):
        find_output("link.csv", None, overwrite=True, input_path="data/in.csv")


def test_only_a_folder_of_part_files_is_overwritten() -> None:
    Path("scored").mkdir()
    for name in ("part-0.parquet", "_SUCCESS", "._SUCCESS.crc", ".part-0.parquet.crc"):
        (Path("scored") / name).touch()
    assert find_output("scored", None, overwrite=True, input_path="data/in.csv").overwrite
    Path("scored/diary.txt").touch()
    with pytest.raises(InputError, match="is a folder with other things in it, which --overwrite will not delete"):
        find_output("scored", None, overwrite=True, input_path="data/in.csv")
