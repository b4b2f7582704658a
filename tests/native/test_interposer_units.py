# SPDX-License-Identifier: Apache-2.0
"""The parts of the interposer that know nothing of the driver, from the inside."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from conformance import BUILD, ROOT, make_slice


def run(program: str, *arguments: str) -> None:
    result = subprocess.run([BUILD / "unit" / program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_budget_gives_the_share_in_rounds() -> None:
    run("a_budget_gives_the_share_in_rounds")


def test_the_time_used_is_that_on_the_engine_with_work() -> None:
    run("the_time_used_is_that_on_the_engine_with_work")


def test_processes_share_one_budget(tmp_path: Path) -> None:
    made = make_slice(tmp_path / "job", None, "GPU-0", job_mib=1000, cores_percent=50, step_cores_percent=20)
    run("processes_share_one_budget", str(made.limits))


def test_an_exit_waits_for_the_last_count() -> None:
    run("an_exit_waits_for_the_last_count")


def test_a_capture_waits_for_its_own_gpu() -> None:
    run("a_capture_waits_for_its_own_gpu")


def test_a_thread_that_ends_inside_a_hold_leaves_it() -> None:
    run("a_thread_that_ends_inside_a_hold_leaves_it")


def test_a_context_has_the_number_of_its_groups() -> None:
    run("a_context_has_the_number_of_its_groups")


def test_the_gate_measures_each_context() -> None:
    run("the_gate_measures_each_context")


def test_timeslices_of_copies_hold_though_groups_go() -> None:
    run("timeslices_of_copies_hold_though_groups_go")


def test_what_waits_for_all_ends_a_placeholder() -> None:
    run("what_waits_for_all_ends_a_placeholder")


def test_segments_of_pools_are_known() -> None:
    run("segments_of_pools_are_known")


def test_a_hint_holds_the_gpu_until_the_next_launch() -> None:
    run("a_hint_holds_the_gpu_until_the_next_launch")


def test_uuids_are_read() -> None:
    run("uuids_are_read")


def test_a_table_finds_what_was_put() -> None:
    run("a_table_finds_what_was_put")


def test_a_forked_child_has_a_table_of_its_own() -> None:
    run("a_forked_child_has_a_table_of_its_own")


def test_a_dead_owner_gives_up_the_lock(tmp_path: Path) -> None:
    made = make_slice(tmp_path / "job", None, "GPU-0", job_mib=1000)
    run("a_dead_owner_gives_up_the_lock", str(made.limits))


def test_a_lock_that_nobody_gives_up_is_waited_for_and_no_more(tmp_path: Path) -> None:
    made = make_slice(tmp_path / "job", None, "GPU-0", job_mib=1000)
    run("a_lock_that_nobody_gives_up_is_waited_for_and_no_more", str(made.limits))


def test_any_usage_record_is_survived() -> None:
    """A few seconds of libFuzzer; by hand for longer: make -C native fuzz FUZZ_SECONDS=600."""
    command = ["make", "-C", str(ROOT / "native"), "fuzz", "FUZZ_SECONDS=4", "SAN="]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    runs = re.search(r"Done (\d+) runs", result.stdout)
    assert runs is not None
    assert int(runs[1]) > 200
