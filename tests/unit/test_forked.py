# SPDX-License-Identifier: Apache-2.0
"""A forked child of the tests beside DuckDB."""

from __future__ import annotations

import gc
import os

import duckdb
from forked import fork


def test_a_child_leaves_a_connection_in_the_parents_garbage_alone() -> None:
    """Without that it ends with SIGSEGV, and with it every test that forks."""
    gc.collect()
    gc.disable()
    try:
        cycle: list[object] = [duckdb.connect()]
        cycle.append(cycle)
        cycle[0].execute("select sum(x * random()) from range(3000000) t(x)").fetchall()  # type: ignore[attr-defined]
        del cycle
        child = fork()
        if child == 0:
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        gc.enable()
