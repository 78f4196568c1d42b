"""Ten thousand requests at 200 a second, while workers die and requests are sent again: no wrong answer, none lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.measure.run import measure_table
from headrace.service.streams import read_streams

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TEXT = """
CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING, amount DOUBLE);
SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes
"""
REQUESTS, RATE, CARDS = 10_000, 200.0, 50
START_US = 1_772_539_200_000_000


def event(number: int) -> dict[str, Any]:
    moment = START_US // 1_000_000 + number
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    return {"txn": f"t{number}", "ts": text, "card": f"c{number % CARDS}", "amount": (number * 37 % 1000) / 4}


def expected() -> list[dict[str, Any]]:
    [spec] = read_streams(TEXT)
    rows = [{**event(n), "ts": START_US + n * 1_000_000, "place": n} for n in range(REQUESTS)]
    table = pa.Table.from_pylist(rows, spec.schema.append(pa.field("place", pa.int64())))
    return list(measure_table(spec.metrics().definition, table).select(["txn", "spent", "n"]).to_pylist())


async def load(url: str) -> tuple[dict[int, dict[str, Any]], int, int]:
    """All events of a card one after the other, cards beside each other, each event when it is due."""
    rng, answers, resent, timeouts = random.Random(7), dict[int, dict[str, Any]](), 0, 0
    start = time.monotonic() + 0.5

    async def card(first: int, client: httpx.AsyncClient) -> None:
        nonlocal resent, timeouts
        for number in range(first, REQUESTS, CARDS):
            await asyncio.sleep(max(0.0, start + number / RATE - time.monotonic()))
            while number not in answers:
                found = await client.post(f"{url}/streams/payments/events", json=event(number))
                assert found.status_code in (200, 504), found.text
                if found.status_code == 504:
                    timeouts += 1
                else:
                    answers[number] = found.json()["answers"][0]
            if rng.random() < 0.05:
                resent += 1
                again = (await client.post(f"{url}/streams/payments/events", json=event(number))).json()["answers"][0]
                assert again["status"] == "duplicate"
                assert (again["spent"], again["n"]) == (answers[number]["spent"], answers[number]["n"])

    async def kill() -> None:
        for _ in range(3):
            await asyncio.sleep(REQUESTS / RATE / 4)
            found = httpx.get(f"{url}/streams/payments").json()["workers"].values()
            os.kill(next(worker["pid"] for worker in found if worker["up"]), signal.SIGKILL)

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=CARDS)) as client:
        await asyncio.gather(kill(), *(card(first, client) for first in range(CARDS)))
    return answers, resent, timeouts


def test_ten_thousand_requests_while_workers_die(tmp_path: Path) -> None:
    (tmp_path / "fraud.sql").write_text(TEXT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "headrace.cli", "serve", "fraud.sql", "--port", str(port)]
    with open(tmp_path / "log", "wb") as log:
        service = subprocess.Popen(command, cwd=tmp_path, stderr=log)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
        answers, resent, timeouts = asyncio.run(load(url))
        figures = httpx.get(f"{url}/metrics").text
    finally:
        service.terminate()
        service.wait(60)
    found = [{name: answers[n][name] for name in ("txn", "spent", "n")} for n in range(REQUESTS)]
    assert found == expected()
    assert resent > 100
    seconds = [line for line in figures.splitlines() if "request_seconds" in line]
    print(f"{resent} sent again, {timeouts} timed out", *seconds, sep="\n")
