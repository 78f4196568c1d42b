"""The harness writes what it was given, judges ratios by their targets, and measures nothing on its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from bench.harness import EVENTS_A_SECOND, MEGABYTES, Bench, Target, is_quick, pretty
from bench.support.memory import WorkerMemory, size_of_worker
from bench.support.payments import Payments
from bench.support.plot import short
from rich.console import Console

PNG = b"\x89PNG\r\n\x1a\n"


def a_bench(folder: Path, *, quick: bool = False) -> tuple[Bench, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    targets = [Target("over_rival", at_least=2.0), Target("memory_growth", at_most=1.5)]
    return Bench("demo", "A race", targets=targets, quick=quick, results=folder, console=console), screen


def run(bench: Bench) -> None:
    with bench.running(steps=3):
        bench.race("1 K rows", 2, {"ours": lambda: None})
        bench.figure("ours", "1 K rows", 1234567.8, EVENTS_A_SECOND)
        bench.figure("rival", "1 K rows", 345.6, EVENTS_A_SECOND)
        bench.figure("ours", "memory", 250.04, MEGABYTES)
        bench.ratio("over_rival", 3.0)
        bench.ratio("memory_growth", 1.6)
        bench.note("the rival was stopped")
        bench.set(rounds=2)
    bench.finish()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("results")
    bench, screen = a_bench(folder)
    run(bench)
    return folder, screen.getvalue()


def test_json_holds_figures_ratios_and_verdicts(finished: tuple[Path, str]) -> None:
    report = json.loads((finished[0] / "demo.json").read_text())
    assert report["figures"][0] == {"system": "ours", "figure": "1 K rows", "value": 1234570.0, "unit": "events/s"}
    assert [figure["unit"] for figure in report["figures"]] == ["events/s", "events/s", "MB"]
    assert report["ratios"] == {"over_rival": 3.0, "memory_growth": 1.6}
    assert report["targets"]["over_rival"] == {"target": "≥ 2", "met": True}
    assert report["targets"]["memory_growth"] == {"target": "≤ 1.5", "met": False}
    assert report["notes"][-1] == "the rival was stopped"
    assert report["settings"] == {"rounds": 2}
    assert report["quick"] is False


def test_every_timing_is_kept(finished: tuple[Path, str]) -> None:
    report = json.loads((finished[0] / "demo.json").read_text())
    assert [timing["what"] for timing in report["timings"]] == [
        "ours, 1 K rows, run 1 of 2",
        "ours, 1 K rows, run 2 of 2",
    ]


def test_machine_is_described_but_not_named(finished: tuple[Path, str]) -> None:
    text = (finished[0] / "demo.json").read_text()
    machine = json.loads(text)["machine"]
    assert machine["cores"] >= 1
    assert machine["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert os.uname().nodename not in machine.values()
    assert str(Path.home()) not in text
    assert str(finished[0]) not in text


def test_screen_shows_values_targets_and_verdicts(finished: tuple[Path, str]) -> None:
    screen = finished[1]
    for words in ("1,230,000", "over_rival", "≥ 2", "met", "not met", "the rival was stopped", "demo.json"):
        assert words in screen
    assert "QUICK" not in screen


def test_picture_is_a_png(finished: tuple[Path, str]) -> None:
    picture = (finished[0] / "demo.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 5_000


def test_a_bench_without_figures_still_draws(tmp_path: Path) -> None:
    bench, _ = a_bench(tmp_path)
    bench.finish()
    assert (tmp_path / "demo.png").read_bytes().startswith(PNG)


def test_quick_is_said_everywhere(tmp_path: Path) -> None:
    bench, screen = a_bench(tmp_path, quick=True)
    run(bench)
    assert json.loads((tmp_path / "demo.json").read_text())["quick"] is True
    assert "QUICK=1" in screen.getvalue()


@pytest.mark.parametrize(("value", "quick"), [("1", True), ("yes", True), ("", False), ("0", False)])
def test_quick_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, quick: bool) -> None:
    monkeypatch.setenv("QUICK", value)
    assert is_quick() is quick


def test_race_takes_turns_and_keeps_the_best(tmp_path: Path) -> None:
    bench, _ = a_bench(tmp_path)
    order: list[str] = []
    best = bench.race("", 2, {"one": lambda: order.append("one"), "two": lambda: order.append("two")})
    assert order == ["one", "two", "one", "two"]
    assert set(best) == {"one", "two"}
    assert all(0 <= seconds < 60 for seconds in best.values())


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.8, "1,230,000"), (999.6, "1,000"), (345.6, "346"), (12.345, "12.3"), (0.12345, "0.123")],
)
def test_pretty_keeps_three_digits(value: float, text: str) -> None:
    assert pretty(value) == text


@pytest.mark.parametrize(("value", "text"), [(1_230_000, "1.23 M"), (45_600, "45.6 K"), (789, "789")])
def test_short_labels(value: float, text: str) -> None:
    assert short(value) == text


def test_payments_have_distinct_times_and_busy_cards() -> None:
    table = Payments(20_000, 3600).table()
    times = table["ts"].cast("int64").to_numpy()
    assert (np.diff(times) > 0).all()
    assert times[-1] - times[0] < 3600 * 1_000_000
    counts = table["card"].value_counts().field("counts").to_numpy()
    assert 0.12 < counts.max() / 20_000 < 0.30
    assert table.equals(Payments(20_000, 3600).table())


def test_hot_card_has_its_share() -> None:
    counts = Payments(20_000, 3600, hot_share=0.5).table()["card"].value_counts().field("counts").to_numpy()
    assert counts.max() > 10_000


def test_late_payments_arrive_out_of_order() -> None:
    table = Payments(20_000, 3600, late_share=0.01).table()
    assert (np.diff(table["arrival"].to_numpy()) == 1).all()
    times = table["ts"].cast("int64").to_numpy()
    late = times < np.maximum.accumulate(times)
    assert 0 < late.sum() < 0.02 * 20_000


def test_memory_is_that_of_workers_only() -> None:
    """A process that calls itself a Spark worker is seen with what it holds; others are not looked at."""
    script = "import sys, time; held = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, "pyspark.daemon"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        with WorkerMemory() as memory:
            worker.stdout.readline()
            while not memory.peak_bytes > 64 << 20:
                memory.wait_for_a_look()
        worker.stdin.close()
    assert size_of_worker(psutil.Process()) == 0
