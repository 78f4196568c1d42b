"""A Flink job as a script: sums and counts by card over five minutes, CSV to CSV. It runs in Flink's own virtualenv.

    python flink_job.py '{"runs": [["in", "out"]], "settings": {}, "watermark": "ts"}'

Runs are done one after the other in one JVM; one line of JSON with the seconds of each, from submit to finished, and
the largest resident set of the JVM is printed at the end.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = "txn BIGINT, ms BIGINT, card STRING, merchant STRING, amount DOUBLE"

# Times are whole milliseconds and SQL's frame is closed on both sides: this is (t - 5 minutes, t].
FRAME = "PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL '04:59.999' MINUTE TO SECOND PRECEDING AND CURRENT ROW"


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    seconds = [run(source, target, asked["settings"], asked["watermark"]) for source, target in asked["runs"]]
    print(json.dumps({"seconds": seconds, "jvm_peak_bytes": jvm_peak_bytes()}))


def run(source: str, target: str, settings: dict[str, str], watermark: str) -> float:
    """Seconds from the moment the job is submitted until it has finished; planning is not counted."""
    # Only here: the module can be read where there is no Flink.
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in settings.items():
        tables.get_config().set(key, value)
    time_columns = f"ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS {watermark}"
    tables.execute_sql(f"CREATE TABLE payments ({COLUMNS}, {time_columns}) WITH ({files(source)})")
    tables.execute_sql(f"CREATE TABLE answers ({COLUMNS}, spent DOUBLE, n BIGINT) WITH ({files(target)})")
    start = time.perf_counter()
    tables.execute_sql(
        f"""
        INSERT INTO answers SELECT txn, ms, card, merchant, amount, sum(amount) OVER w, count(*) OVER w
        FROM payments WINDOW w AS ({FRAME})
        """
    ).wait()
    return time.perf_counter() - start


def files(folder: str) -> str:
    return f"'connector' = 'filesystem', 'path' = '{Path(folder).as_uri()}', 'format' = 'csv'"


def jvm_peak_bytes() -> int | None:
    """Of the one JVM that client, job manager and task manager share; None where there is no /proc."""
    from pyflink.java_gateway import get_gateway

    pid = get_gateway().jvm.java.lang.ProcessHandle.current().pid()
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found else None


if __name__ == "__main__":
    main()
