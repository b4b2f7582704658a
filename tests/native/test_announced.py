# SPDX-License-Identifier: Apache-2.0
"""Requests of a latency-critical program that come regularly are announced for it; on the simulated driver and kernel.

Which requests are expected: test_forecast.py. What it gains only hardware shows: `make bench-time SECTIONS=latency`.
A busy machine makes the program come late, so what was announced is compared with what the rules say of the moments at
which it did come.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from conformance import BUILD, REAL_GPU, ROOT, make_slice
from test_compute import machine, measured, run

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import parse_delays

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="counts what the simulated GPU ran")
SERVE = str(BUILD / "compute/requests_take_time")
LC = {"latency": 1, "floor_percent": 5}
BESIDE = {"others_least_cores": 50}
RULES = (ROOT / "native/interposer/arbitration/forecast.h").read_text()
LEAST = int(RULES.split("#define HAMI_FORECAST_LEAST ")[1].split()[0])  # before the first that is announced
COUNT, US, GAP_US = 30, 900, 100_000
KERNELS = 2  # a placeholder, and what waits behind it


class Announced(NamedTuple):
    """Of the requests of one program: how many were announced, and how many the rules let expect."""

    found: int
    expected: int


def expected(begun: list[int]) -> int:
    """Returns how many requests, of those that came at these moments (ns) and the next, were to be expected. With a
    sanitizer, which would have to be in Python itself, all of them."""
    if BUILD.name != "native":
        return len(begun)
    from forecasting import Forecast

    forecast = Forecast()
    answers = []
    for moment in begun:
        forecast.note(moment)
        answers.append(forecast.next() is not None)
    return sum(answers)


def announced(
    place: Path, fields: dict[str, int], gap_us: int = GAP_US, faults: str = "", wanted: str = "1"
) -> Announced:
    """Runs a program that comes back after `gap_us`; all of its requests were served."""
    place.mkdir()
    machine = place / "sim"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    settings = (machine / "machine.conf").read_text()
    uuid, kernel_ns = (re.search(what, settings) for what in (r"GPU-[-0-9a-f]+", r"kernel_ns=(\d+)"))
    assert uuid
    assert kernel_ns
    made = make_slice(place / "job", machine, uuid[0], job_mib=8192, policy="burst", fields=fields)
    made.extra[c.ENV_ANNOUNCE] = wanted
    printed = run(made, SERVE, COUNT, US, gap_us, "list", faults=faults).stdout.splitlines()
    begun = [int(line.split()[0]) for line in printed[:COUNT]]
    if fields.get("latency"):
        found = parse_delays((made.directory / c.FILE_USAGE).read_bytes()).request_count
        assert COUNT // 2 <= found <= 2 * COUNT  # a busy machine joins some, and parts others
    state = subprocess.run([str(BUILD / "sim/sim-state"), str(machine), "--runs"], capture_output=True, check=True)
    ran_ns: int = sum(ran["length_ns"] for gpu in json.loads(state.stdout)["gpus"] for ran in gpu["runs"])
    left = ran_ns - COUNT * (US // 3 * 3000)
    assert left % (KERNELS * int(kernel_ns[1])) == 0
    return Announced(left // (KERNELS * int(kernel_ns[1])), expected(begun))


def fresh(tmp_path: Path) -> Path:
    return tmp_path / str(len(list(tmp_path.iterdir())))


@pytest.mark.quiet
def test_all_but_the_first_are_announced_each_once(tmp_path: Path) -> None:
    """On a machine that is too busy for a rhythm, eight times in turn, only that no more were than the rules expect."""
    most = COUNT - LEAST  # one more than there are: the one that does not come
    for _ in range(8):
        seen = announced(fresh(tmp_path), LC | BESIDE)
        assert seen.found <= min(seen.expected + 2, most)  # the program's own clock is read a little earlier
        if seen.expected >= most - 2 and seen.found >= most - 4:
            return
    assert BUILD.name != "native" or seen.expected < most - 2, seen


@pytest.mark.parametrize(
    "fields",
    [LC, BESIDE, LC | BESIDE | {"latency_others": 1}, LC | BESIDE | {"mode": c.MODES["mps"]}],
    ids=["alone on the GPU", "not latency-critical", "beside another one that is", "mode=mps"],
)
def test_none_is_announced_where_nobody_gives_way(tmp_path: Path, fields: dict[str, int]) -> None:
    assert announced(fresh(tmp_path), fields, 20_000).found == 0


@pytest.mark.parametrize("wanted", ["", "0"])
def test_none_is_announced_where_nobody_asked_for_it(tmp_path: Path, wanted: str) -> None:
    assert announced(fresh(tmp_path), LC | BESIDE, 20_000, wanted=wanted).found == 0


def test_none_is_announced_of_a_program_that_hardly_rests(tmp_path: Path) -> None:
    assert announced(fresh(tmp_path), LC | BESIDE, 1).found == 0


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuStreamCreateWithPriority"])
def test_where_the_driver_refuses_it_nothing_changes(tmp_path: Path, function: str) -> None:
    assert announced(fresh(tmp_path), LC | BESIDE, 20_000, f"{function}=801").found == 0


def test_a_driver_whose_streams_take_no_word_has_it_ended_by_the_launch(tmp_path: Path) -> None:
    faults = "cuStreamWriteValue32=801"
    assert measured(
        lambda: announced(fresh(tmp_path), LC | BESIDE, faults=faults), lambda seen: seen.found > 0 or not seen.expected
    )


def test_threads_and_contexts_come_and_go_beside_announcements(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=65536, policy="burst", fields=LC | BESIDE)
    made.extra[c.ENV_ANNOUNCE] = "1"
    result = run(made, str(BUILD / "compute/announcements_under_threads"), 1500)
    assert "no placeholder in this context" not in result.stderr
