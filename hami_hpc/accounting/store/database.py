# SPDX-License-Identifier: Apache-2.0
"""DuckDB: a connection within bounds of memory, and the pieces of SQL that several modules use."""

from __future__ import annotations

from pathlib import Path

import duckdb


def connect(memory_mib: int = 1024, threads: int = 0, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that stays within ``memory_mib`` and spills to ``spill`` beyond it."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_mib}MiB",
        "preserve_insertion_order": "false",
    }
    if threads:
        config["threads"] = str(threads)
    if spill:
        config["temp_directory"] = str(spill)
    connection = duckdb.connect(config=config)
    # Nothing is printed; query_progress() answers only while this is on (progress.py).
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET enable_progress_bar = true")
    return connection


def parquet(path: Path) -> str:
    """A table function call that reads a Parquet file."""
    return f"read_parquet({literal(str(path))})"


def literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def one_row(con: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    """The row of a query that gives one."""
    row = con.execute(query).fetchone()
    assert row is not None
    return tuple(row)
