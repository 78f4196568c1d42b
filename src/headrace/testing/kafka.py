"""A real Kafka broker for tests: one a test run, on a free port, in a folder of its own.

In your `conftest.py`:

```python
from headrace.testing.kafka import kafka_broker  # noqa: F401
```

Then a test that takes an argument `kafka_broker` has a running broker. It may crash it:

```python
kafka_broker.kill()                            # kill -9
kafka_broker.start()                           # on the same data, at the same address
```

The broker goes when the test run does, even if that is killed.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.queues.kafka import KafkaQueues
from headrace.spark import maven
from headrace.spark.broker import Broker, kafka_classpath
from headrace.testing.cluster import free_port


@pytest.fixture
def kafka_broker() -> Broker:
    """The broker of this test run; it is started again if the test before has killed it."""
    return running_broker()


def running_broker() -> Broker:
    """For those who are no fixture. Skips the test where Kafka's jars are not there and cannot be fetched."""
    try:
        kafka_classpath()
    except maven.NotResolved as problem:
        pytest.skip(str(problem))
    broker = _broker()
    broker.start()
    return broker


def new_kafka_queues(broker: Broker, timeout_s: float = 30.0) -> KafkaQueues:
    """Queues that no other test has."""
    return KafkaQueues(broker.address, f"t{uuid4().hex[:8]}-", timeout_s=timeout_s)


@lru_cache(maxsize=1)
def _broker() -> Broker:
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    watch = _stop_when_this_process_ends(folder)

    def remove() -> None:
        assert watch.stdin is not None
        watch.stdin.close()
        watch.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Broker(folder, free_port(), session_s=2.0)


def _stop_when_this_process_ends(folder: Path) -> subprocess.Popen[bytes]:
    """A shell that reads until its input is closed, which happens however this process ends."""
    command = 'cat > /dev/null; exec "$0" -m headrace.cli kafka stop --folder "$1"'
    return subprocess.Popen(
        ["sh", "-c", command, sys.executable, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
