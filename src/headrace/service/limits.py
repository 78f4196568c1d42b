"""Who may ask, how much, and how often."""

from __future__ import annotations

import hmac
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import RequestRefused

MOST_BODY_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Limits:
    """`tokens`: one of them must come with every request, if there are any; `rate`: requests a second for each."""

    tokens: tuple[str, ...] = ()
    body_bytes: int = MOST_BODY_BYTES
    rate: float | None = None
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def check(self, authorization: str | None, client: str) -> None:
        """Raises RequestRefused."""
        who = client
        if self.tokens:
            kind, _, token = (authorization or "").partition(" ")
            if kind.lower() != "bearer" or not token:
                raise RequestRefused("this needs a token: send the header Authorization: Bearer TOKEN", 401)
            if not any(hmac.compare_digest(token.encode(), known.encode()) for known in self.tokens):
                raise RequestRefused("the token is not one of those that this service knows", 403)
            who = token
        if self.rate is not None:
            self._count(who, self.rate)

    def _count(self, who: str, rate: float) -> None:
        """A bucket of as many requests as a second has, filled all the time."""
        now, most = time.monotonic(), max(1.0, rate)
        with self._lock:
            left, at = self._buckets.get(who, (most, now))
            left = min(most, left + (now - at) * rate)
            if left < 1:
                raise RequestRefused(f"more than {rate:g} requests a second: wait a moment", 429, (1 - left) / rate)
            self._buckets[who] = (left - 1, now)
            if len(self._buckets) > 10_000:
                self._buckets.clear()
