# SPDX-License-Identifier: Apache-2.0
"""The files of a job with several slices, and what they used together."""

from __future__ import annotations

from hami_hpc.core.records import DAMAGED_USAGE, MISSING_USAGE, Usage, limits_file, total_usage, usage_file


def test_each_slice_has_files_of_its_own_and_the_first_those_of_a_single_one() -> None:
    assert [limits_file(i) for i in (0, 1, 15)] == ["job.limits", "job.1.limits", "job.15.limits"]
    assert [usage_file(i) for i in (0, 1)] == ["shared/usage", "shared/usage.1"]


def test_slices_are_added_up_with_the_longest_delay_and_the_first_and_last_time() -> None:
    one = Usage("ok", 1, 2, 3, 4, 5, latency_p99_us=9, first_launch_unix_ns=50, last_use_unix_ns=60, request_count=1)
    two = Usage("ok", 10, 20, 30, 40, 50, latency_p99_us=7, first_launch_unix_ns=0, last_use_unix_ns=90)
    both = total_usage((one, two))
    assert both[:6] == ("ok", 11, 22, 33, 44, 55)
    assert (both.latency_p99_us, both.request_count) == (9, 1)
    assert (both.first_launch_unix_ns, both.last_use_unix_ns) == (50, 90)
    assert total_usage((one,)) is one
    assert total_usage((MISSING_USAGE, MISSING_USAGE)) == MISSING_USAGE
    assert total_usage((one, MISSING_USAGE)).state == total_usage((DAMAGED_USAGE, two)).state == "damaged"
    assert total_usage((one._replace(oom_count=2**63 - 1), two)).oom_count == 2**63 - 1, "what the spool can hold"
