# SPDX-License-Identifier: Apache-2.0
"""DuckDB: makes connections with a memory limit, and the pieces of SQL that several modules use."""

from __future__ import annotations

from pathlib import Path

import duckdb


def connect(memory_mib: int = 1024, threads: int = 0, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Returns a DuckDB connection that uses at most ``memory_mib`` and spills to the directory ``spill`` beyond it."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_mib}MiB",
        "preserve_insertion_order": "false",
    }
    if threads:
        config["threads"] = str(threads)
    if spill:
        config["temp_directory"] = str(spill)
    connection = duckdb.connect(config=config)
    # query_progress() works only with the progress bar on (progress.py); the bar itself is not printed.
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET enable_progress_bar = true")
    return connection


def parquet(path: Path) -> str:
    """Returns the SQL table function call that reads a Parquet file."""
    return f"read_parquet({literal(str(path))})"


def literal(text: str) -> str:
    """Returns a text as SQL string."""
    return "'" + text.replace("'", "''") + "'"


def one_row(con: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    """Runs a query that returns one row, and returns that row."""
    row = con.execute(query).fetchone()
    assert row is not None
    return tuple(row)
