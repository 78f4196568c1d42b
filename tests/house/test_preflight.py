"""What a person sees whose machine lacks Python or Java: checked with a path that holds only what we put there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "sed", "cut")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that is the whole path of the machine: a shell and its tools, no Python, no Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def put(path: Path, name: str, script: str) -> None:
    file = path / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def preflight(path: Path, what: str, **variables: str) -> tuple[int, str, str]:
    env = {"PATH": str(path), **variables}
    done = subprocess.run(
        [str(ROOT / "scripts/preflight.sh"), what], env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_java_is_missing(path: Path) -> None:
    code, _, said = preflight(path, "java")
    assert code == 2
    assert "Spark needs Java 17 or newer, and there is no java on the path." in said
    assert "apt install openjdk-17-jre-headless" in said


@pytest.mark.parametrize(
    ("banner", "version"), [('openjdk version "11.0.2" 2019-01-15', "11.0.2"), ('java version "1.8.0_402"', "1.8.0")]
)
def test_java_is_too_old(path: Path, banner: str, version: str) -> None:
    put(path, "java", f"echo '{banner}' >&2")
    code, _, said = preflight(path, "java")
    assert code == 2
    assert f"Spark needs Java 17 or newer, and java on the path is Java {version}." in said


@pytest.mark.parametrize(
    "banner", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16', 'java version "21-ea"']
)
def test_java_is_new_enough(path: Path, banner: str) -> None:
    put(path, "java", f"echo 'Picked up JAVA_TOOL_OPTIONS: -Dx' >&2; echo '{banner}' >&2")
    assert preflight(path, "java") == (0, "", "")


def test_a_java_that_only_says_where_to_get_one_counts_as_missing(path: Path) -> None:
    put(path, "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    assert preflight(path, "java")[0] == 2


def test_java_home_goes_before_the_path(path: Path) -> None:
    put(path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    code, _, said = preflight(path, "java", JAVA_HOME="/nowhere/jdk")
    assert code == 2
    assert "JAVA_HOME (/nowhere/jdk) has no working bin/java" in said


def test_python_is_missing_or_too_old(path: Path) -> None:
    code, _, said = preflight(path, "python")
    assert code == 2
    assert "it needs Python 3.11 or newer, and there is no python3 on the path." in said
    put(path, "python3", 'case "$2" in *exit*) exit 1;; *) echo "Python 3.9.18";; esac')
    code, _, said = preflight(path, "python")
    assert code == 2
    assert "it needs Python 3.11 or newer, and python3 on the path is Python 3.9.18." in said


def test_a_newer_python_under_another_name_is_found(path: Path) -> None:
    put(path, "python3", "exit 1")
    (path / "python3.12").symlink_to(os.path.realpath(sys.executable))
    assert preflight(path, "python")[:2] == (0, "python3.12")


def test_the_python_that_was_asked_for_is_taken_or_refused(path: Path) -> None:
    assert preflight(path, "python", PYTHON=sys.executable)[:2] == (0, sys.executable)
    code, _, said = preflight(path, "python", PYTHON="/nowhere/python")
    assert code == 2
    assert "PYTHON=/nowhere/python is not a command here." in said
