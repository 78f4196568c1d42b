"""A Flink job as a script: sums and counts by card, Kafka to Kafka. It runs in Flink's own virtualenv.

    python flink_kafka_job.py '{"servers": "127.0.0.1:9092", "topic_in": "in", "topic_out": "out", "window_minutes": 60,
        "jars": ["/…/connector.jar"], "settings": {}, "producer": {"linger.ms": "0"}, "watermark": "ts"}'

It says RUNNING on a line of its own when every task of the job runs, and then goes on until it is killed, or until its
standard input ends: so it does not outlive whoever started it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

EVENT = "id STRING, ms BIGINT, card STRING, amount DOUBLE, due_us BIGINT"
ANSWER = "id STRING, due_us BIGINT, card STRING, spent DOUBLE, n BIGINT"


def main() -> None:
    threading.Thread(target=end_with_input, daemon=True).start()
    asked: dict[str, Any] = json.loads(sys.argv[1])
    port = free_port()
    result = submit(asked, port)
    wait_until_running(result.get_job_client(), port)
    print("RUNNING", flush=True)
    result.wait()


def submit(asked: dict[str, Any], port: int) -> Any:
    """The result of the statement, which never comes: there is always more to read. Flink tells how it is at a port."""
    # Only here: the module can be read where there is no Flink.
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    settings = {
        **asked["settings"],
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in asked["jars"]),
        "rest.bind-port": str(port),
    }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    read = {"scan.startup.mode": "earliest-offset"}
    sent = {f"properties.{key}": value for key, value in asked["producer"].items()}
    time_columns = f"ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS {asked['watermark']}"
    tables.execute_sql(
        f"CREATE TABLE payments ({EVENT}, {time_columns}) WITH ({kafka(asked['servers'], asked['topic_in'], read)})"
    )
    tables.execute_sql(f"CREATE TABLE answers ({ANSWER}) WITH ({kafka(asked['servers'], asked['topic_out'], sent)})")
    return tables.execute_sql(
        f"""
        INSERT INTO answers SELECT id, due_us, card, sum(amount) OVER w, count(*) OVER w
        FROM payments WINDOW w AS ({frame(asked["window_minutes"])})
        """
    )


def frame(minutes: int) -> str:
    """Times are whole milliseconds and SQL's frame is closed on both sides: this is (t - minutes, t]."""
    hours, minute = divmod(minutes - 1, 60)
    length = f"INTERVAL '{hours // 24} {hours % 24}:{minute}:59.999' DAY TO SECOND"
    return f"PARTITION BY card ORDER BY ts RANGE BETWEEN {length} PRECEDING AND CURRENT ROW"


def kafka(servers: str, topic: str, options: dict[str, str]) -> str:
    common = {"connector": "kafka", "properties.bootstrap.servers": servers, "topic": topic, "format": "json"}
    return ", ".join(f"'{key}' = '{value}'" for key, value in {**common, **options}.items())


def wait_until_running(job: Any, port: int) -> None:
    """Flink calls a job running when it has begun to deploy its tasks. Returns early if the job has ended."""
    url = f"http://127.0.0.1:{port}/jobs/{job.get_job_id()}"
    while not job.get_job_status().result().is_globally_terminal_state():
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                tasks = json.load(answer)["vertices"]
        except urllib.error.URLError:
            tasks = []
        if tasks and all(task["status"] == "RUNNING" for task in tasks):
            return
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def end_with_input() -> None:
    sys.stdin.read()
    # Flink's JVM sees its own input end, and ends.
    os._exit(0)


if __name__ == "__main__":
    main()
