"""Every piece of code in README.md and docs/ runs, and prints what the page says it prints.

- ```python blocks of the README run in order, with a small `payments` DataFrame; those of docs/ in `test_examples`;
- ```sql blocks are metric texts, some with streams, and must parse;
- ```console blocks run in a folder with `payments.parquet`, `payments.csv`, `spending_flow.py`, `fraud_model.py` and,
  as `rules.sql`, the page's latest sql block above; lines below a `$` command are its output, in which `...` stands for
  anything. `make` is only looked up.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.demo.payments import make_day
from headrace.language import parse
from headrace.service.streams import read_streams

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KNOWN = {"python", "sql", "console", "text", ""}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page above its first one."""

    page: Path
    language: str
    code: str
    line: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, m[1], m[2], text.count("\n", 0, m.start(2))) for m in found]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def with_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small day of payments."""
    folder = tmp_path_factory.mktemp("docs")
    payments = make_day(seed=1, payments=2_000, bursts_a_kind=2).payments
    pq.write_table(payments, folder / "payments.parquet")
    pcsv.write_csv(payments, folder / "payments.csv")
    for example in ("spending_flow.py", "fraud_model.py"):
        shutil.copy(ROOT / "examples" / example, folder)
    return folder


@pytest.mark.spark
def test_the_python_of_the_readme_runs(spark: SparkSession, data: Path) -> None:
    readme = ROOT / "README.md"
    namespace: dict[str, Any] = {"__name__": "__main__", "payments": spark.read.parquet(str(data / "payments.parquet"))}
    for block in blocks_of(readme):
        if block.language == "python":
            # Empty lines in front make the line numbers of a traceback those of the page.
            exec(compile("\n" * block.line + block.code, str(readme), "exec"), namespace)
    assert {"spent", "n", "usual"} <= set(namespace["out"].columns)


@pytest.mark.parametrize("block", with_language("sql"), ids=str)
def test_sql_is_a_metric_text(block: Block) -> None:
    assert read_streams(block.code) if "CREATE STREAM" in block.code else parse(block.code)


@pytest.mark.spark
@pytest.mark.parametrize("block", with_language("console"), ids=str)
def test_commands_print_what_the_page_says(block: Block, data: Path, shell: dict[str, str]) -> None:
    rules = [other for other in blocks_of(block.page) if other.language == "sql" and other.line < block.line]
    if rules:
        (data / "rules.sql").write_text(rules[-1].code)
    for command, expected in commands_of(block):
        if command.startswith("make "):
            assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text(), f"{block}: no such target"
            continue
        done = subprocess.run(
            command,
            shell=True,
            cwd=data,
            env=shell,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert says(expected, done.stdout), f"{block}: $ {command}\n{done.stdout}"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the commands: `headrace` is the one under test, on a screen of 100 columns without colours."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "headrace"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli "$@"\n')
    script.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}


def commands_of(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output written below it."""
    parts = re.split(r"^\$ ", block.code, flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block}: a console block starts with a command ($ …)"
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts[1:]]


def says(expected: str, got: str) -> bool:
    """Whether the output is the expected one; nothing expected means that the page does not show it."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return not expected.strip() or doctest.OutputChecker().check_output(expected, got, flags)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert [str(block) for block in BLOCKS if block.language not in KNOWN] == []
    assert with_language("python")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}, which is not there"
