"""Tools to test metrics with, ours and yours.

| module | has |
|---|---|
| `oracle` | `oracle_table`: a literal, slow implementation of `measure` for some hundred rows |
| `definitions` | every aggregation by its definition, in exact arithmetic |
| `duckdb_oracle` | the same questions to DuckDB, for a million rows with distinct times |
| `compare` | `assert_same_answers`: two tables, bit for bit or within stated ulps |
| `contracts` | `check_aggregation`, `check_frame_independence`: what every aggregation and definition must pass |
| `strategies` | hypothesis strategies for events, metric texts and frame sizes |
| `values` | for every type, the values that break aggregations first |
| `spark` | the `spark` fixture and `on_connect` for Spark Connect |

Nothing is imported here, so that one tool does not need what another needs (DuckDB, hypothesis, pytest, Spark).
"""
