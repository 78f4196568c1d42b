"""Small files with a checksum: a line with the CRC of what follows, then that."""

from __future__ import annotations

import json
import zlib
from typing import Any

from headrace.errors import StateDamaged


def seal(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}\n".encode() + content


def unseal(content: bytes, path: str) -> bytes:
    """Raises StateDamaged, naming the path, where it is not what was sealed."""
    crc, _, body = content.partition(b"\n")
    if crc != f"{zlib.crc32(body):08x}".encode():
        raise StateDamaged(path, "its checksum is not the one it was written with")
    return body


def seal_record(record: Any) -> bytes:
    return seal(json.dumps(record, separators=(",", ":")).encode())


def unseal_record(content: bytes, path: str) -> Any:
    return json.loads(unseal(content, path))
