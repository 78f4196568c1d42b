"""A gang: the tasks of one barrier stage, each with a line to every other one.

They meet once, through Spark, to say where they listen. From then on they talk over TCP. Both ends of a line must show
that they know the secret of the run before anything else is read, and what comes then is bytes: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from headrace.errors import EnvironmentProblem
from headrace.spark.lines import BYE, Lines, Said

_MEET_S: Final = 60.0
_HANDSHAKE_S: Final = 5.0
_LOOK_S: Final = 0.01
_NONCE: Final = 32
_BACKLOG: Final = 128
_HELLO: Final = struct.Struct(f"<I{_NONCE}s{hashlib.sha256().digest_size}s")


class Gang:
    """This task among its likes."""

    def __init__(self, task: int, size: int, secret: bytes, meet: Callable[[str], Sequence[str]], host: str = ""):
        """`meet(text)` gives what all have said, in the order of their numbers."""
        self.task, self.size = task, size
        self._secret = secret
        self._gone: set[int] = set()
        self._lines = Lines(self._meet(meet, host or _own_host()) if size > 1 else {})

    def _meet(self, meet: Callable[[str], Sequence[str]], host: str) -> dict[int, socket.socket]:
        """A line to each of the others."""
        with socket.create_server((host, 0), backlog=_BACKLOG + self.size) as listener:
            places = meet(f"{host} {listener.getsockname()[1]}")
            # Each calls those before it, and is called by those after it.
            lines = {}
            for other in range(self.task):
                address, port = places[other].rsplit(" ", 1)
                lines[other] = self._call(other, address, int(port))
            lines |= self._answer(listener, time.monotonic() + _MEET_S)
        for line in lines.values():
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return lines

    def _proof(self, role: bytes, caller: int, answerer: int, nonce: bytes) -> bytes:
        return hmac.digest(self._secret, role + struct.pack("<II", caller, answerer) + nonce, "sha256")

    def _call(self, other: int, address: str, port: int) -> socket.socket:
        try:
            line = socket.create_connection((address, port), timeout=_MEET_S)
            theirs, own = _read(line, _NONCE), secrets.token_bytes(_NONCE)
            line.sendall(_HELLO.pack(self.task, own, self._proof(b"call", self.task, other, theirs)))
            answer = _read(line, 32)
        except OSError as error:
            raise EnvironmentProblem(
                f"task {self.task} cannot talk to task {other} at {address}:{port} ({error}); workers must reach each "
                f"other over TCP"
            ) from None
        if not hmac.compare_digest(answer, self._proof(b"answer", self.task, other, own)):
            line.close()
            raise EnvironmentProblem(f"{address}:{port} is not task {other} of this run: it does not know its secret")
        return line

    def _answer(self, listener: socket.socket, deadline: float) -> dict[int, socket.socket]:
        """The calls of those after it. Each has a thread of its own: a stranger who says nothing holds up nobody."""
        wanted, lines = set(range(self.task + 1, self.size)), {}
        met: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
        listener.settimeout(_LOOK_S)
        while wanted:
            missing = ", ".join(map(str, sorted(wanted)))
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"task {missing} did not call within {_MEET_S:.0f} s; workers must reach each other over TCP"
                )
            with contextlib.suppress(TimeoutError):
                line, _ = listener.accept()
                threading.Thread(target=self._greet, args=(line, met), daemon=True).start()
            while not met.empty():
                number, line = met.get()
                if number in wanted:
                    wanted.discard(number)
                    lines[number] = line
                else:
                    line.close()
        return lines

    def _greet(self, line: socket.socket, met: queue.SimpleQueue[tuple[int, socket.socket]]) -> None:
        """A call of another member. One of a stranger is not answered."""
        nonce = secrets.token_bytes(_NONCE)
        try:
            line.settimeout(_HANDSHAKE_S)
            line.sendall(nonce)
            number, theirs, proof = _HELLO.unpack(_read(line, _HELLO.size))
            is_ours = hmac.compare_digest(proof, self._proof(b"call", number, self.task, nonce))
            if is_ours and self.task < number < self.size:
                line.sendall(self._proof(b"answer", number, self.task, theirs))
                met.put((number, line))
                return
        except OSError:
            pass
        line.close()

    # -------------------------------------------------------------------- talk

    def say(self, to: int, *contents: bytes) -> None:
        self._lines.say(to, *contents)

    def hear(self, wait_s: float) -> Said | None:
        """The next that somebody said; None where nobody says anything for so long. Raises when a member is lost."""
        while True:
            said = self._next(wait_s)
            if said is None or said.content != BYE:
                return said

    def _next(self, wait_s: float) -> Said | None:
        """As `hear`, with good-byes."""
        said = self._lines.hear(wait_s)
        if said is None:
            return None
        if said.content is None:
            raise EnvironmentProblem(f"task {said.sender} has gone away; Spark starts all tasks of the stage again")
        if said.content == BYE:
            self._gone.add(said.sender)
        return said

    def leave(self) -> None:
        """Say good-bye, and wait until all have: then nothing that was said is lost."""
        for other in range(self.size):
            if other != self.task:
                self.say(other, BYE)
        while len(self._gone) < self.size - 1:
            self._next(1.0)
        self.close()

    def close(self) -> None:
        self._lines.close()


def _read(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = line.recv(count - len(found))
        if not part:
            raise ConnectionError("the line was closed")
        found += part
    return found


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
