"""Checkpoints of streaming queries as Spark writes them, for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path


def checkpoint(folder: Path, batch: int, topics: dict[str, int], committed: bool = True, query: str = "q") -> None:
    """As Spark leaves it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    offsets = json.dumps({topic: {"0": at} for topic, at in topics.items()})
    (folder / "offsets" / str(batch)).write_text(f'v1\n{{"conf":{{}}}}\n{offsets}')
    (folder / "offsets" / f".{batch}.crc").touch()
    if committed:
        (folder / "commits" / str(batch)).write_text("v1\n{}")
