# SPDX-License-Identifier: Apache-2.0
"""Turns beside a latency-critical job change between its requests, not amid them; on the simulation."""

from __future__ import annotations

import bisect
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice
from test_compute import SPIN, machine, measured
from test_resized import change

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/bench_time.py, changes")
SERVE = str(BUILD / "compute/requests_take_time")
MS = 1_000_000
BE = {"latency_others": 1, "turn_length_permille": 500}
SHORT = {"latency_others": 1, "turn_length_permille": 200}


@dataclass(frozen=True)
class Found:
    shares: list[float]
    changes: int
    amid: int  # of them, amid a request


class Busy:
    """A best-effort job that wants everything, and when its channels were opened and paused."""

    def __init__(self, made: Slice, milliseconds: int) -> None:
        self.changes: list[int] = []
        self.process = subprocess.Popen(
            [SPIN, str(milliseconds), "1000"],
            env=made.environment() | {c.ENV_LOG: "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            if line.split()[-1] in ("open", "paused"):
                self.changes.append(time.monotonic_ns())

    def share(self) -> float:
        assert self.process.stdout
        assert self.process.stderr
        share = float(self.process.stdout.read())
        self.reader.join()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        return share


def made(tmp_path: Path, machine: tuple[Path, str], **fields: int) -> Slice:
    place = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
    return make_slice(place, *machine, job_mib=8192, cores_percent=30, policy="burst", fields=fields)


def beside(tmp_path: Path, machine: tuple[Path, str], *serve: object) -> Found:
    busy = [Busy(made(tmp_path, machine, **BE, turn_begin_permille=begin), 3000) for begin in (0, 500)]
    time.sleep(0.5)
    urgent = made(tmp_path, machine, latency=1, floor_percent=5)
    words = [SERVE, *(str(word) for word in serve)]
    served = subprocess.run(words, env=urgent.environment(), capture_output=True, text=True, timeout=60, check=True)
    requests = [tuple(map(int, line.split())) for line in served.stdout.splitlines() if " " in line]
    shares = [one.share() for one in busy]
    changes = [at for one in busy for at in one.changes if requests[0][0] < at < requests[-1][1]]
    return Found(shares, len(changes), sum(is_amid(at, requests) for at in changes))


def is_amid(at: int, requests: list[tuple[int, ...]]) -> bool:
    """Whether a request was under way for a while, and went on. A line is read a little later than it is written."""
    begun, ended = requests[bisect.bisect(requests, (at,)) - 1]
    return begun + MS < at < ended - MS // 2


def test_turns_change_between_requests(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """Requests of 3 ms, with 3 ms between: 25 % of all times are amid one."""
    found = measured(
        lambda: beside(tmp_path, machine, 300, 3000, 3000, "list"),
        lambda found: found.amid < found.changes * 0.08,
    )
    assert found.changes > 20


def test_turns_change_beside_requests_that_never_pause(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """Those are not waited for, and each of two equal tenants has the same."""
    measured(
        lambda: beside(tmp_path, machine, 60, 30000, 100, "list"),
        lambda found: found.changes > 40 and 0.75 < found.shares[0] / found.shares[1] < 1.33,
    )


def test_a_job_of_several_processes_keeps_to_its_turn(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """Its processes visit the engine one after the other, all the time, and wait for none of them."""

    def jobs() -> float:
        jobs = [made(tmp_path, machine, **SHORT, turn_begin_permille=begin) for begin in (0, 200)]
        running = [Busy(jobs[0], 2500), Busy(jobs[0], 2500), Busy(jobs[1], 2500)]
        one, two, other = (each.share() for each in running)
        return (one + two) / other

    measured(jobs, lambda ratio: 0.7 < ratio < 1.4)


def test_who_is_beside_changes_while_turns_change(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """The latency-critical job, whose requests are waited for at each change, goes: all time is everybody's again."""

    def after_it_has_gone() -> int:
        place = made(tmp_path, machine, **BE, turn_begin_permille=0)
        urgent = made(tmp_path, machine, latency=1, floor_percent=5)
        service = subprocess.Popen(
            [SERVE, "700", "3000", "3000", "wait"],
            env=urgent.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        busy = Busy(place, 4000)
        time.sleep(1.5)
        change(place, latency_others=0, turn_length_permille=0)
        time.sleep(0.5)
        told = time.monotonic_ns()
        busy.share()
        service.wait()
        return sum(at > told for at in busy.changes)

    measured(after_it_has_gone, lambda changes: changes <= 2)
