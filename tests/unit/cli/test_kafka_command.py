"""`headrace kafka` where no broker is running: nothing here needs Kafka, Java or the network."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from headrace.spark import broker

from .conftest import Command


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def test_help_names_the_commands_and_their_options(headrace: Command) -> None:
    said = headrace("kafka", "--help")
    assert said.code == 0
    for command in ("start", "stop", "status", "topics"):
        assert command in said.out
        each = headrace("kafka", command, "--help").out
        assert all(option in each for option in ("--port", "--folder", "--json", f"headrace kafka {command}"))


def test_status_says_how_to_start_one_and_exits_with_1(headrace: Command, tmp_path: Path) -> None:
    said = headrace("kafka", "status", "--port", "19")
    folder = tmp_path / "data" / "headrace" / "kafka-19"
    assert (said.code, said.err) == (1, "")
    assert said.out.splitlines() == [f"no broker of {folder} is running", "  start    headrace kafka start --port 19"]
    assert not folder.exists()


def test_status_for_machines(headrace: Command, tmp_path: Path) -> None:
    said = headrace("kafka", "status", "--folder", str(tmp_path / "k"), "--json")
    assert said.code == 1
    assert json.loads(said.out) == {
        "running": False,
        "ready": False,
        "address": "127.0.0.1:9092",
        "pid": None,
        "folder": str(tmp_path / "k"),
        "log": str(tmp_path / "k" / "broker.log"),
    }


def test_there_is_nothing_to_stop(headrace: Command, tmp_path: Path) -> None:
    said = headrace("kafka", "stop", "--folder", "k")
    assert (said.code, said.out) == (0, f"ok: no broker of {tmp_path / 'k'} is running\n")


def test_topics_need_a_broker(headrace: Command, tmp_path: Path) -> None:
    said = headrace("kafka", "topics", "--folder", "k")
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: no broker of {tmp_path / 'k'} is running; headrace kafka start --folder k\n"


def test_a_port_that_is_taken_is_named_with_a_way_out(headrace: Command) -> None:
    with socket.socket() as other:
        other.bind((broker.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        said = headrace("kafka", "start", "--port", str(port))
    assert said.code == 2
    assert f"another program listens on port {port} of this machine" in said.err
    assert "headrace kafka start --port" in said.err


def test_without_java_it_says_so(headrace: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    said = headrace("kafka", "start", "--port", str(_free_port()))
    assert said.code == 2
    assert "install a JDK" in said.err


def test_without_the_client_library_it_says_what_to_install(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    ready = broker.BrokerStatus(True, True, "127.0.0.1:1", 1, "k", "k/broker.log")
    monkeypatch.setattr(broker.Broker, "status", lambda self: ready)
    monkeypatch.setattr("headrace.queues.kafka_client.importlib.import_module", missing)
    said = headrace("kafka", "topics")
    assert said.code == 2
    assert 'pip install "headrace[kafka]"' in said.err


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((broker.HOST, 0))
        return int(found.getsockname()[1])
