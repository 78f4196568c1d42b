"""State with a million cards in both backends: bytes a key, commit and restart; and a state larger than memory.

One shard, no Spark: sum, count, avg and stdDev by card over a day. Every batch touches 20,000 of the cards.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from bench.harness import MEGABYTES, Bench
from bench.support.shard import SCHEMA, START, Shard, measured, resident_megabytes, timed
from headrace.model.ticks import SECOND

BACKENDS: Final = ("columnar", "rocksdb")
TEXT: Final = """SELECT sum(amount) AS spent, count(*) AS n, avg(amount) AS usual, stdDev(amount) AS spread
                   FROM payments GROUP BY card OVER sliding 1 day"""
LARGE: Final = f"{TEXT}; SELECT sum(amount) AS ever, stdDev(amount) AS wide FROM payments GROUP BY card OVER infinite"
TOUCHED: Final = 20_000
BATCHES: Final = 8
A_FRAME: Final = 20_000


def touching(cards: np.ndarray, at: int) -> pa.RecordBatch:
    times = START + (at + np.arange(len(cards))) * (SECOND // 1000)
    amounts = np.round(np.random.default_rng(at).lognormal(3.0, 1.0, len(cards)), 2)
    return pa.record_batch([pa.array(times).cast(SCHEMA.field("ts").type), pa.array(cards), pa.array(amounts)], SCHEMA)


def fill(shard: Shard, cards: int) -> None:
    for first in range(0, cards, A_FRAME):
        shard.task.push(touching(np.arange(first, min(first + A_FRAME, cards)), first))
        if first // A_FRAME % 8 == 7:
            shard.commit()
    shard.commit()


def run(folder: str, backend: str, cards: int) -> dict[str, Any]:
    """A full state, then batches that touch some of it."""
    shard = Shard(Path(folder), TEXT, backend)
    fill(shard, cards)
    pushes, commits = [], []
    for batch in range(BATCHES):
        chosen = np.random.default_rng(batch).choice(cards, min(TOUCHED, cards), replace=False)
        rows = touching(chosen, cards + batch * TOUCHED)
        pushes.append(timed(lambda rows=rows: shard.task.push(rows)) * 1000)  # type: ignore[misc]
        commits.append(timed(shard.commit) * 1000)
    return {
        "push_ms": float(np.median(pushes)),
        "commit_ms": float(np.median(commits)),
        "bytes_a_key": shard.state_bytes / cards,
        "memory": resident_megabytes(),
    }


def restart(folder: str, backend: str) -> dict[str, Any]:
    """From the files to the first answer."""
    found: dict[str, Any] = {}
    opened = timed(lambda: found.update(shard=Shard(Path(folder), TEXT, backend))) * 1000
    return {"restart_ms": opened}


def within(folder: str, backend: str, cards: int, megabytes: int) -> dict[str, Any]:
    """All cards with a hard limit on the memory that the process may have for its data."""
    limit = megabytes * 1_000_000
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    shard = Shard(Path(folder), LARGE, backend)
    fill(shard, cards)
    again = np.arange(0, cards, max(1, cards // TOUCHED))
    answers = shard.task.push(touching(again, cards))
    shard.commit()
    assert answers[1].to_pylist() == [2] * len(again)
    return {"memory": resident_megabytes(), "state": shard.state_bytes / 1e6}


def main() -> None:
    bench = Bench("state", "Keyed state: columnar and RocksDB")
    cards, many, limit, rounds = (50_000, 300_000, 900, 1) if bench.quick else (1_000_000, 6_000_000, 1_000, 1)
    bench.set(cards=cards, touched=TOUCHED, batches=BATCHES, rounds=rounds, cards_beyond=many, limit_megabytes=limit)
    best: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, bench.running(steps=4 * rounds + 2):
        for number in range(rounds):
            for backend in BACKENDS:
                place = f"{folder}/{backend}-{number}"
                with bench.step(f"{backend}: {cards:,} cards, run {number + 1} of {rounds}"):
                    found = measured("state", "run", folder=place, backend=backend, cards=cards)
                with bench.step(f"{backend}: restart"):
                    found |= measured("state", "restart", folder=place, backend=backend)
                if backend not in best or found["commit_ms"] < best[backend]["commit_ms"]:
                    best[backend] = found
        beyond = {}
        for backend in BACKENDS:
            with bench.step(f"{backend}: {many:,} cards within {limit} MB"):
                arguments = {"folder": f"{folder}/beyond-{backend}", "backend": backend, "cards": many}
                beyond[backend] = measured("state", "within", **arguments, megabytes=limit)
    report(bench, best, beyond, f"{many:,} cards within {limit} MB")
    bench.finish()


def report(bench: Bench, best: dict[str, dict[str, Any]], beyond: dict[str, dict[str, Any]], what: str) -> None:
    for backend, found in best.items():
        bench.figure(backend, "state", found["bytes_a_key"], "bytes a key")
        bench.figure(backend, f"rows of {TOUCHED:,} cards answered", found["push_ms"], "ms")
        bench.figure(backend, f"commit of {TOUCHED:,} cards", found["commit_ms"], "ms")
        bench.figure(backend, "restart", found["restart_ms"], "ms")
        bench.figure(backend, "resident memory", found["memory"], MEGABYTES)
    both = {backend: found["push_ms"] + found["commit_ms"] for backend, found in best.items()}
    bench.ratio("columnar_commit_over_rocksdb", best["columnar"]["commit_ms"] / best["rocksdb"]["commit_ms"])
    bench.ratio("columnar_answer_and_commit_over_rocksdb", both["columnar"] / both["rocksdb"])
    for backend, found in beyond.items():
        if "failed" in found:
            bench.note(f"{backend}: {what}: ran out of memory ({found['failed'][-1]})")
            continue
        bench.figure(backend, f"{what}: state on disk", found["state"], MEGABYTES)
        bench.figure(backend, f"{what}: resident memory", found["memory"], MEGABYTES)


if __name__ == "__main__":
    main()
