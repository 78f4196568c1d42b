from __future__ import annotations

from headrace.testing.kafka import kafka_broker  # noqa: F401
