# SPDX-License-Identifier: Apache-2.0
"""The figures that `hami-hpc advise` gives, each with the page that has it. Pure.

`found_in` is the row or the words of that page: tests/unit/test_advice.py fails for a figure that is not there. Nothing
is here that was not measured, or computed where it says so.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One measured figure: what it says, the page below docs/benchmarks, and the words of the page that have it."""

    text: str
    page: str
    found_in: str


SHARE_TOTAL = Figure(
    "two busy tenants of 75 and 25 % had 74.14 and 24.79 % of native, 98.90 together (H200)",
    "interposer.md",
    "| 75, 25 | burst (timeslices) | 74.14, 24.79 | 98.90 |",
)
SHARE_CAP = Figure(
    "kernels of 1 ms under a cap of 25 % had 24.93 % of native (H200)",
    "interposer.md",
    "| 1 ms | 4.90 (4.0 to 6.0) | 9.89 (9.0 to 11.0) | 24.93 (24.0 to 26.0) |",
)
SHARE_LAUNCH = Figure(
    "a launch took 3386 ns, 3310 without the interposer (H200, cap of 50 %)",
    "interposer.md",
    "| null-kernel launch, cores=50, cap | 3310 ns | 3386 ns | 1.005 |",
)
SHARE_SHORT = Figure(
    "10 µs of work, launched and waited for, had 49 % of its rate alone beside a busy tenant, each with 50 (stock "
    "timeslices: 0.8 %; H200)",
    "time.md",
    "| 10 µs, launched and waited for | 0.8 + 85 | 0.1 + 98 | 49 + 48 | 49 + 48 |",
)
SHARE_LATENCY = Figure(
    "requests of a copy and 100 µs: p99 338 µs beside best effort that had 92.4 % of the rest (H200)",
    "time.md",
    "| (a) | 1, kernels of 1 ms | 318 | 338 | 2.42 | 2.29 (2.15) | 92.4 |",
)
ALONE_LATENCY = Figure(
    "the same requests: p99 148 µs (H200)",
    "time.md",
    "| (a) | nobody | 132 | 148 |",
)
STOCK_LATENCY = Figure(
    "the same requests: p99 2379 µs (H200)",
    "time.md",
    "| (a) | 1, stock | 1346 | 2379 | 10.23 | 16.09 | 92.7 |",
)
MPS_ONE_USER = Figure(
    "75 beside 25 % of one user had 74.4 and 24.3 % of the chip (H200)",
    "mps.md",
    "| 75 beside 25, one user, one daemon | 74.4 | 24.3 | 98, 32 |",
)
MPS_TWO_USERS = Figure(
    "75 beside 25 % of two users had 33.9 and 11.1 % of the chip (H200)",
    "mps.md",
    "| 75 beside 25, two users, a daemon each | 33.9 | 11.1 | 98, 32 |",
)
MPS_FAULT = Figure(
    "a store to an illegal address in one client gave the other client error 700 too (H200)",
    "mps.md",
    "| a kernel stores to an illegal address | **gets error 700 too** |",
)
MPS_LATENCY = Figure(
    "requests of a copy and 100 µs: p99 656 µs beside best effort of 50 % of the multiprocessors (H200)",
    "mps.md",
    "| best effort of 50 %, priority 0 | 234 | 656 | 49.8 |",
)
MPS_LATENCY_LONG = Figure(
    "requests of such kernels, 2 ms alone: p99 6939 µs beside best effort of 50 % of the multiprocessors (H200)",
    "mps.md",
    "| best effort of 50 %, priority 0 | 6685 | 6939 | 49.8 |",
)
MPS_START = Figure(
    "the first job's daemon was started in 27 ms, the median of ten (H200)",
    "mps.md",
    "| first job: the daemon is started | 27 | 30 |",
)
MIG_PUT_BACK = Figure(
    "5.87 % of the admitted jobs find no place, all sizes alike at a load of 1.0 (computed, not measured)",
    "mig.md",
    "| alike | 1.0 | 5.87 | 12.47 |",
)
FIGURES = tuple(value for value in list(globals().values()) if isinstance(value, Figure))
