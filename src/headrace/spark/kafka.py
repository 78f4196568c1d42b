"""Spark's own Kafka connector, in a session: sources and sinks of the format `kafka`.

```python
spark = with_kafka(SparkSession.builder).getOrCreate()
spark = local_session(**kafka_settings())                 # the same, for sessions that Headrace makes
add_kafka(spark)                                          # for a session that is there already
```

The jars are fetched once from Maven Central and kept; Spark's `spark.jars.packages` would look at every start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from headrace.spark import maven

_CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_PROVIDER: Final = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# Where Maven does not have the connector of this very Spark: a pair that works on 4.2 and 4.3.
_OTHER_CONNECTOR: Final = f"{_CONNECTOR}:4.2.0"
_OTHER_PROVIDER: Final = f"{_PROVIDER}:4.1.0-preview1"
_NEEDED: Final = ("org.apache.spark_", "org.apache.kafka_", "org.apache.commons_commons-pool2")
"""All the others that they ask for are in Spark."""
_IN_SPARK: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")


def with_kafka(builder: SparkSession.Builder) -> SparkSession.Builder:
    """A builder whose session can read and write Kafka. Call it before the session is made: jars come at its start."""
    for key, value in kafka_settings().items():
        builder = builder.config(key, value)
    return builder


def add_kafka(spark: SparkSession) -> SparkSession:
    """Add the connector to a running session. On a cluster, the jars travel with the session's tasks."""
    for jar in connector_jars():
        spark.sql(f"ADD JAR '{jar}'")
    return spark


def kafka_settings() -> dict[str, str]:
    """What a session must be started with."""
    return {"spark.jars": ",".join(map(str, connector_jars()))}


def connector_jars() -> list[Path]:
    """The connector in pyspark's own version or, where that cannot be resolved, another one that works with it."""
    folder = maven.cache_folder() / "spark-kafka"
    own, other, provider = folder / pyspark.__version__, folder / "4.2.0-other", folder / "4.1.0-provider"
    if own.exists() or not (other.exists() and provider.exists()):
        try:
            return maven.jars(own, [f"{_CONNECTOR}:{pyspark.__version__}"])
        except maven.NotResolved as problem:
            if not problem.is_missing:
                raise
    found = maven.jars(other, [_OTHER_CONNECTOR], excluded=[_PROVIDER])
    excluded = [*_IN_SPARK, "org.apache.kafka:kafka-clients"]
    found += maven.jars(provider, [_OTHER_PROVIDER], excluded=excluded)
    return [jar for jar in found if jar.name.startswith(_NEEDED)]
