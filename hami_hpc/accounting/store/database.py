# SPDX-License-Identifier: Apache-2.0
"""DuckDB: makes connections with a memory limit, and the pieces of SQL that several modules use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

# Rows that are fetched one by one. More are converted by column, in a third of the time, for which duckdb loads numpy:
# that takes as long as some 100,000 cells.
_FEW = 10_000
_LOW_BITS = 62


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


def columns(con: duckdb.DuckDBPyConnection, query: str) -> list[list[Any]]:
    """Runs a query and returns its result by column."""
    con.execute(query)
    rows = con.fetchmany(_FEW)
    is_mixed = len(rows) == _FEW and _gives_the_rest(con.cursor())
    if not is_mixed:
        rows += con.fetchall()
    found = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in con.description or ()]
    if is_mixed:
        for column, rest in zip(found, con.fetchnumpy().values(), strict=True):
            column += rest.tolist()
    return found


def _gives_the_rest(con: duckdb.DuckDBPyConnection) -> bool:
    """Returns whether fetchnumpy gives the rows that fetchmany has left, and no others: duckdb does not promise it, and
    amounts depend on it."""
    con.execute("FROM range(3000) ORDER BY 1")
    con.fetchmany(5)
    (rest,) = con.fetchnumpy().values()
    return bool(rest.tolist() == list(range(5, 3000)))


def halves(expression: str) -> str:
    """Returns SQL for two columns that hold a HUGEINT, each a BIGINT, which are fetched much faster than a HUGEINT.

    joined() puts them together. Raises a conversion error beyond 125 bits.
    """
    return f"(({expression}) >> {_LOW_BITS})::BIGINT, (({expression}) & {(1 << _LOW_BITS) - 1})::BIGINT"


def joined(high: Sequence[int], low: Sequence[int]) -> list[int]:
    """Returns the numbers of two columns that halves() made."""
    return [upper << _LOW_BITS | lower for upper, lower in zip(high, low, strict=True)]
