# SPDX-License-Identifier: Apache-2.0
"""Hints of services in Python: when a request begins and ends, and how long it should take (docs/researchers.md).

    from hami_hpc.hints import request, soon

    with request(deadline_ms=10):
        batch = prepare()
        soon()  # some 0.1 ms before the first launch
        answer = model(batch).cpu()

Outside of a vGPU job it does nothing. It needs the standard library only. The time counts until the block ends, so wait
for the result in it. A request belongs to its thread, and each thread can have one at a time: one within another is
ignored. From a process's first hint on, hami_hpc does not measure its requests in any other way.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_UINT64_MAX = (1 << 64) - 1


def _functions() -> tuple[Callable[[int], int], Callable[[], int], Callable[[], int] | None] | None:
    """Returns the functions of native/include/hami_hpc.h in this process; None where it does not have them."""
    try:
        loaded = ctypes.CDLL(None)
        begin, end = loaded.hami_hint_begin, loaded.hami_hint_end
    except (AttributeError, OSError, TypeError):  # TypeError: not on Linux
        return None
    begin.argtypes, begin.restype = [ctypes.c_uint64], ctypes.c_int
    comes = getattr(loaded, "hami_hint_soon", None)  # an older library has none
    for function in filter(None, (end, comes)):
        function.argtypes, function.restype = [], ctypes.c_int
    return begin, end, comes


_HINTS = _functions()


def is_active() -> bool:
    """Returns whether hints are taken: whether this process runs in a vGPU job."""
    return _HINTS is not None


@contextmanager
def request(deadline_ms: float | None = None) -> Iterator[None]:
    """Marks one request. It should take at most `deadline_ms`; without it, at most what the job asked for with slo=.

    Raises ValueError for a deadline that is not a positive number, inside and outside of a job alike.
    """
    if deadline_ms is not None and not (math.isfinite(deadline_ms) and deadline_ms > 0):
        raise ValueError(f"deadline_ms is {deadline_ms}; allowed is a number above 0. Example: deadline_ms=10")
    deadline_us = 0 if deadline_ms is None else min(max(1, round(deadline_ms * 1000)), _UINT64_MAX)
    has_begun = _HINTS is not None and _HINTS[0](deadline_us) == 0
    try:
        yield
    finally:
        if has_begun and _HINTS is not None:
            _HINTS[1]()


def soon() -> None:
    """Says that this thread launches something in its current CUDA context in 0.3 to 0.9 ms.

    Where others on the GPU have to give way to the job, the GPU is taken from them now, for which the request would
    wait 0.2 ms after its first launch, until that begins, or for 1 ms (docs/benchmarks/time.md, "Run 13").
    """
    if _HINTS is not None and _HINTS[2] is not None:
        _HINTS[2]()
