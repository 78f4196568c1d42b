"""The other side of `headrace.testing.spark.on_connect`: reads a call, makes it on Spark Connect, writes the result."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from headrace.testing.spark import connect_session


def main(call: Path, result: Path) -> None:
    """Call what is pickled in one file, and pickle what it returns into the other."""
    function, arguments = pickle.loads(call.read_bytes())
    with connect_session() as session:
        answer = function(session, *arguments)
        unfinished = result.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(answer))
        # Renamed when whole: the caller takes the file's presence for success.
        unfinished.rename(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
