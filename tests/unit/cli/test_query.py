from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from headrace.cli.query import read_query
from headrace.errors import InputError


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "rules.sql"
    file.write_bytes("SELECT count(*) AS größe".encode())
    assert read_query(str(file)) == "SELECT count(*) AS größe"


def test_the_mark_that_some_editors_put_first_is_not_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "rules.sql"
    file.write_bytes(b"\xef\xbb\xbfSELECT")
    assert read_query(str(file)) == "SELECT"


def test_a_dash_means_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"SELECT 1")))
    assert read_query("-") == "SELECT 1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n", "not text: byte 1 is no UTF-8"),
        (b"SELECT \0", "not text: it has NUL characters"),
        ("SELECT".encode("utf-16"), "is written in UTF-16; save it as UTF-8"),
        (b" " * (17 * 1024 * 1024), "larger than 16 MB, which no metric text is; is it the data?"),
    ],
)
def test_what_is_not_a_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "rules.sql"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_query(str(file))


def test_a_missing_file_is_named_and_the_nearest_one_offered(tmp_path: Path) -> None:
    (tmp_path / "rules.sql").touch()
    with pytest.raises(InputError, match=r"rulse\.sql: there is no such file\nhint: did you mean .*rules\.sql\?"):
        read_query(str(tmp_path / "rulse.sql"))
    with pytest.raises(InputError, match=r"no/such/folder: there is no such file$"):
        read_query("no/such/folder")


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_query(str(tmp_path))
