from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
from pyspark.sql import SparkSession

from headrace.cli import session
from headrace.cli.app import main


class Said(NamedTuple):
    """What a command did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


Command: TypeAlias = Callable[..., Said]


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run `headrace ARGUMENTS` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Said:
        code = main(arguments)
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def on_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands use the session of the tests, with their own settings, instead of starting one each."""
    monkeypatch.setattr(session, "local_session", lambda app, cores, **conf: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    before = {key: str(spark.conf.get(key)) for key in session.CONF}
    for key, value in session.CONF.items():
        spark.conf.set(key, value)
    yield
    for key, old in before.items():
        spark.conf.set(key, old)
