"""A state file that has gone bad stops the query and is named; there is never a wrong answer."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.crash_checks import check_damage, run_stream_to_damage
from headrace.testing.damage import DAMAGES, Damage
from headrace.testing.streams import FolderStream

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

SEED = int(os.environ.get("SEED") or 1)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FolderStream:
    return run_stream_to_damage(spark, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kind", [".json", ".manifest", ".state", ".events"])
def test_a_damaged_file_is_named_and_never_leads_to_a_wrong_answer(
    whole: FolderStream, tmp_path: Path, kind: str, damage: Damage, tasks: int
) -> None:
    dice = random.Random(f"{SEED} {kind} {damage.__name__} {tasks}")
    refused = check_damage(whole, tmp_path, kind, damage, dice, tasks)
    # Bytes that no shard reads any more may be what they like; a whole file may not.
    assert refused or damage.__name__ in ("flipped", "torn", "truncated")
