# SPDX-License-Identifier: Apache-2.0
"""Children that go on in Python, without an exec."""

import gc
import os


def fork() -> int:
    """os.fork(), whose child leaves the parent's garbage alone: a DuckDB connection that is collected there ends the
    child with SIGSEGV, as DuckDB's threads are not in it."""
    child = os.fork()
    if child == 0:
        gc.freeze()
    return child
