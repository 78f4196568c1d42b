"""Tools to test metrics and flows with, ours and yours.

| module | has |
|---|---|
| `oracle` | `oracle_table`: a literal, slow implementation of `measure` for some hundred rows |
| `definitions` | every aggregation by its definition, in exact arithmetic |
| `duckdb_oracle` | the same questions to DuckDB, for a million rows with distinct times |
| `compare` | `assert_same_answers`: two tables, bit for bit or within stated ulps |
| `contracts` | `check_aggregation`, `check_frame_independence`: what every aggregation and definition must pass |
| `strategies` | hypothesis strategies for events, metric texts and frame sizes |
| `values` | for every type, the values that break aggregations first |
| `admitted` | `statuses`: which events count, literally: late, repeated, discarded |
| `spark` | the `spark` fixture and `on_connect` for Spark Connect |
| `file_stream`, `streams` | streams made of files, one a micro-batch, that can be stopped and started |
| `random_streams` | a random stream from a seed, answered as the batch and the oracle answer it |
| `crashes`, `crash_checks` | kill -9 and full disks at scripted points of a commit, and what must hold after them |
| `damage`, `full_disk` | files that have gone bad, and a disk that is really full |
| `queue_contract` | what every kind of queue must pass |
| `flows`, `flow_process` | flows to test with, what must hold of their output, and a driver that can be killed |
| `determinism` | `check_deterministic`: is a stage a function of its records alone? Copies of a task rely on it |
| `merge_oracles` | LiveRobin, KaZoo and the dropping of second copies, literally |
| `random_copies` | random flows whose tasks have copies, in simulated worlds with faults |
| `fuzz_frames`, `fuzz_files` | hostile frames, and damaged segments and manifests, by the million |
| `kafka` | the `kafka_broker` fixture: a real broker, which can be killed and started again |
| `cluster`, `stream_process` | a standalone cluster from pyspark's own package, and a query in a process of its own |

Nothing is imported here, so that one tool does not need what another needs (DuckDB, hypothesis, pytest, Spark).
"""
