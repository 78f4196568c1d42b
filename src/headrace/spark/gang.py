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
from dataclasses import dataclass
from typing import Final

from headrace.errors import EnvironmentProblem

_BYE: Final = b""
_MEET_S: Final = 60.0
_HANDSHAKE_S: Final = 5.0
_LOOK_S: Final = 0.01
_NONCE: Final = 32
_BACKLOG: Final = 128
_LENGTH: Final = struct.Struct("<I")
_HELLO: Final = struct.Struct(f"<I{_NONCE}s{hashlib.sha256().digest_size}s")


@dataclass(frozen=True)
class Said:
    """What a member of the gang said; None where it went away without a word."""

    sender: int
    content: bytes | None


class Gang:
    """This task among its likes."""

    def __init__(self, task: int, size: int, secret: bytes, meet: Callable[[str], Sequence[str]], host: str = ""):
        """`meet(text)` gives what all have said, in the order of their numbers."""
        self.task, self.size = task, size
        self._secret = secret
        self._heard: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._lines: dict[int, socket.socket] = {}
        self._gone: set[int] = set()
        if size > 1:
            self._meet(meet, host or _own_host())

    def _meet(self, meet: Callable[[str], Sequence[str]], host: str) -> None:
        with socket.create_server((host, 0), backlog=_BACKLOG + self.size) as listener:
            places = meet(f"{host} {listener.getsockname()[1]}")
            # Each calls those before it, and is called by those after it.
            for other in range(self.task):
                address, port = places[other].rsplit(" ", 1)
                self._lines[other] = self._call(other, address, int(port))
            self._answer(listener, time.monotonic() + _MEET_S)
        for number, line in self._lines.items():
            line.settimeout(None)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._listen, args=(number, line), daemon=True).start()

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

    def _answer(self, listener: socket.socket, deadline: float) -> None:
        """The calls of those after it. Each has a thread of its own: a stranger who says nothing holds up nobody."""
        wanted = set(range(self.task + 1, self.size))
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
                    self._lines[number] = line
                else:
                    line.close()

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

    def _listen(self, number: int, line: socket.socket) -> None:
        try:
            with line.makefile("rb", buffering=1 << 16) as file:
                while True:
                    content = _read_file(file, _LENGTH.unpack(_read_file(file, _LENGTH.size))[0])
                    self._heard.put(Said(number, content))
                    if content == _BYE:
                        return
        except (OSError, ValueError):
            self._heard.put(Said(number, None))

    # -------------------------------------------------------------------- talk

    def say(self, to: int, *contents: bytes) -> None:
        try:
            self._lines[to].sendall(b"".join(_LENGTH.pack(len(content)) + content for content in contents))
        except OSError:
            self._heard.put(Said(to, None))

    def hear(self, wait_s: float) -> Said | None:
        """The next that somebody said; None where nobody says anything for so long. Raises when a member is lost."""
        while True:
            said = self._next(wait_s)
            if said is None or said.content != _BYE:
                return said

    def _next(self, wait_s: float) -> Said | None:
        """As `hear`, with good-byes."""
        try:
            said = self._heard.get(timeout=wait_s) if wait_s > 0 else self._heard.get_nowait()
        except queue.Empty:
            return None
        if said.content is None:
            raise EnvironmentProblem(f"task {said.sender} has gone away; Spark starts all tasks of the stage again")
        if said.content == _BYE:
            self._gone.add(said.sender)
        return said

    def leave(self) -> None:
        """Say good-bye, and wait until all have: then nothing that was said is lost."""
        for other in self._lines:
            self.say(other, _BYE)
        while len(self._gone) < len(self._lines):
            self._next(1.0)
        self.close()

    def close(self) -> None:
        for line in self._lines.values():
            # The thread that listens keeps the line open: without this the others would not hear that it is over.
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


def _read(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = line.recv(count - len(found))
        if not part:
            raise ConnectionError("the line was closed")
        found += part
    return found


def _read_file(file: object, count: int) -> bytes:
    found: bytes = file.read(count)  # type: ignore[attr-defined]
    if len(found) < count:
        raise ConnectionError("the line was closed")
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
