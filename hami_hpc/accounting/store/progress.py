# SPDX-License-Identifier: Apache-2.0
"""How far a long ingest is, on standard error: one line written over on a terminal, else a line every ten seconds."""

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
    """While the body runs statements on ``con``, tell ``out`` how much of the present one is done. None: silence.

    What is over before the first look says nothing.
    """
    if out is None:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(con, what, out, over), name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(con: duckdb.DuckDBPyConnection, what: str, out: TextIO, over: threading.Event) -> None:
    terminal = out.isatty()
    told = False
    while not over.wait(_TERMINAL_S if terminal else _LOG_S):
        done = con.query_progress()  # -1 where DuckDB cannot tell
        text = f"{what}, {done:.0f} %" if done >= 0 else what
        out.write(f"\r\x1b[K{text}" if terminal else f"{text}\n")
        out.flush()
        told = True
    if terminal and told:
        out.write("\r\x1b[K")
        out.flush()
