"""A real Apache Kafka broker for development and tests: one KRaft node on the loopback address, without Docker.

```python
broker = Broker(port=9092)
broker.start()                 # fetches Kafka once, then takes about three seconds
broker.address                 # 127.0.0.1:9092
broker.stop()                  # its data stays in broker.folder
```

The folder tells everything about a broker, so any process can ask for it, or stop it, by its folder.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from headrace.errors import EnvironmentProblem
from headrace.spark import maven

KAFKA: Final = "4.3.1"
HOST: Final = "127.0.0.1"
PORT: Final = 9092
# The second one writes Kafka's log: without it Kafka is silent, also about why it does not start.
_COORDINATES: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.slf4j:slf4j-simple:1.7.36")
_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 30
_PAUSE_SECONDS: Final = 0.05
_NO_PAUSES: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UseSerialGC",
    "-XX:NewRatio=1",
    "-XX:+PerfDisableSharedMem",
)
"""Where a broker shares two cores with all the rest, collectors with many threads stop everybody: an echo of 25,000
messages a second has a p99.9 of 35 ms with this one, 75 with Parallel, 87 with Z, 258 with G1. With half of the memory
for what is young it pauses three times in 18 s there, and five times with a third of it, for some 20 ms each."""
_TALKATIVE: Final = ("kafka.server.KafkaConfig", "org.apache.kafka.common.config", "org.apache.kafka.image")
"""They print hundreds of lines at every start."""

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
# One node keeps one copy, and starts faster with few internal partitions.
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
# After a crash the node is not let in again until the session of its dead self is over. Where it is shorter, a broker
# that does not get the processor for a while takes itself for dead, and all wait for seconds.
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=300
log.retention.check.interval.ms=30000
message.max.bytes=68157440
# 128 MB otherwise, a quarter of the memory, kept for topics that are compacted.
log.cleaner.dedupe.buffer.size=4194304
"""


@dataclass(frozen=True)
class BrokerStatus:
    """What is known about the broker of a folder."""

    running: bool
    ready: bool
    address: str
    pid: int | None
    folder: str
    log: str


def default_folder(port: int = PORT) -> Path:
    """Where the data of the broker on a port is, unless one says otherwise."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return home / "headrace" / f"kafka-{port}"


class Broker:
    """The broker of a folder: perhaps running, perhaps started by another process."""

    def __init__(
        self,
        folder: str | Path | None = None,
        port: int | None = None,
        memory: str = "512m",
        session_s: float = 9.0,
    ):
        """`session_s`: how long it is missed after a crash, and how long it may stand still without being missed."""
        self._session_ms = round(session_s * 1000)
        self.folder = Path(folder).expanduser().absolute() if folder else default_folder(port or PORT)
        self.memory = memory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port that was asked for, or else the one that it has or had."""
        return self._port or int(self._record().get("port") or PORT)

    @property
    def address(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """What Kafka says."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int | None:
        """Its process, if it is running. A process that got the number of a dead broker is not taken for it."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        pid = self._record().get("pid")
        return pid if pid and str(self._properties) in _command_of(pid) else None

    def status(self) -> BrokerStatus:
        pid = self.pid
        port = int(self._record().get("port") or self.port) if pid else self.port
        ready = pid is not None and answers(port)
        return BrokerStatus(pid is not None, ready, f"{HOST}:{port}", pid, str(self.folder), str(self.log))

    def start(self, timeout_s: float = _START_SECONDS) -> bool:
        """Start it and wait until it answers. False if it was running already."""
        with self._alone():
            if self.pid is not None:
                self._wait_until_ready(self._same_port(), timeout_s)
                return False
            _expect_free(self.port)
            java, classpath = maven.java(), kafka_classpath()
            self._write_properties(controller_port=_free_port())
            if not (self._data / "meta.properties").exists():
                self._format(java, classpath)
            self._launch(java, classpath)
            try:
                self._wait_until_ready(self.port, timeout_s)
            except BaseException:
                self._signal(signal.SIGKILL, _STOP_SECONDS)
                raise
        return True

    def stop(self, timeout_s: float = _STOP_SECONDS) -> bool:
        """Let it close its files and end; its data stays. False if it was not running."""
        if not self.folder.exists():
            return False
        with self._alone():
            return self._signal(signal.SIGTERM, timeout_s) or self._signal(signal.SIGKILL, timeout_s)

    def kill(self) -> bool:
        """End it at once, as a crash does. False if it was not running."""
        return self._signal(signal.SIGKILL, _STOP_SECONDS)

    # -------------------------------------------------------------- processes

    def _launch(self, java: str, classpath: str) -> None:
        options = [f"-Xms{self.memory}", f"-Xmx{self.memory}", *_NO_PAUSES, "-Djava.awt.headless=true"]
        options += ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"]
        options += ["-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS"]
        options += [f"-Dorg.slf4j.simpleLogger.log.{name}=warn" for name in _TALKATIVE]
        with open(self.log, "ab") as out:
            self._process = subprocess.Popen(
                [java, *options, "-cp", classpath, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        self._remember({"pid": self._process.pid, "port": self.port})

    def _format(self, java: str, classpath: str) -> None:
        command = [java, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", _cluster_id()]
        done = subprocess.run(
            [*command, "-c", str(self._properties)], capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode:
            raise EnvironmentProblem(f"Kafka cannot use {self._data}: {_last_line(done.stderr or done.stdout)}")

    def _wait_until_ready(self, port: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not answers(port):
            if self.pid is None:
                raise EnvironmentProblem(f"Kafka has ended while it started: {self._complaint()}; see {self.log}")
            if time.monotonic() > deadline:
                raise EnvironmentProblem(f"Kafka does not answer after {timeout_s:.0f} seconds; see {self.log}")
            time.sleep(_PAUSE_SECONDS)

    def _signal(self, number: signal.Signals, timeout_s: float) -> bool:
        """Whether it was running and has ended."""
        pid, port = self.pid, int(self._record().get("port") or PORT)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + timeout_s
        # The port is free a little after the process has gone, when the last of its threads has.
        while self._is_there() or not _is_free(port):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _is_there(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        return self.pid is not None

    def _same_port(self) -> int:
        running = int(self._record()["port"] or PORT)
        if self._port not in (None, running):
            raise EnvironmentProblem(
                f"the broker of {self.folder} is running on port {running}, not on {self._port}; "
                f"stop it first (headrace kafka stop --folder {self.folder}), or choose another folder"
            )
        return running

    # ------------------------------------------------------------------ files

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _write_properties(self, controller_port: int) -> None:
        text = _PROPERTIES.format(
            host=HOST,
            port=self.port,
            controller_port=controller_port,
            data=self._data,
            session_ms=self._session_ms,
        )
        self._properties.write_text(text)

    def _record(self) -> dict[str, int]:
        try:
            return json.loads((self.folder / "broker.json").read_text())  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return {}

    def _remember(self, record: dict[str, int]) -> None:
        new = self.folder / "broker.json.new"
        new.write_text(json.dumps(record))
        new.replace(self.folder / "broker.json")

    def _complaint(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-400:]
        return next((line for line in reversed(lines) if "ERROR" in line or "Exception:" in line), "it says nothing")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process starts or stops this broker meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def kafka_classpath() -> str:
    """Kafka's jars, which are fetched if they are not there, and Scala's library, which Spark has and never fetches."""
    folder = maven.cache_folder() / "kafka" / KAFKA
    maven.jars(folder, _COORDINATES)
    scala = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    return os.pathsep.join([str(folder / "*"), *map(str, scala)])


# An ApiVersions request of version 0, from a client without a name: every broker answers it, once it takes requests.
_HELLO: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def answers(port: int, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker on this machine takes requests at the port."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(8)
    except OSError:
        return False
    return len(answer) == 8 and answer[4:] == _HELLO[8:12]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka does: connections of a dead broker that the system still remembers are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise EnvironmentProblem(f"port {port} is not for everybody; choose one above 1023 with --port") from None
        except OSError:
            return False
    return True


def _expect_free(port: int) -> None:
    if not _is_free(port):
        who = "another Kafka broker" if answers(port) else "another program"
        raise EnvironmentProblem(
            f"{who} listens on port {port} of this machine; stop it, or choose another port: "
            f"headrace kafka start --port {port + 1}"
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _command_of(pid: int) -> str:
    """The command line of a process; nothing if it has ended, even if nobody has waited for it."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout


def _cluster_id() -> str:
    """22 characters of base64, as Kafka wants it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
