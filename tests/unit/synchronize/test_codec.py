from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from headrace.demo.programs import PROGRAMS, EventWindows
from headrace.errors import FlowError, ProgramError, StateMismatch
from headrace.synchronize.codec import Codec, state_types
from headrace.synchronize.node import CLOSE, DOWN, FRONTIER, REQUEST, UP, Message
from headrace.synchronize.sequential import run_sequentially

from .tree_cases import Clicks, Orders, Shop, Typed

_WORD = st.integers(-(1 << 63), (1 << 63) - 1)
_PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.sampled_from([REQUEST, FRONTIER, DOWN, UP, CLOSE]), st.tuples(_WORD, _WORD), _PLAIN)
def test_a_message_comes_back_as_it_was(kind: str, key: tuple[int, int], state: Any) -> None:
    codec = Codec(EventWindows())
    message = Message(3, kind, key, 7, 1, state)
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_states_of_the_programs_come_back_as_they_were(name: str) -> None:
    example = PROGRAMS[name]
    program = example.program()
    sample: Any = program
    events = example.generate(seed=3).slice(0, 300)
    state, _ = run_sequentially(program, events)
    codec = Codec(program)
    assert codec.loads(codec.dumps(state)) == state
    assert codec.loads(codec.dumps(sample.init())) == sample.init()


def test_types_of_forks_and_of_fields_are_known() -> None:
    assert state_types(Typed()) == {"Shop": Shop, "Orders": Orders, "Clicks": Clicks}
    assert state_types(_Nested()) == {"_Outer": _Outer, "_Inner": _Inner, "_Pair": _Pair}
    state = _Outer([_Inner(1)], {"a": _Pair(1, 2)})
    assert Codec(_Nested()).loads(Codec(_Nested()).dumps(state)) == state


@dataclass(frozen=True)
class _Inner:
    n: int


class _Pair(NamedTuple):
    a: int
    b: int


@dataclass(frozen=True)
class _Outer:
    parts: list[_Inner]
    pairs: dict[str, _Pair]


class _Nested(EventWindows):
    def init(self) -> Any:
        return _Outer([], {})


def test_a_state_that_is_not_plain_is_refused() -> None:
    with pytest.raises(FlowError, match="program EventWindows: its state cannot be kept: a Fraction is not a plain"):
        Codec(EventWindows()).dumps(Fraction(1, 2))


def test_two_types_of_one_name_are_refused() -> None:
    def other() -> type:
        @dataclass(frozen=True)
        class Shop:
            n: int

        return Shop

    class Twice(Typed):
        states = (other(),)

    with pytest.raises(ProgramError, match="Twice: two types of its states are called Shop; rename one"):
        Codec(Twice())


def test_a_state_of_before_that_does_not_fit_is_told_of() -> None:
    old = Codec(Typed()).dumps(Shop(1, 2))
    with pytest.raises(StateMismatch, match="program EventWindows: a state that it kept does not fit its types"):
        Codec(EventWindows()).loads(old)
    content = old.replace(b"[1,2]", b"[1]")
    assert content != old
    with pytest.raises(StateMismatch, match="program Typed: a state that it kept does not fit"):
        Codec(Typed()).loads(content)


def test_nothing_is_made_of_types_that_are_not_the_programs() -> None:
    with pytest.raises(StateMismatch):
        Codec(EventWindows()).loads(b'{"$":"type","t":"Path","v":["/etc/passwd"]}')


@dataclass(frozen=True)
class _Node:
    value: int
    below: tuple[_Node, ...] = ()


def test_a_type_may_be_within_itself() -> None:
    class Deep(EventWindows):
        def init(self) -> Any:
            return _Node(1, (_Node(2),))

    codec = Codec(Deep())
    assert codec.loads(codec.dumps(Deep().init())) == Deep().init()


def test_a_codec_is_shipped_with_the_types_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker the names of a script are in no module any more."""
    with monkeypatch.context() as script:
        for kind in (_Inner, _Pair, _Outer):
            script.setattr(kind, "__module__", "__main__")
            script.setattr(sys.modules["__main__"], kind.__name__, kind, raising=False)
        state = _Outer([_Inner(1)], {"a": _Pair(1, 2)})
        shipped = cloudpickle.dumps((Codec(_Nested()), state))  # type: ignore[no-untyped-call]
    codec, state = cloudpickle.loads(shipped)
    assert codec.loads(codec.dumps(state)) == state


def test_a_type_that_is_not_known_is_told_how_to_be() -> None:
    with pytest.raises(FlowError, match=r"a _Inner is not a plain value unless .* write states = \(_Inner,\) in the"):
        Codec(EventWindows()).dumps({"a": _Inner(1)})
    known = type("Known", (EventWindows,), {"states": (_Inner,)})
    assert Codec(known()).loads(Codec(known()).dumps(_Inner(1))) == _Inner(1)
