"""How the tasks of a gang find each other: each ends up with a line to every other one.

Where a task listens follows from the secret of the run, so nobody has to be asked: the others know its machine from
Spark, and try the few ports. Where that comes to nothing they say their places through Spark, whose barrier takes a
second, and their processes ask it at once for the next minutes: a streaming query starts a gang with each micro-batch.

Both ends of a line must show that they know the secret, and which start of the gang they belong to: a task of an
earlier start, which Spark has not killed yet, is a stranger.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark import BarrierTaskContext

from headrace.errors import EnvironmentProblem

Place = tuple[str, int]

MEET_S: Final = 60.0
DERIVED_S: Final = 10.0
"""So long others may begin later, before their places are asked for."""
ASK_FOR_S: Final = 600.0
"""So long places are asked for at once, after ports have come to nothing."""
_HANDSHAKE_S: Final = 5.0
_LOOK_S: Final = 0.005
_MOST_PAUSE_S: Final = 0.25
"""Between two calls of one that is not there yet."""
_NONCE: Final = 32
_BACKLOG: Final = 128
_PROOF: Final = hashlib.sha256().digest_size
_HELLO: Final = struct.Struct(f"<I{_NONCE}s{_PROOF}s")
_LENGTH: Final = struct.Struct("<I")
_PORTS: Final = range(20_000, 32_000)
"""Below those that systems give to calls that go out. A task tries eight of them, of which one is free."""


@dataclass(frozen=True)
class Roll:
    """Who is to meet, and what a task knows of the others before."""

    task: int
    size: int
    secret: bytes
    hosts: Sequence[str]
    """The machine of each."""
    gather: Callable[[str], Sequence[str]]
    """What all have said, in the order of their numbers."""
    start: str = ""
    """Which start of the gang this is: no other one has the same."""

    def proof(self, role: bytes, caller: int, answerer: int, nonce: bytes) -> bytes:
        """That one knows the secret, and is of the same start: good for one call."""
        of_all = role + struct.pack("<II", caller, answerer) + nonce
        return hmac.digest(self.secret, of_all + self.start.encode(), "sha256")


def roll_call(context: BarrierTaskContext, size: int, secret: bytes) -> Roll:
    """Of a task of a barrier stage. Raises EnvironmentProblem where Spark has not started all of them."""
    task, infos = context.partitionId(), context.getTaskInfos()
    if len(infos) != size:
        # One that ended just when another was lost counts as done, until this one fails as well.
        raise EnvironmentProblem(
            f"Spark started {len(infos)} of {size} tasks again; it takes all, and starts them all now"
        )
    # Spark numbers the tasks of a start one after the other. Should it not do so any more, they meet through it.
    start = f"{context.stageId()} {context.taskAttemptId() - task}"
    hosts = [info.address.rsplit(":", 1)[0].strip("[]") for info in infos]
    return Roll(task, size, secret, hosts, context.allGather, start)


def meet(roll: Roll, word: bytes = b"") -> tuple[dict[int, socket.socket], list[bytes]]:
    """A line to each of the others, and the word that each of all had to say: a few kilobytes at most."""
    if roll.size == 1:
        return {}, [word]
    if time.monotonic() < _closed.until:
        return _gathered(roll, word)
    if (met := _derived(roll, word)) is not None:
        return met
    met = _gathered(roll, word)
    _closed.until = time.monotonic() + ASK_FOR_S  # all of them know it at the same moment, and so forget it at one
    return met


@dataclass
class _Closed:
    """What a process has learned of the ports between it and others."""

    until: float = 0.0


_closed = _Closed()


def _derived(roll: Roll, word: bytes) -> tuple[dict[int, socket.socket], list[bytes]] | None:
    """By the ports that follow from the secret. None, for all of them, where that comes to nothing for one."""
    places = [[(host, port) for port in _ports(roll, task)] for task, host in enumerate(roll.hosts)]
    listener = _listen_at_one(places[roll.task], roll.size)
    if listener is None:
        return None
    lines: dict[int, socket.socket] = {}
    try:
        with listener:
            lines = _Lobby(roll, listener, dict(enumerate(places[: roll.task])), DERIVED_S).lines()
        # Who misses a line says no word, and hangs up: then nobody has heard all words, and all go on to ask Spark.
        return lines, _words(roll, lines, word)
    except (EnvironmentProblem, OSError):
        _close(lines.values())
        return None


def _gathered(roll: Roll, word: bytes) -> tuple[dict[int, socket.socket], list[bytes]]:
    """By ports that are free, which are told through Spark, and only to those of this start."""
    roll, host = replace(roll, start=""), _own_host()
    with socket.create_server((host, 0), backlog=_BACKLOG + roll.size) as listener:
        said = [place.rsplit(" ", 1) for place in roll.gather(f"{host} {listener.getsockname()[1]}")]
        places = {other: [(said[other][0], int(said[other][1]))] for other in range(roll.task)}
        lines = _Lobby(roll, listener, places, MEET_S, is_there=True).lines()
    try:
        return lines, _words(roll, lines, word)
    except OSError as error:
        _close(lines.values())
        raise EnvironmentProblem(f"task {roll.task} lost another one when they met ({error})") from None


class _Lobby:
    """Each calls those before it, and is called by those after it."""

    def __init__(
        self, roll: Roll, listener: socket.socket, places: Mapping[int, Sequence[Place]], patience_s: float,
        is_there: bool = False,
    ):  # fmt: skip
        """`is_there`: the others are there already, and have one place each; one that is not reached is an error."""
        self._roll, self._listener, self._places, self._is_there = roll, listener, places, is_there
        self._patience_s = patience_s
        self._deadline = time.monotonic() + patience_s
        self._met: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()

    def lines(self) -> dict[int, socket.socket]:
        """To all of them. Raises EnvironmentProblem where one is not there in time."""
        found: dict[int, socket.socket] = {}
        pause, next_call = _LOOK_S, 0.0
        self._listener.settimeout(_LOOK_S)
        try:
            while len(found) < self._roll.size - 1:
                now = time.monotonic()
                if now > self._deadline:
                    raise self._missing(found)
                if now >= next_call:
                    self._call_all(found)
                    pause = min(_MOST_PAUSE_S, 1.3 * pause)
                    next_call = time.monotonic() + pause
                self._let_in(found)
        except BaseException:
            _close(found.values())
            raise
        for line in found.values():
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def _missing(self, found: Mapping[int, socket.socket]) -> EnvironmentProblem:
        missing = ", ".join(
            str(each) for each in range(self._roll.size) if each != self._roll.task and each not in found
        )
        return EnvironmentProblem(
            f"task {missing} did not call within {self._patience_s:.0f} s; workers must reach each other over TCP"
        )

    # ------------------------------------------------------------------ called

    def _let_in(self, found: dict[int, socket.socket]) -> None:
        """Each call has a thread of its own: a stranger who says nothing holds up nobody."""
        with contextlib.suppress(TimeoutError):
            line, _ = self._listener.accept()
            threading.Thread(target=self._greet, args=(line,), daemon=True).start()
        while not self._met.empty():
            number, line = self._met.get()
            if number in found:
                line.close()
            else:
                found[number] = line

    def _greet(self, line: socket.socket) -> None:
        """A call of another member. One of a stranger is not answered."""
        nonce, own = secrets.token_bytes(_NONCE), self._roll.task
        try:
            line.settimeout(_HANDSHAKE_S)
            line.sendall(nonce)
            number, theirs, proof = _HELLO.unpack(_read(line, _HELLO.size))
            is_ours = hmac.compare_digest(proof, self._roll.proof(b"call", number, own, nonce))
            if is_ours and own < number < self._roll.size:
                line.sendall(self._roll.proof(b"answer", number, own, theirs))
                self._met.put((number, line))
                return
        except OSError:
            pass
        line.close()

    # -------------------------------------------------------------------- call

    def _call_all(self, found: dict[int, socket.socket]) -> None:
        for other, places in self._places.items():
            for place in places if other not in found else ():
                if (line := self._call(other, place)) is not None:
                    found[other] = line
                    break

    def _call(self, other: int, place: Place) -> socket.socket | None:
        """The line to one, if it is there."""
        own, where = self._roll.task, f"{place[0]}:{place[1]}"
        patience_s = max(0.0, self._deadline - time.monotonic())
        line = None
        try:
            line = socket.create_connection(place, patience_s if self._is_there else min(patience_s, _HANDSHAKE_S))
            theirs, nonce = _read(line, _NONCE), secrets.token_bytes(_NONCE)
            line.sendall(_HELLO.pack(own, nonce, self._roll.proof(b"call", own, other, theirs)))
            if hmac.compare_digest(_read(line, _PROOF), self._roll.proof(b"answer", own, other, nonce)):
                return line
            problem = f"{where} is not task {other} of this run: it does not know its secret"
        except OSError as error:
            problem = (
                f"task {own} cannot talk to task {other} at {where} ({error}); workers must reach each other over TCP"
            )
        if line is not None:
            line.close()
        if self._is_there:
            raise EnvironmentProblem(problem)
        return None


def _words(roll: Roll, lines: Mapping[int, socket.socket], word: bytes) -> list[bytes]:
    """What each of all has to say."""
    words = {roll.task: word}
    for line in lines.values():
        line.settimeout(MEET_S)
        line.sendall(_LENGTH.pack(len(word)) + word)
    for other, line in lines.items():
        words[other] = _read(line, *_LENGTH.unpack(_read(line, _LENGTH.size)))
    return [words[task] for task in range(roll.size)]


def _ports(roll: Roll, task: int) -> list[int]:
    """Where a task listens: at the first that is free."""
    drawn = hmac.digest(roll.secret, f"port {roll.start} {task}".encode(), "sha512")
    return [_PORTS[each % len(_PORTS)] for each in struct.unpack("<8Q", drawn)]


def _listen_at_one(places: Sequence[Place], size: int) -> socket.socket | None:
    for place in places:
        with contextlib.suppress(OSError):
            return _listen(place, _BACKLOG + size)
    return None


def _listen(place: Place, backlog: int) -> socket.socket:
    """At that address; at all of this machine where it is known to others by a name, or by an address not its own."""
    host, port = place
    with contextlib.suppress(ValueError):
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        try:
            return socket.create_server(place, family=family, backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    return socket.create_server(("", port), backlog=backlog)


def _read(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = line.recv(count - len(found))
        if not part:
            raise ConnectionError("the line was closed")
        found += part
    return found


def _close(lines: Iterable[socket.socket]) -> None:
    for line in lines:
        line.close()


def _own_host() -> str:
    """The address by which others of the cluster reach this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: it tells which address a packet would leave by.
            probe.connect(("10.255.255.255", 1))
            found: str = probe.getsockname()[0]
            return found
    except OSError:
        return "127.0.0.1"
