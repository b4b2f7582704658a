# SPDX-License-Identifier: Apache-2.0
"""What a job's usage record says of its requests and pauses: contract.toml, [layout.usage]. Pure.

The job's own processes write it, so each number is bounded, and no content makes a function here fail.
"""

from __future__ import annotations

import struct

from hami_hpc.contract import constants as c
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INT64_MAX = (1 << 63) - 1  # the largest number that SQLite, JSON readers and Parquet take
_ROOT_2_PER_MILLION = 1_414_214


def _bounds_ns() -> tuple[int, ...]:
    """Returns the longest time in each row of the histogram but the last, as hami_latency_row() computes it in C."""
    even = [c.LATENCY_LEAST_NS << step for step in range(c.LATENCY_BUCKETS // 2)]
    both = [bound for one in even for bound in (one, one * _ROOT_2_PER_MILLION // 1_000_000)]
    return tuple(both[: c.LATENCY_BUCKETS - 1])


BOUNDS_NS = _bounds_ns()


class Delays(NamedTuple):
    """Counts since the job's start. `buckets` is () for no request, else one count for each row."""

    buckets: tuple[int, ...] = ()
    latency_sum_ns: int = 0
    slo_miss_count: int = 0
    pause_count: int = 0
    paused_ns: int = 0
    floor_hit_count: int = 0

    @property
    def request_count(self) -> int:
        return min(sum(self.buckets), INT64_MAX)


NO_DELAYS = Delays()
_FIRST, _ROWS_SIZE, _ = c.USAGE_FIELDS["latency_buckets"]
_COUNTS_AT = _FIRST + _ROWS_SIZE
_END = sum(c.USAGE_FIELDS["floor_hit_count"][:2])
_ROWS = struct.Struct(f"<{_ROWS_SIZE // 8}Q")
_COUNTS = struct.Struct(f"<{len(Delays._fields) - 1}Q")  # its other fields, which follow the rows in this order


def parse_delays(data: bytes) -> Delays:
    """Returns the delays in a usage file of which `data` is at least the head. Each number is at most INT64_MAX."""
    if not data[_FIRST:_END].strip(b"\0"):
        return NO_DELAYS
    rows = _bounded(_ROWS.unpack_from(data, _FIRST)) if data[_FIRST:_COUNTS_AT].strip(b"\0") else ()
    return Delays(rows, *_bounded(_COUNTS.unpack_from(data, _COUNTS_AT)))


def _bounded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers if max(numbers) <= INT64_MAX else tuple([min(number, INT64_MAX) for number in numbers])


def quantile_us(buckets: Sequence[int], percent: int) -> int:
    """Returns how long `percent` % of the requests took at most, us: the bound of the row in which that is.

    That is at most 41 % too long. The last row has no bound: its requests count as the one before. 0 without requests.
    """
    wanted, seen = -(-sum(buckets) * percent // 100), 0
    if wanted == 0:
        return 0
    for bound_ns, count in zip(BOUNDS_NS, buckets, strict=False):
        seen += count
        if seen >= wanted:
            return -(-bound_ns // 1000)
    return -(-BOUNDS_NS[-1] // 1000)
