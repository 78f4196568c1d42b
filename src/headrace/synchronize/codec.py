"""Messages between workers as bytes. States are plain values and dataclasses of them: nothing is unpickled."""

from __future__ import annotations

import dataclasses
import struct
import typing
import zlib
from typing import Any, Final

from headrace.errors import ProgramError, StateMismatch
from headrace.model import plain_json
from headrace.model.failures import problem_of
from headrace.synchronize.node import CLOSE, DOWN, FRONTIER, REQUEST, UP, Message
from headrace.synchronize.program import Program, pairs_of

_LARGE: Final = 4096
"""Bytes from which on a state is packed: large ones are lists of much the same."""
_PACKED: Final = b"z"
"""No JSON begins so."""
_HEAD: Final = struct.Struct("<Biqqii")
_KINDS: Final = (REQUEST, FRONTIER, DOWN, UP, CLOSE)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


def state_types(program: Program) -> dict[str, type]:
    """The dataclasses that states of a program are made of, by their names."""
    found: dict[str, type] = {}
    edge: list[Any] = [type(program.init()), *getattr(program, "states", ())]
    for pair in pairs_of(program):
        edge += [kind for kind in (pair.whole, pair.left, pair.right) if kind is not None]
    seen: list[Any] = []
    while edge:
        kind = edge.pop()
        if any(kind is other for other in seen):
            continue  # a type may be within itself
        seen.append(kind)
        edge += typing.get_args(kind)
        if not (isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))):
            continue
        if found.setdefault(kind.__name__, kind) is not kind:
            raise ProgramError(program.name, f"two types of its states are called {kind.__name__}; rename one")
        edge += _field_types(kind)
    return found


def _field_types(kind: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind).values())
    except (NameError, TypeError):  # of names that are not to be found, such as those of a function
        return []


class Codec:
    """Of one program. Made where the program is, and shipped: annotations that are texts are names of its module, and
    in a worker `__main__` is another one."""

    def __init__(self, program: Program):
        self._program = program
        self._types = state_types(program)

    def dumps(self, state: Any) -> bytes:
        return plain_json.dumps(state, f"program {self._program.name}: its state", self._types)

    def loads(self, content: bytes) -> Any:
        """Raises StateMismatch for a state of a type that the program does not have, or has with other fields."""
        try:
            return plain_json.loads(content, self._types)
        except (KeyError, ValueError, TypeError) as error:
            raise StateMismatch(
                f"program {self._program.name}: a state that it kept does not fit its types of states any more "
                f"({problem_of(error)}); keep them as they were, or start anew"
            ) from None

    def encode(self, message: Message) -> bytes:
        """A few fixed numbers, and the state behind them, packed if it is large."""
        head = _HEAD.pack(_NUMBERS[message.kind], message.to, *message.key, message.tag, message.sender)
        if message.state is None:
            return head
        content = self.dumps(message.state)
        return head + (content if len(content) < _LARGE else _PACKED + zlib.compress(content, 1))

    def decode(self, content: bytes) -> Message:
        kind, to, time, rank, tag, sender = _HEAD.unpack_from(content)
        state = content[_HEAD.size :]
        if state[:1] == _PACKED:
            state = zlib.decompress(state[1:])
        return Message(to, _KINDS[kind], (time, rank), tag, sender, self.loads(state) if state else None)
