"""Who leads, and what the order is: decided by a log that all copies of a task append to and read from its start.

| entry | what | it counts if |
|---|---|---|
| `{"claim": e, "by": copy, "life": life}` | a copy wants to lead | e is above the epoch of the log |
| `{"epoch": e, "alive": n}` | the leader has nothing to order | e is the epoch of the log |
| `{"epoch": e, "version": v, "runs": [[input, count], ...]}` | the order goes on | so is e, and v is the next version |

The epoch of the log at an entry is that of the last claim before it that counts. So the log is its own fence: what a
leader appends after a higher claim counts for nobody, whether it knows of that claim or not, and all who read the log
agree on the order, whoever dies when. An order that is there twice counts once; one that skips a version comes again
after the one that it needs. Clocks decide when a copy claims, and nothing else.

All orders of an epoch are of one *life* of a copy: so each of them was made by who knew all before it. Two lives of a
copy may claim the same epoch, for the second has not read what the first one did: one claim counts, as with two copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from headrace.errors import QueueDamaged

Entry: TypeAlias = Mapping[str, Any]
Runs: TypeAlias = list[tuple[int, int]]


class Leadership:
    """What one copy knows of the log, and what it has to add. It reads no clock and no queue."""

    def __init__(self, copy: int, life: str, silence_s: float = 0.5, alive_s: float = 0.1, log: str = "order log"):
        """`life` is a name that no other life of the copy has had, and `log` is for messages.

        Copy 0 claims after `silence_s`, each of the others `alive_s` later, so that two rarely claim at once.
        """
        self._copy, self._life, self._silence_s, self._alive_s, self._log = copy, life, silence_s, alive_s, log
        self.epoch = 0
        self.version = 0
        """Of the last order that counts."""
        self.leader: int | None = None
        self.term = 0
        """The epoch that this copy leads in, or 0. Where it has changed, what was proposed and not heard is void."""
        self._claimed = 0
        """The epoch that it claimed in this life."""
        self._orders: deque[dict[str, Any]] = deque()
        """Those that it appended and that have not come back."""
        self._signs = 0
        self._now_s = 0.0
        self._heard_s: float | None = None
        """When there was a sign of a leader; None before there was a moment."""
        self._sent_s = 0.0
        self._waiting_s = 0.0
        """Since when the claim, or the first of the orders, is on its way."""

    @property
    def is_leader(self) -> bool:
        """Has its claim come back, and with it all that is in the log before it?"""
        return self.term > 0

    # ------------------------------------------------------------------- heard

    def heard(self, entry: Entry, now_s: float) -> Runs | None:
        """The next entry of the log. Gives the runs to order, where it is an order that counts.

        Raises QueueDamaged where it is no entry of such a log, or of another with the same name.
        """
        self._set_clock(now_s)
        try:
            if "claim" in entry:
                self._on_claim(int(entry["claim"]), int(entry["by"]), entry["life"])
                return None
            if int(entry["epoch"]) != self.epoch:
                return None
            self._heard_s = self._now_s
            if "alive" in entry or int(entry["version"]) != self.version + 1:
                return None
            return self._on_order([(int(at), int(count)) for at, count in entry["runs"]])
        except (KeyError, TypeError, ValueError) as error:
            raise QueueDamaged(
                self._log, f"it has an entry that is no claim, order or sign of life: {entry}"
            ) from error

    def _on_claim(self, epoch: int, by: int, life: str) -> None:
        if epoch > self.epoch:
            self._step_down()
            self.epoch, self.leader = epoch, by
            self._heard_s = self._sent_s = self._now_s
            if (by, life) == (self._copy, self._life):
                self.term = epoch

    def _on_order(self, runs: Runs) -> Runs:
        self.version += 1
        if self.is_leader:
            if not self._orders or _runs_of(self._orders.popleft()) != runs:
                raise QueueDamaged(
                    self._log,
                    f"order {self.version} of epoch {self.epoch} is not what its leader made it: copy {self._copy} has "
                    f"had two lives of the name {self._life}",
                )
            self._waiting_s = self._now_s
        return runs

    def _step_down(self) -> None:
        self.term = 0
        self._orders.clear()

    # -------------------------------------------------------------------- tell

    def tick(self, now_s: float) -> list[dict[str, Any]]:
        """What to append now: a claim where no leader was heard, a sign of life, or what seems to be lost."""
        self._set_clock(now_s)
        return self._lead() if self.is_leader else self._claim()

    def _lead(self) -> list[dict[str, Any]]:
        if self._orders and self._now_s - self._waiting_s >= self._silence_s:
            self._sent_s = self._waiting_s = self._now_s
            return [dict(order) for order in self._orders]
        if self._now_s - self._sent_s < self._alive_s:
            return []
        self._sent_s = self._now_s
        self._signs += 1
        return [{"epoch": self.epoch, "alive": self._signs}]

    def _claim(self) -> list[dict[str, Any]]:
        if self._heard_s is None:
            self._heard_s = self._now_s
        if self._now_s - self._heard_s < self._silence_s + self._copy * self._alive_s:
            return []
        if self._claimed > self.epoch and self._now_s - self._waiting_s < self._silence_s:
            return []  # it is on its way
        self._claimed = self.epoch + 1
        self._waiting_s = self._now_s
        return [{"claim": self._claimed, "by": self._copy, "life": self._life}]

    def proposal(self, runs: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
        """The order to append, where this copy leads: it is one only when it comes back through `heard`."""
        if not self.is_leader or not runs:
            return None
        version = self.version + len(self._orders) + 1
        order = {"epoch": self.epoch, "version": version, "runs": [[int(at), int(count)] for at, count in runs]}
        if not self._orders:
            self._waiting_s = self._now_s
        self._orders.append(order)
        self._sent_s = self._now_s
        return dict(order)

    def _set_clock(self, now_s: float) -> None:
        """A clock that has gone back says how late it is all the same: what was before is now."""
        if now_s < self._now_s:
            self._heard_s = None if self._heard_s is None else min(self._heard_s, now_s)
            self._sent_s, self._waiting_s = min(self._sent_s, now_s), min(self._waiting_s, now_s)
        self._now_s = now_s

    # ------------------------------------------------------------------- state

    def snapshot(self) -> dict[str, Any]:
        """What the log says up to the last entry heard. Whoever goes on from here has to claim again."""
        return {"epoch": self.epoch, "version": self.version, "leader": self.leader}

    def restore(self, values: Mapping[str, Any]) -> None:
        """What an earlier life knew: to be given to a new one before it hears anything."""
        self.epoch, self.version, self.leader = values["epoch"], values["version"], values["leader"]


def _runs_of(order: Entry) -> Runs:
    return [(at, count) for at, count in order["runs"]]
