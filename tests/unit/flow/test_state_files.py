"""What is written of the state of a task."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.flow.state_files import StateFiles


class Counting:
    """State of one number; what changes is written as `+1`, all of it as `=n`."""

    def __init__(self, changes_are_all: bool):
        self.changes_are_all = changes_are_all
        self.number, self.since, self.asked = 0, 0, list[str]()

    def add(self) -> None:
        self.number, self.since = self.number + 1, self.since + 1

    def changes(self) -> bytes | None:
        self.asked.append("changes")
        if not self.since:
            return None
        if self.changes_are_all:
            return self._whole()
        said, self.since = b"+%d" % self.since, 0
        return said

    def content(self) -> bytes:
        self.asked.append("content")
        return self._whole()

    def _whole(self) -> bytes:
        self.since = 0
        return b"=%07d" % self.number  # as long as four changes

    def restore(self, parts: Sequence[bytes]) -> None:
        self.number = sum(int(bytes(part[1:])) for part in parts)


def test_what_has_not_changed_is_not_written() -> None:
    for is_all in (True, False):
        files, keeper = StateFiles(), Counting(is_all)
        assert files.written({"a": keeper}, "1") == {}
        keeper.add()
        assert files.written({"a": keeper}, "2") == {"2-a": b"=0000001"}
        assert files.written({"a": keeper}, "3") == {}
        assert files.names == ("2-a",)


def test_state_whose_changes_are_all_of_it_is_asked_once_and_is_one_file() -> None:
    files, keeper = StateFiles(), Counting(changes_are_all=True)
    for step in range(1, 5):
        keeper.add()
        assert files.written({"a": keeper}, str(step)) == {f"{step}-a": b"=%07d" % step}
        assert files.names == (f"{step}-a",)
    assert keeper.asked == ["changes"] * 4


def test_changes_follow_a_whole_content_until_they_are_as_long() -> None:
    files, keeper, kept = StateFiles(), Counting(changes_are_all=False), dict[str, bytes]()
    for step in range(1, 7):
        keeper.add()
        kept |= files.written({"a": keeper}, str(step))
        again = Counting(changes_are_all=False)
        StateFiles().restore(files.parts, {"a": again}, kept.__getitem__)
        assert again.number == step
    assert [kept[f"{step}-a"] for step in range(1, 7)] == [b"=0000001", b"+1", b"+1", b"+1", b"=0000005", b"+1"]
    assert files.names == ("5-a", "6-a")


def test_when_files_may_be_let_go_all_is_written_even_where_nothing_has_changed() -> None:
    for is_all in (True, False):
        files, keeper = StateFiles(), Counting(is_all)
        keeper.add()
        files.written({"a": keeper}, "1")
        keeper.add()
        files.written({"a": keeper}, "2")
        files.begin_anew()
        assert files.written({"a": keeper}, "3") == {"3-a": b"=0000002"}
        assert files.names == ("3-a",)
