"""Every place keeps the same promises: files are whole, errors name the place and the fix."""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from headrace.errors import EnvironmentProblem, StateDamaged, StateError
from headrace.state.places import ON_WRITE, Place, RemotePlace, place_of
from headrace.state.store import StageStore

KINDS = ("path", "file", "local", "memory")
_NOBODY = 65534
_KEPT = "000001000001-00000001-0123456789abcdef~1.kept"


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("HEADRACE_STATE_CACHE", str(tmp_path / "cache"))
    locations = {
        "path": str(tmp_path / "state"),
        "file": f"file://{tmp_path}/state",
        "local": f"local://{tmp_path}/state",
        "memory": f"memory://{uuid.uuid4().hex}",
    }
    return place_of(locations[request.param])


def test_what_is_written_is_read(place: Place) -> None:
    place.check()
    place.write("q/stage/files/1.state", b"hello world")
    assert place.read("q/stage/files/1.state") == b"hello world"
    assert place.read("q/stage/files/1.state", 6, 5) == b"world"
    assert place.files("q/stage/files") == {"1.state": 11}
    assert place.folders("q") == ["stage"]
    place.write("q/stage/a.manifest", b"one")
    place.write("q/stage/a.manifest", b"two")
    assert place.read("q/stage/a.manifest") == b"two"


def test_what_is_created_is_not_replaced(place: Place) -> None:
    place.create("f/runs/000001", b"one")
    place.create("f/runs/000002", b"two")
    assert place.files("f/runs") == {"000001": 3, "000002": 3}
    place.create("f/runs/000001", b"another")
    replaces = place.location.startswith("local:")  # it has nothing better, and says so
    assert place.read("f/runs/000001") == (b"another" if replaces else b"one")


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (OSError(errno.EINVAL, "At least one of the pre-conditions you specified did not hold"), b"one"),
        (OSError(errno.ENOSYS, "NotImplemented"), b"another"),
        (TypeError("unexpected keyword argument 'mode'"), b"another"),
    ],
)
def test_stores_have_words_of_their_own_for_what_is_there(
    error: Exception, kept: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(f"memory://{uuid.uuid4().hex}")
    assert isinstance(place, RemotePlace)
    place.write("f/flow", b"one")
    write = place._files.pipe_file

    def pipe_file(path: str, content: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise error
        write(path, content)

    monkeypatch.setattr(place._files, "pipe_file", pipe_file)
    place.create("f/flow", b"another")
    assert place.read("f/flow") == kept
    if kept == b"one":
        with pytest.raises(StateError, match="cannot write f/runs"):
            place.create("f/runs", b"another")


def test_a_file_is_created_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("headrace.state.places.os.link", refuse)
    place = place_of(str(tmp_path))
    place.create("f/flow", b"one")
    assert place.read("f/flow") == b"one"
    assert place.files("f") == {"flow": 3}


def test_what_is_not_there(place: Place) -> None:
    assert place.files("nothing") == {}
    assert place.folders("nothing") == []
    with pytest.raises(StateDamaged, match="q/x: it is missing; restore it from a copy"):
        place.read("q/x")
    place.write("q/x", b"abc")
    with pytest.raises(StateDamaged, match="it is shorter than what was written"):
        place.read("q/x", 1, 5)
    place.delete("q/x")
    place.delete("q/x")
    place.delete_folder("q")
    place.delete_folder("q")
    assert place.folders("") == []


def test_a_remote_file_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE_CACHE", str(tmp_path / "cache"))
    place = place_of(f"local://{tmp_path}/state")
    assert isinstance(place, RemotePlace)
    names = [StageStore(place, "q").new_name(7, "events"), f"f/tasks/k.0/files/{_KEPT}"]
    for name in names:
        place.write(name, b"abc")
        (tmp_path / "state" / name).unlink()
        assert place.read(name) == b"abc"
        assert place.local_path(name).read_bytes() == b"abc"


@pytest.mark.parametrize(
    "name",
    [
        "q/stage/batches/000000000007/0-of-2.manifest",
        "q/stage/definitions/000000000007.json",
        "q/synchronize-p/000000000007/0-of-2",
        "f/flow",
        "f/runs/000001",
        "f/tasks/k.0/moment",
        "f/tasks/k.0/holds~1.0123456789abcdef",
        "f/tasks/k.0/files/000001000001-00000001-k.0-k",
        "f/tasks/k.0/files/000001000001-00000001-0123456789abcdef.0-k",
        "f/tasks/k.0/files/000001000001-00000001-0123456789abcdef.0~1-k.kept",
    ],
)
def test_what_may_be_written_again_is_not_taken_from_the_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = []
    for host in ("a", "b"):
        monkeypatch.setenv("HEADRACE_STATE_CACHE", str(tmp_path / host))
        hosts.append(place_of(f"local://{tmp_path}/state"))
    one, other = hosts
    one.write(name, b"first")
    assert other.read(name) == other.local_path(name).read_bytes() == b"first"
    other.delete_folder(name.partition("/")[0])
    other.write(name, b"second")
    assert one.read(name) == one.local_path(name).read_bytes() == b"second"


def test_a_location_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    for location in (f"{tmp_path}/state", f"local://{tmp_path}/state"):
        with pytest.raises(StateError, match=r"state location .*/state is a file; name a folder"):
            place_of(location).check()
    with pytest.raises(StateError, match=r"cannot be used \(Not a directory\); name a folder that every Spark worker"):
        place_of(f"{tmp_path}/state/deeper").check()


def test_a_location_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        locked = Path(folder) / "locked"
        locked.mkdir(mode=0o555)
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            message = pool.submit(_checked_by_nobody, f"{locked}/state").result()
    assert "cannot be used (Permission denied); give the user that runs" in message


def _checked_by_nobody(location: str) -> str:
    if os.geteuid() == 0:  # who may write everywhere
        os.setuid(_NOBODY)
    try:
        place_of(location).check()
    except StateError as error:
        return str(error)
    return "it can be used"


def test_a_location_on_a_read_only_file_system() -> None:
    with pytest.raises(StateError, match=r"state location /proc/headrace: cannot be used .*; "):
        place_of("/proc/headrace").check()


def test_a_file_system_that_nobody_knows() -> None:
    with pytest.raises(EnvironmentProblem, match=r"state location nope://x: .*pip install s3fs"):
        place_of("nope://x")


def out_of_space(when: str, name: str) -> None:
    if when == "before":
        raise OSError(28, "No space left on device")


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(str(tmp_path))
    monkeypatch.setattr(
        "headrace.state.places.os.fsync", lambda number: out_of_space("before", str(number)), raising=True
    )
    with pytest.raises(StateError, match=r"cannot write q/1 \(No space left on device\); free some space and start"):
        place.write("q/1", b"abc")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_writes_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ON_WRITE, "builtins:print")
    place_of(str(tmp_path)).write("q/1", b"abc")
