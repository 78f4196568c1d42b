"""What a worker is told before it begins."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import FlowError
from headrace.flow.graph import Graph
from headrace.flow.losses import Loss
from headrace.flow.rooms import ROOM_BYTES
from headrace.flow.worker import Pace
from headrace.queues.protocol import Queues

BATCH_RECORDS: Final = 4096
"""How many records a source is asked for at a time."""


@dataclass(frozen=True)
class WorkerSetup:
    """All that a worker needs to know. Can be pickled."""

    graph: Graph
    queues: Queues
    location: str
    worker: int
    epoch: int
    tasks: tuple[str, ...]
    began_us: int
    control_position: int
    pace: Pace = field(default_factory=Pace)
    room_bytes: int = ROOM_BYTES
    batch_records: int = BATCH_RECORDS
    losses: tuple[Loss, ...] = ()
    silent: tuple[str, ...] = ()
    has_copies: bool = False
    """Are there other copies of these tasks?"""
    beginnings: Mapping[str, Any] = field(default_factory=dict)
    """How sources and sinks were when the flow first began."""
    incarnation: str = ""
    """Of the queues, as the driver has it."""

    def check_machine(self) -> None:
        """Raise FlowError if queues in files of one machine are to be used on another one."""
        if self.incarnation and self.queues.incarnation() != self.incarnation:
            raise FlowError(
                f"worker {self.worker} of flow {self.graph.name} is on {platform.node()}, another machine than the "
                f"program that started it, and queues in files are for one machine alone; start it with "
                f'queues=hr.kafka_queues("host:9092")'
            )
