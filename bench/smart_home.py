"""Smart home at the shape of the DGS paper: what goes through the network, against what comes in (its section 6.2).

20 houses, 2,100 plugs, as many loads an hour as in the challenge that the data is from; a day, or with HOURS=744 in the
environment the month of the paper: 4.2 thousand million events, and half an hour. From the second day on each hour
sends as much as the one before, for states have an average for each hour of the day. Results are compared with those
of the sequential program.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import MEGABYTES, Bench, Chart
from bench.support.home_bytes import HOUSEHOLDS, HOUSES, PLUGS, Neighbourhood, slice_of

BY_HOUR: Final = Chart("Bytes that go between tasks", "hours", MEGABYTES)
TASKS: Final = 8
LOADS: Final = 2_664
"""Of a plug in an hour, as there were in the challenge: 0.74 a second."""
OURS: Final = "Headrace"


def main() -> None:
    bench = Bench("smart_home", "Smart home: bytes sent against bytes of input")
    hours = int(os.environ.get("HOURS", 4 if bench.quick else 24))
    loads = 300 if bench.quick else LOADS
    bench.set(houses=HOUSES, plugs=HOUSES * HOUSEHOLDS * PLUGS, hours=hours, loads_of_a_plug_an_hour=loads, tasks=TASKS)
    place, points = Neighbourhood(TASKS), list[tuple[float, float]]()
    with bench.running(steps=hours), ThreadPoolExecutor(1) as making:
        coming = making.submit(slice_of, 0, loads)
        for number in range(hours):
            with bench.step(f"hour {number + 1} of {hours}"):
                events, coming = coming.result(), making.submit(slice_of, number + 1, loads)
                place.take(events)
            points.append((number + 1, place.sent.sent_bytes / 1e6))
    sent = place.finish()
    bench.figure(OURS, "input", sent.input_bytes / 1e6, MEGABYTES)
    bench.figure(OURS, "events", sent.rows / 1e6, "M")
    bench.figure(OURS, "sent", sent.sent_bytes / 1e6, MEGABYTES)
    bench.figure(OURS, "messages", sent.messages, "messages")
    bench.curve(BY_HOUR, f"{OURS}, {TASKS} tasks", points)
    bench.ratio("bytes_sent_over_input", sent.sent_bytes / sent.input_bytes)
    bench.note("Input is counted as lines of CSV with five numbers. The paper sends 362 MB of 29 GB: 0.0125.")
    bench.finish()


if __name__ == "__main__":
    main()
