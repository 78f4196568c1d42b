"""Folders whose entries outlast a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_NOT_HERE: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


def sync_folder(folder: Path) -> None:
    """The names that it has now are there after a power cut, where the file system can promise that."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """With those above it, if they are not there."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_folder(each.parent)
