"""What a tracker of queries keeps, so that it goes on where it was, whenever it ended.

    AT/000003-5f0c9a1e/                  the third start of the tracker
    AT/000003-5f0c9a1e/000012/state      all that its agent knew, the twelfth time that it was written
    AT/000003-5f0c9a1e/000012/000041     what it was told after that, one file each
    AT/000003-5f0c9a1e/ledger            the checkpoint of its ledger: nobody reads it after this start has ended

A start writes into a folder of its own, and begins its ledger where the state that it found says. So one that does not
know that it was replaced can do no harm: nobody reads what it writes.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from typing import Final

from headrace.errors import FlowError, StateDamaged
from headrace.state.places import Place, place_of
from headrace.state.sealed import seal_record, unseal_record
from headrace.track.link_records import record_of, restore, snapshot, stimulus_of
from headrace.track.links import LinkAgent, LinkName, Offsets, Stimulus

_RUN: Final = re.compile(r"\d{6}-[0-9a-f]{8}")
_STATE: Final = "state"
_NEWS_BYTES: Final = 1 << 20
_NEWS_FILES: Final = 500


def local_path(location: str) -> str:
    """A location that means the same to Spark and to us, wherever either of them stands."""
    if location.startswith("file:"):
        location = location.removeprefix("file://").removeprefix("file:")
    return location if "://" in location else os.path.abspath(location)


class Journal:
    """Of one start of a tracker."""

    def __init__(self, at: str):
        self.at = local_path(at)
        self._place: Place = place_of(self.at)
        self._place.check()
        self._before = [name for name in self._place.folders("") if _RUN.fullmatch(name)]
        number = max((int(name[:6]) for name in self._before), default=0) + 1
        self.run = f"{number:06d}-{uuid.uuid4().hex[:8]}"
        self._version, self._news, self._news_bytes, self._state_bytes = 0, 0, 0, 0

    @property
    def ledger(self) -> str:
        """Where the ledger has its checkpoint."""
        return f"{self.at}/{self.run}/ledger"

    def begin(self, links: Sequence[LinkName], starts: Sequence[Offsets], remembered: int) -> LinkAgent:
        """The agent as it was; if this is the first start, one whose ledger begins at `starts`."""
        agent, source = self._restored(links, remembered)
        agent = agent or LinkAgent(links, starts, remembered)
        self._write_state(agent)
        for name in self._before:
            if name != source:  # which another start may be reading at this very moment
                self._place.delete_folder(name)
        return agent

    def _restored(self, links: Sequence[LinkName], remembered: int) -> tuple[LinkAgent | None, str]:
        for run in sorted(self._before, reverse=True):
            for version in sorted(self._place.folders(run), reverse=True):
                files = self._place.files(f"{run}/{version}")
                if _STATE in files:
                    return self._read(f"{run}/{version}", set(files), links, remembered), run
        return None, ""

    def _read(self, folder: str, files: set[str], links: Sequence[LinkName], remembered: int) -> LinkAgent:
        path = self._place.path_of(f"{folder}/{_STATE}")
        record = unseal_record(self._place.read(f"{folder}/{_STATE}"), path)
        agent = restore(record, links, self.at, remembered)
        news = sorted(name for name in files if name.isdigit())
        for number, name in enumerate(news):
            path = self._place.path_of(f"{folder}/{name}")
            if name != _numbered(number):
                raise StateDamaged(self._place.path_of(f"{folder}/{_numbered(number)}"), "it is missing")
            agent.on(stimulus_of(unseal_record(self._place.read(f"{folder}/{name}"), path)))
        return agent

    def keep(self, stimulus: Stimulus, agent: LinkAgent) -> None:
        """What the agent was told. It is safe when this returns."""
        content = seal_record(record_of(stimulus))
        self._place.write(f"{self._folder}/{_numbered(self._news)}", content)
        self._news += 1
        self._news_bytes += len(content)
        if self._news >= _NEWS_FILES or self._news_bytes > max(_NEWS_BYTES, self._state_bytes):
            old = self._folder
            self._version += 1
            self._write_state(agent)
            self._place.delete_folder(old)

    def check_alone(self) -> None:
        """Raises FlowError where another tracker has been started here."""
        if max(name for name in [self.run, *self._place.folders("")] if _RUN.fullmatch(name)) != self.run:
            raise FlowError(f"another tracker was started at {self.at}, and this one has stopped; run one of them")

    @property
    def _folder(self) -> str:
        return f"{self.run}/{_numbered(self._version)}"

    def _write_state(self, agent: LinkAgent) -> None:
        content = seal_record(snapshot(agent))
        self._place.write(f"{self._folder}/{_STATE}", content)
        self._news, self._news_bytes, self._state_bytes = 0, 0, len(content)


def _numbered(number: int) -> str:
    return f"{number:06d}"
