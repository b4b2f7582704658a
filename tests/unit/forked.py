# SPDX-License-Identifier: Apache-2.0
"""Children that go on in Python, without an exec, how to kill one at any line, and at which lines."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import commit

# How often one line counts: a loop that was stopped in its second turn has been seen. HAMI_TEST_TURNS=1000: every turn.
TURNS = int(os.environ.get("HAMI_TEST_TURNS", "2"))
# Of the points at which something is killed or fails each tenth is tried, and each commit begins at another one.
# HAMI_TEST_EACH=1 (make test-all-points): all of them.
EACH = int(os.environ.get("HAMI_TEST_EACH", "10"))


def points() -> Iterator[int]:
    """Yields the points at which something is to be killed, or to fail, from 1 on, without an end."""
    return itertools.count(1 + commit.number() % EACH, EACH)


def fork() -> int:
    """os.fork(), whose child leaves the parent's garbage alone: a DuckDB connection that is collected there ends the
    child with SIGSEGV, as DuckDB's threads are not in it."""
    child = os.fork()
    if child == 0:
        gc.freeze()
    return child


def killing(at_line: int, is_traced: Callable[[CodeType], bool], turns: int = TURNS) -> Callable[..., Any]:
    """Returns a function for sys.settrace, which kills this process (SIGKILL) at the `at_line`-th line of the traced
    code that it runs. One line counts `turns` times at the most."""
    seen: Counter[tuple[str, int]] = Counter()
    counted = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal counted
        if not is_traced(frame.f_code):
            return None
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            seen[line] += 1
            counted += seen[line] <= turns
            if counted == at_line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace
