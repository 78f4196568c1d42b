"""For tests of gangs."""

from __future__ import annotations

import secrets

import pytest
from tests.unit.spark.rolls import Secret


@pytest.fixture(autouse=True)
def _own_secret() -> None:
    Secret.own = secrets.token_bytes(32)
