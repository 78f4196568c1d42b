"""The lock files pin everything, by version and hash, and name no place to get it from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def packages(lock: str) -> list[str]:
    """The entries of a lock file, each with the hashes that continue it on the next lines."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock"])
def test_every_package_has_one_version_and_its_hashes(lock: str) -> None:
    for package in packages(lock):
        assert re.match(r"[a-z0-9._-]+==[\w.]+( ; .+?)?\s+--hash=sha256:", package), package


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock"])
def test_no_lock_file_names_a_host(lock: str) -> None:
    assert "://" not in (ROOT / lock).read_text()


def test_the_lock_pins_the_spark_we_promise() -> None:
    assert any(package.startswith("pyspark==4.3.0 ") for package in packages("requirements.lock"))
