"""Who may ask, and how often."""

from __future__ import annotations

import time

import pytest

from headrace.errors import RequestRefused
from headrace.service.limits import Limits


def test_too_many_requests() -> None:
    limits, refused = Limits(rate=5.0), []
    for _ in range(20):
        try:
            limits.check(None, "client")
        except RequestRefused as error:
            refused.append(error)
    assert 10 <= len(refused) <= 15
    assert {error.status for error in refused} == {429}
    limits.check(None, "another")
    time.sleep(refused[-1].retry_after_s or 0.0)
    limits.check(None, "client")


@pytest.mark.parametrize(("sent", "status"), [(None, 401), ("Basic x", 401), ("Bearer", 401), ("Bearer wrong", 403)])
def test_tokens(sent: str | None, status: int) -> None:
    limits = Limits(tokens=("one", "two"))
    limits.check("Bearer two", "client")
    with pytest.raises(RequestRefused) as raised:
        limits.check(sent, "client")
    assert raised.value.status == status
