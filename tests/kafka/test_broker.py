"""The broker of `headrace kafka`: a real one, started, crashed and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.app import main
from headrace.errors import EnvironmentProblem
from headrace.spark import maven
from headrace.spark.broker import HOST, Broker, answers
from headrace.testing.cluster import free_port
from headrace.testing.kafka import new_kafka_queues

pytestmark = pytest.mark.kafka
PATIENCE_S = 60.0


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_broker_that_is_running_is_not_started_again(kafka_broker: Broker) -> None:
    status = kafka_broker.status()
    assert (status.running, status.ready, status.address) == (True, True, kafka_broker.address)
    elsewhere = Broker(kafka_broker.folder)
    assert elsewhere.start() is False
    assert elsewhere.status() == status
    with pytest.raises(EnvironmentProblem, match=f"is running on port {kafka_broker.port}, not on 1"):
        Broker(kafka_broker.folder, port=kafka_broker.port + 1 if kafka_broker.port < 19999 else 10001).start()


def test_a_crashed_broker_comes_back_with_its_topics(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a"])
    assert kafka_broker.kill()
    assert not kafka_broker.kill()
    assert not kafka_broker.status().running
    assert not answers(kafka_broker.port)
    assert kafka_broker.start()
    assert queues.bounds("a") == (0, 0)


def test_the_commands(kafka_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a"])
    with queues.writer() as writer:
        writer.append("a", [b"1", b"2"])
    folder, address = str(kafka_broker.folder), kafka_broker.address
    assert main(["kafka", "topics", "--folder", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["topics"]
    assert {"topic": queues.topic("a"), "partitions": 1, "messages": 2} in found
    assert main(["kafka", "stop", "--folder", folder]) == 0
    assert "stopped" in capsys.readouterr().out
    assert not answers(kafka_broker.port)
    assert main(["kafka", "start", "--folder", folder]) == 0
    said = capsys.readouterr().out
    assert f"address  {address}" in said
    assert f"headrace kafka stop --folder {folder}" in said
    assert main(["kafka", "start", "--folder", folder]) == 0
    assert "was running already" in capsys.readouterr().out
    assert main(["kafka", "status", "--folder", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["address"] == address
    assert main(["kafka", "topics", "--folder", folder]) == 0
    assert queues.topic("a") in capsys.readouterr().out


def test_a_process_with_the_number_of_a_dead_broker_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"pid": os.getpid(), "port": 9092}))
    broker = Broker(tmp_path)
    assert broker.pid is None
    assert broker.stop() is False


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, kafka_broker: Broker) -> None:
    broker = Broker(tmp_path, free_port(), memory="1m")
    with pytest.raises(EnvironmentProblem, match=r"has ended while it started.*broker\.log"):
        broker.start()
    assert broker.pid is None


def test_a_broker_of_tests_goes_with_its_test_run() -> None:
    code = "from headrace.testing.kafka import running_broker as b; print(b().folder, flush=True); input()"
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    folder = run.stdout.readline().strip()
    assert Broker(folder).pid is not None
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert eventually(lambda: Broker(folder).pid is None)
    shutil.rmtree(folder)


def test_without_network_and_cache_there_is_a_plain_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        proxy = f"-Dhttps.proxyHost={HOST} -Dhttps.proxyPort={closed.getsockname()[1]}"
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", proxy)
        with pytest.raises(maven.NotResolved, match="the network does not lead to Maven Central") as caught:
            Broker(tmp_path / "broker", free_port()).start()
    assert not caught.value.is_missing
    assert list(tmp_path.glob("kafka/*")) == []


def test_a_version_that_is_not_there_is_told_from_a_network_that_is_not() -> None:
    said = """
        Host repos.spark-packages.org not found. url=https://repos.spark-packages.org/org/apache/kafka/kafka_2.13.pom
            module not found: org.apache.kafka#kafka_2.13;0.0.0
    """
    problem = maven._not_resolved("org.apache.kafka:kafka_2.13:0.0.0", said, 1)
    assert problem.is_missing
    assert "Maven Central does not have org.apache.kafka:kafka_2.13:0.0.0" in str(problem)
