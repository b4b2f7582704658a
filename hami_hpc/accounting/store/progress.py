# SPDX-License-Identifier: Apache-2.0
"""Prints the progress of a long ingest: on a terminal one line that is overwritten, else a line every ten seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import duckdb

_TERMINAL_S = 0.5
_LOG_S = 10.0


@contextmanager
def shown(con: duckdb.DuckDBPyConnection, what: str, out: TextIO | None) -> Iterator[None]:
    """Prints to ``out`` how much of the present statement on ``con`` is done, while the body runs.

    Prints nothing if ``out`` is None or the body ends before the first interval.
    """
    if out is None:
        yield
        return
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(con, what, out, finished), name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _watch(con: duckdb.DuckDBPyConnection, what: str, out: TextIO, finished: threading.Event) -> None:
    is_terminal = out.isatty()
    has_printed = False
    while not finished.wait(_TERMINAL_S if is_terminal else _LOG_S):
        percent = con.query_progress()  # -1 when DuckDB does not know
        text = f"{what}, {percent:.0f} %" if percent >= 0 else what
        out.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        out.flush()
        has_printed = True
    if is_terminal and has_printed:
        out.write("\r\x1b[K")
        out.flush()
