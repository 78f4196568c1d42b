"""Where state files are: a folder of this machine, or anything fsspec reaches, with a cache on the local disk.

A file never changes once it is written, and is there whole or not at all. Names are paths below the place, with `/`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pkgutil
import re
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headrace.errors import EnvironmentProblem, StateDamaged, StateError
from headrace.model.folders import make_folder, sync_folder

ON_WRITE: Final = "HEADRACE_ON_WRITE"
"""An environment variable for tests: `module:function`, called with the name of a file before and after each write."""

_TEMPORARY: Final = ".part-"
_DEAD_SECONDS: Final = 3600
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_GIVEN_ONCE: Final = re.compile(r"\d{12}-(\d{8}-)?[0-9a-f]{16}(~\d+)?\.[a-z]+")
"""A batch, or an epoch and a version, then chance: such a name no two files have."""


class Place(ABC):
    """A folder of files, here or elsewhere."""

    def __init__(self, location: str):
        self.location = location

    def write(self, name: str, content: Any) -> None:
        """Whole or not at all; on disk when it returns. A file of the same name is replaced."""
        with self._explained(f"cannot write {name}"):
            _tell("before", name)
            self._write(name, content)
        _tell("after", name)

    def create(self, name: str, content: Any) -> None:
        """Like `write`, but a file of the same name stays; where the store cannot do that, it is replaced. Read it."""
        with self._explained(f"cannot write {name}"):
            _tell("before", name)
            self._create(name, content)
        _tell("after", name)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """A file, or a part of it. Raises StateDamaged where it is not there or too short."""
        try:
            content = self._read(name, offset, size)
        except FileNotFoundError:
            raise StateDamaged(self.path_of(name), "it is missing") from None
        except OSError as error:
            raise StateDamaged(self.path_of(name), f"it cannot be read ({_reason(error)})") from None
        if size is not None and len(content) != size:
            raise StateDamaged(self.path_of(name), "it is shorter than what was written")
        return content

    def adopt(self, path: Path, name: str) -> None:
        """A file of the local disk that will not change any more becomes one of this place."""
        self.write(name, path.read_bytes())

    @abstractmethod
    def local_path(self, name: str) -> Path:
        """The file on the local disk, fetched if it is not there."""

    @abstractmethod
    def scratch(self) -> Path:
        """A folder for what need not outlive this process, on the disk where files come from."""

    def path_of(self, name: str) -> str:
        return f"{self.location.rstrip('/')}/{name}"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(f"state location {self.location}: {what} ({_reason(error)}); {_fix(error)}") from error

    @abstractmethod
    def _write(self, name: str, content: Any) -> None: ...

    @abstractmethod
    def _create(self, name: str, content: Any) -> None: ...

    @abstractmethod
    def _read(self, name: str, offset: int, size: int | None) -> bytes: ...

    @abstractmethod
    def files(self, folder: str) -> dict[str, int]:
        """The names of the files right in a folder, with their sizes; nothing if there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """The names of the folders right in a folder."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """A file that is not there is as good as deleted."""

    @abstractmethod
    def delete_folder(self, folder: str) -> None: ...

    @abstractmethod
    def sweep(self, folder: str) -> None:
        """Delete what writers that died have left in a folder; it takes an hour to be taken for that."""

    @abstractmethod
    def check(self) -> None:
        """Raises StateError, with the fix, where no state can be kept here; leaves nothing behind."""


class LocalPlace(Place):
    """A folder of the file system, shared by all workers where there are several machines."""

    def __init__(self, location: str):
        super().__init__(location)
        self._root = Path(location)

    def _write(self, name: str, content: Any) -> None:
        self._named(name, content, os.replace)

    def _create(self, name: str, content: Any) -> None:
        try:
            self._named(name, content, os.link)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._write(name, content)

    def _named(self, name: str, content: Any, give_name: Callable[[Path, Path], None]) -> None:
        path = self._root / name
        # A name that no other process on any machine has: the folder may be shared by many.
        temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
        try:
            file = open(temporary, "wb")  # noqa: SIM115
        except FileNotFoundError:
            make_folder(path.parent)
            file = open(temporary, "wb")  # noqa: SIM115
        try:
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            give_name(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def adopt(self, path: Path, name: str) -> None:
        with self._explained(f"cannot write {name}"):
            _tell("before", name)
            folder = (self._root / name).parent
            make_folder(folder)
            try:
                os.link(path, self._root / name)
                sync_folder(folder)
            except OSError:  # another disk, or no links here
                self._write(name, path.read_bytes())
        _tell("after", name)

    def local_path(self, name: str) -> Path:
        return self._root / name

    def scratch(self) -> Path:
        folder = self._root / ".scratch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _read(self, name: str, offset: int, size: int | None) -> bytes:
        with open(self._root / name, "rb") as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    def files(self, folder: str) -> dict[str, int]:
        found = {}
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return found

    def folders(self, folder: str) -> list[str]:
        path = self._root / folder
        names = [child.name for child in path.iterdir() if child.is_dir()] if path.is_dir() else []
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        shutil.rmtree(self._root / folder, ignore_errors=True)

    def sweep(self, folder: str) -> None:
        path = self._root / folder
        for left in path.glob(f"{_TEMPORARY}*") if path.is_dir() else ():
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < time.time() - _DEAD_SECONDS:
                    left.unlink()

    def check(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise StateError(f"state location {self.location} is a file; name a folder, it is made if it is not there")
        with self._explained("cannot be used"):
            existing = next(path for path in (self._root, *self._root.parents) if path.exists())
            if not existing.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
            with tempfile.TemporaryFile(dir=existing):
                pass


class RemotePlace(Place):
    """A folder of any file system that fsspec reaches; files whose names are not given again stay in a local cache."""

    # Here a file that is being written cannot be seen; elsewhere it is written under another name and moved.
    _WHOLE_FILES: Final = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"))

    def __init__(self, location: str):
        super().__init__(location)
        self._files, self._root = _file_system(location)
        self._whole = location.partition("://")[0] in self._WHOLE_FILES
        mark = hashlib.sha256(location.rstrip("/").encode()).hexdigest()[:16]
        base = os.environ.get("HEADRACE_STATE_CACHE") or Path(tempfile.gettempdir(), "headrace-state-cache")
        self._cache = LocalPlace(str(Path(base, mark)))

    def _write(self, name: str, content: Any) -> None:
        path, content = self._path(name), bytes(content)
        if self._whole:
            self._files.pipe_file(path, content)
        else:
            temporary = str(PurePosixPath(path).with_name(f"{_TEMPORARY}{uuid.uuid4().hex}"))
            self._files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
            self._files.pipe_file(temporary, content)
            self._files.mv(temporary, path)
        if self._kept(name):
            self._cache._write(name, content)

    def _create(self, name: str, content: Any) -> None:
        if not self._whole:
            self._write(name, content)
            return
        try:
            self._files.pipe_file(self._path(name), bytes(content), mode="create")
        except (TypeError, ValueError, NotImplementedError):  # a store, or a version of its package, without that
            self._write(name, content)
        except OSError as error:  # every store has words of its own for a file that is there
            if error.errno == errno.ENOSYS:
                self._write(name, content)
            elif _last(name) not in self.files(name.rpartition("/")[0]):
                raise

    def _read(self, name: str, offset: int, size: int | None) -> bytes:
        if not self._kept(name):
            return self._fetch(name, offset, size)
        try:
            return self._cache._read(name, offset, size)
        except FileNotFoundError:
            pass
        if offset or size is not None:
            # A part of a file that others wrote: no need for the rest of it.
            return self._fetch(name, offset, size)
        content = self._fetch(name, 0, None)
        self._cache._write(name, content)
        return content

    def local_path(self, name: str) -> Path:
        path = self._cache.local_path(name)
        if not self._kept(name):
            self._cache._write(name, self.read(name))
        elif not path.exists():
            self.read(name)
        return path

    def scratch(self) -> Path:
        return self._cache.scratch()

    def _fetch(self, name: str, offset: int, size: int | None) -> bytes:
        end = None if size is None else offset + size
        return bytes(self._files.cat_file(self._path(name), start=offset or None, end=end))

    @staticmethod
    def _kept(name: str) -> bool:
        """Other names are given again, by another attempt or another life of a flow: the cache must not hide that."""
        return _GIVEN_ONCE.fullmatch(_last(name)) is not None

    def files(self, folder: str) -> dict[str, int]:
        return {_last(one["name"]): int(one["size"]) for one in self._entries(folder) if one["type"] == "file"}

    def folders(self, folder: str) -> list[str]:
        return sorted(_last(one["name"]) for one in self._entries(folder) if one["type"] == "directory")

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        try:
            return list(self._files.ls(self._path(folder), detail=True, refresh=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, name: str) -> None:
        self._cache.delete(name)
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def delete_folder(self, folder: str) -> None:
        self._cache.delete_folder(folder)
        with suppress(FileNotFoundError):
            self._files.rm(self._path(folder), recursive=True)

    def sweep(self, folder: str) -> None:
        """What was not written whole cannot be seen, or lies where the next writer does not look."""

    def check(self) -> None:
        with self._explained("cannot be used"):
            if self._files.exists(self._root) and self._files.isfile(self._root):
                raise StateError(f"state location {self.location} is a file; name a folder")
            name = f"{_TEMPORARY}{uuid.uuid4().hex}"
            try:
                self._files.makedirs(self._root, exist_ok=True)
                self._files.pipe_file(self._path(name), b"")
                self._files.rm_file(self._path(name))
            except StateError:
                raise
            except Exception as error:  # every file system has errors of its own
                raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root


def place_of(location: str) -> Place:
    """A place by its name: a path, `file://…`, or a URL that fsspec knows."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return LocalPlace(location)
    if scheme == "file":
        return LocalPlace(rest)
    return RemotePlace(location)


def _file_system(location: str) -> tuple[Any, str]:
    import fsspec  # here, for a local folder must not wait for it

    try:
        files, root = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise EnvironmentProblem(
            f"state location {location}: {error}; fsspec finds file systems in packages of their own, "
            f"for example pip install s3fs (s3://), gcsfs (gs://), adlfs (abfs://)"
        ) from None
    return files, str(root)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _fix(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and start the query again: it goes on where it stopped"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "give the user that runs Spark the right to write there, or name another folder"
    return "name a folder that every Spark worker can write to"


def _tell(when: str, name: str) -> None:
    hook = os.environ.get(ON_WRITE)
    if hook:
        pkgutil.resolve_name(hook)(when, name)
