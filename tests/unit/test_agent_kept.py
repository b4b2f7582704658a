# SPDX-License-Identifier: Apache-2.0
"""What the agent keeps from one look to the next, and what makes it read or decide anew."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest
from agent_states import make_state
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import UUIDS, Node
from turns_testbed import FIRST, SECOND_JOB, TURN_S, Site, away, both, site

from hami_hpc.agent.slices import Slices
from hami_hpc.contract import constants as c
from hami_hpc.core import swap, time_watch
from hami_hpc.core.agent_state import AgentState, from_json, to_json
from hami_hpc.core.delays import INT64_MAX, parse_delays
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import limits_file, parse_usage_head
from hami_hpc.core.watch import MIB, SECOND, Look, Process, Slice
from hami_hpc.node import job_dirs, memory_limits

__all__ = ["site"]  # the fixture
JOB = 7


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node.make(tmp_path / "node")
    text = node.config.read_text()
    node.config.write_text(text + "[classes.be]\nswap = true\n")
    assert node.prolog(JOB, HAMI_HPC_CLASS="be") == 0
    return node


def only(slices: Slices) -> Slice:
    ((one,), _whole) = slices.look()
    return one


def settled(node: Node) -> Slices:
    """Returns what reads the node's slices, after looks that found their directories unchanged."""
    slices = Slices(node.settings.run_dir)
    slices.look()
    for job in slices._jobs.values():
        job.settled = True
    assert only(slices) is only(slices), "nothing is parsed again"
    return slices


def write(node: Node, name: str, fields: dict[str, tuple[int, int, str]], **values: int) -> None:
    with (node.jobs / str(JOB) / name).open("r+b") as file:
        for field, value in values.items():
            offset, width, _kind = fields[field]
            file.seek(offset)
            file.write(value.to_bytes(width, "little"))


@pytest.mark.parametrize("field", ["used_bytes", "oom_count", "device_oom_count", "pause_count", "latency_buckets"])
def test_a_count_that_a_job_writes_is_seen_at_the_next_look(node: Node, field: str) -> None:
    slices = settled(node)
    before = only(slices)
    write(node, c.FILE_USAGE, {field: (c.USAGE_FIELDS[field][0], 8, "u")}, **{field: 5})
    assert only(slices) != before
    write(node, c.FILE_USAGE, {field: (c.USAGE_FIELDS[field][0], 8, "u")}, **{field: 0})
    assert only(slices) == before


def test_a_head_that_is_damaged_and_mended_counts_when_it_is_mended(node: Node) -> None:
    slices = settled(node)
    before = only(slices)
    write(node, c.FILE_USAGE, c.USAGE_FIELDS, magic=1)
    assert only(slices).accounted_bytes is None
    write(node, c.FILE_USAGE, c.USAGE_FIELDS, magic=c.USAGE_MAGIC)
    assert only(slices) == before
    os.truncate(node.jobs / str(JOB) / c.FILE_USAGE, 100)
    assert only(slices).accounted_bytes is None


def test_an_order_that_root_writes_into_the_record_is_seen_at_the_next_look(node: Node) -> None:
    slices = settled(node)
    assert only(slices).order == c.SWAP_IN
    write(node, limits_file(0), c.LIMITS_FIELDS, swap=c.SWAP_OUT)
    assert only(slices).order == c.SWAP_OUT


def test_a_job_that_ends_and_comes_back_is_read_anew_with_its_usage_file(node: Node) -> None:
    slices = settled(node)
    write(node, c.FILE_USAGE, c.USAGE_FIELDS, used_bytes=5 * MIB)
    before = only(slices)
    assert node.epilog(JOB, HAMI_HPC_CLASS="be") == 0
    assert slices.look() == ((), frozenset())
    assert node.prolog(JOB, HAMI_HPC_CLASS="be", HAMI_HPC_MEM_MIB="4096") == 0
    after = only(slices)
    assert (before.accounted_bytes, after.accounted_bytes) == (5 * MIB, 0)
    assert after.grant.mem_mib == 4096
    assert after.grant.created_unix_ns > before.grant.created_unix_ns


def test_a_job_that_comes_back_between_two_looks_is_read_anew(node: Node) -> None:
    """As a requeue does: the names in the run directory are the same at both."""
    slices = settled(node)
    write(node, c.FILE_USAGE, c.USAGE_FIELDS, used_bytes=5 * MIB)
    before = only(slices)
    assert node.epilog(JOB, HAMI_HPC_CLASS="be") == 0
    assert node.prolog(JOB, HAMI_HPC_CLASS="be") == 0
    after = only(slices)
    assert (before.accounted_bytes, after.accounted_bytes) == (5 * MIB, 0)
    assert after.grant.created_unix_ns > before.grant.created_unix_ns


def test_a_second_job_is_seen_beside_one_that_is_unchanged(node: Node) -> None:
    slices = settled(node)
    assert node.prolog(JOB - 1, HAMI_HPC_CLASS="be") == 0
    found, _whole = slices.look()
    assert [one.grant.job_id for one in found] == [JOB - 1, JOB], "by job id"


def reference(data: bytes, name: str, fields: dict[str, tuple[int, int, str]]) -> int:
    offset, width, _kind = fields[name]
    return min(int.from_bytes(data[offset : offset + width], "little"), INT64_MAX)


@given(st.binary(min_size=504, max_size=504))
def test_a_head_has_each_number_at_the_contracts_place(body: bytes) -> None:
    start = c.USAGE_MAGIC.to_bytes(8, "little") + c.ABI_VERSION.to_bytes(4, "little")
    data = (start + body).ljust(c.USAGE_SIZE, b"\0")
    counts, delays = parse_usage_head(data), parse_delays(data)
    assert counts is not None
    assert counts._asdict() == {name: reference(data, name, c.USAGE_FIELDS) for name in counts._fields}
    first, size, _kind = c.USAGE_FIELDS["latency_buckets"]
    rows = [min(int.from_bytes(data[at : at + 8], "little"), INT64_MAX) for at in range(first, first + size, 8)]
    assert delays.buckets == (tuple(rows) if any(rows) else ())
    for name in delays._fields[1:]:
        assert getattr(delays, name) == reference(data, name, c.USAGE_FIELDS)


@given(st.binary(min_size=c.USAGE_SLOT_SIZE, max_size=c.USAGE_SLOT_SIZE))
def test_a_slot_has_each_number_at_the_contracts_place(data: bytes) -> None:
    def number(name: str) -> int:
        offset, width, _kind = c.USAGE_SLOT_FIELDS[name]
        return int.from_bytes(data[offset : offset + width], "little")

    process = swap.process(3, data)
    if process is None:
        assert number("state") == 0
        return
    assert (process.pid, process.bytes) == (number("pid"), number("swapped_bytes"))
    assert (process.times, process.busy_ns) == (number("swap_count"), number("gpu_busy_ns"))
    assert process.state == swap.WORDS.get(number("swap_state"), "gpu")


TIMES = st.integers(1, 10).map(lambda halves: halves * SECOND // 2)
STEPS = st.lists(st.tuples(TIMES, st.integers(0, 100), st.integers(0, 100)), min_size=1)


@given(STEPS)
def test_a_window_begins_with_the_latest_look_that_is_as_old(steps: list[tuple[int, int, int]]) -> None:
    past: deque[tuple[int, int, float]] = deque([(0, 0, 0.0)])
    for step, busy, share in steps:
        now, used, allowed = past[-1]
        past.append((now + step, used + step * busy // 100, allowed + step * share / 100))
        wanted = None
        now, used, allowed = past[-1]
        for window, points in time_watch.TIME_WINDOWS:
            older = bisect_right(past, now - window, key=itemgetter(0))
            if not older:
                break
            then, used_then, allowed_then = past[older - 1]
            percent, mean = ((used - used_then) / (now - then) * 100, (allowed - allowed_then) / (now - then) * 100)
            if percent > mean + points:
                wanted = (percent, now - then, mean)
                break
        assert time_watch._time_over(past) == wanted


TEXTS = st.text(max_size=20)


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=3), st.floats(0, 1e9), st.integers(-INT64_MAX, INT64_MAX))
def test_the_state_file_has_every_field_whatever_is_in_it(
    name: str, detail: str, findings: list[str], percent: float, number: int
) -> None:
    state: AgentState = make_state(1, 1)
    gpu = state.gpus[0]._replace(model=name, detail=detail, busy_percent=percent, fault_counts=((name, 3),))
    job = state.jobs[0]._replace(
        service_class=name, findings=tuple(findings), busy_ns=number, latency_buckets=(1, 2), busy_percent=percent
    )
    state = state._replace(gpus=(gpu,), jobs=(job, job), boot_id=detail, event_counts=((name, 1),))
    text = to_json(state)
    assert from_json(text) == state
    assert list(json.loads(text)["jobs"][0]) == list(job._fields)


def test_cgroups_are_listed_by_job_and_inode_of_the_slurmd_of_this_node_first(tmp_path: Path) -> None:
    both_scopes = [tmp_path / "system.slice" / name for name in ("n1_slurmstepd.scope", "slurmstepd.scope")]
    assert memory_limits.cgroups_of_jobs("n1", str(tmp_path), {}) == {}
    for folder in both_scopes:
        for name in ("job_7", "system", "job_x", "job_", "job_²"):
            (folder / name).mkdir(parents=True)
    (both_scopes[1] / "job_8").mkdir()
    inodes = {7: (both_scopes[0] / "job_7").stat().st_ino, 8: (both_scopes[1] / "job_8").stat().st_ino}
    assert memory_limits.cgroups_of_jobs("n1", str(tmp_path), {}) == inodes


class Decisions:
    """Looks that show the same grants, as the agent's do while nothing changes, and how often was decided."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.count = site, 0
        self.grants = site.node.grants()
        once = site.turns.once

        def counted() -> str:
            self.count += 1
            return once()

        monkeypatch.setattr(site.turns, "once", counted)

    def look(self, after_s: float = 1.0) -> int:
        """Looks, lets the agent decide if it is due, and returns how often it did."""
        site, before = self.site, self.count
        site.now_s += after_s
        processes = tuple(
            Process(job * 10, 1, 65534, job, UUIDS[0], mib * MIB, SECOND if job in site.busy else 0, True)
            for job, mib in site.used_mib.items()
        )
        slices = tuple(Slice(grant, None, 0, 0) for grant in self.grants.values())
        site.last = Look(int(site.now_s * SECOND), processes, slices, frozenset(), {}, silent=site.silent)
        assert site.turns.if_due() == ""
        return self.count - before


@pytest.fixture
def calm(site: Site, monkeypatch: pytest.MonkeyPatch) -> Decisions:
    """One job is on the GPU, and one waits for it."""
    both(site)
    decisions = Decisions(site, monkeypatch)
    for _ in range(4):
        decisions.look()
    return decisions


def test_while_all_that_are_off_the_gpu_wait_every_third_look_is_decided_upon(calm: Decisions) -> None:
    assert sum(calm.look() for _ in range(21)) == 7


def quiet(calm: Decisions) -> None:
    """Brings the next look to one that is not decided upon unless it shows something new."""
    while not calm.look():
        pass


NEW: dict[str, Callable[[Decisions], object]] = {
    "memory of a job": lambda calm: calm.site.used_mib.update({FIRST: 80_000}),
    "a GPU that is silent": lambda calm: setattr(calm.site, "silent", frozenset({UUIDS[0]})),
    "a job that has ended": lambda calm: calm.grants.pop(SECOND_JOB),
    "a grant that was read again": lambda calm: calm.grants.update({FIRST: resized(calm.grants[FIRST])}),
    "an administrator's order": lambda calm: order(calm.site, SECOND_JOB, c.SWAP_OUT),
    "a clock that was set back": lambda calm: setattr(calm.site, "now_s", calm.site.now_s - 100),
}


def resized(grant: Grant) -> Grant:
    return grant._replace(mem_mib=grant.mem_mib - 1024)


def assert_out(site: Site) -> None:
    (own,) = (one for one in site.turns.standings if one.job_id == FIRST)
    assert own.state == "out"


def order(site: Site, job: int, value: int) -> None:
    offset, width, _kind = c.LIMITS_FIELDS["swap"]
    with Path(job_dirs.job_dir(site.node.settings.run_dir, job), c.FILE_JOB_LIMITS).open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(width, "little"))


@pytest.mark.parametrize("what", NEW)
def test_what_is_new_in_a_look_is_decided_upon_at_once(calm: Decisions, what: str) -> None:
    quiet(calm)
    NEW[what](calm)
    assert calm.look() == 1


def test_a_job_off_the_gpu_that_does_not_wait_yet_is_asked_at_each_look(calm: Decisions) -> None:
    calm.site.says[SECOND_JOB] = ["host"]
    calm.look(2)
    assert [calm.look(0.6) for _ in range(5)] == [1] * 5


def test_work_that_only_looks_without_a_decision_show_is_use_of_the_gpu(calm: Decisions) -> None:
    """Else the job would leave after 10 s without use, as another one waits."""
    site = calm.site
    for _ in range(20):
        site.busy = set()
        quiet(calm)
        site.busy = {FIRST}
        assert calm.look() == 0
    assert site.order(FIRST) == c.SWAP_IN


def test_a_turn_that_is_over_ends_at_the_third_look_at_the_latest(calm: Decisions) -> None:
    calm.site.busy = {FIRST}
    calm.look(TURN_S - 3)
    for _ in range(5):
        calm.look()
    assert calm.site.order(FIRST) == c.SWAP_TURN


def test_the_record_of_a_job_whose_directory_was_made_anew_is_read_and_not_the_old_one(site: Site) -> None:
    """As reconcile does, and a requeue; the old record stays open until then."""
    away(site)
    grants = site.node.grants()
    site.grants = lambda: grants
    site.look()
    path = Path(job_dirs.job_dir(site.node.settings.run_dir, FIRST)) / c.FILE_JOB_LIMITS
    text = path.read_bytes()
    path.rename(path.with_name("old"))
    path.write_bytes(text)
    order(site, FIRST, c.SWAP_OUT)
    grants[FIRST] = grants[FIRST]._replace(model="read again")
    site.look()
    assert_out(site)


def test_an_order_is_seen_in_a_record_that_stays_open(site: Site) -> None:
    away(site)
    grants = site.node.grants()
    site.grants = lambda: grants
    site.look()
    order(site, FIRST, c.SWAP_OUT)
    site.look()
    assert_out(site)


def test_what_is_said_of_when_a_turn_comes_follows_what_changes_and_else_is_some_seconds_old(site: Site) -> None:
    both(site)
    grants = site.node.grants()
    site.grants = lambda: grants
    site.busy = {FIRST}
    for _ in range(3):
        site.look()
    first = site.turns.standings
    assert next(one for one in first if one.job_id == SECOND_JOB).place == 1
    site.says[SECOND_JOB] = ["host"]
    site.look()
    assert next(one for one in site.turns.standings if one.job_id == SECOND_JOB).place == 0, "at once"
    site.says[SECOND_JOB] = ["wanted"]
    site.look()
    told = site.turns._told[UUIDS[0]]
    site.look()
    assert site.turns._told[UUIDS[0]] is told
    site.look(5)
    assert site.turns._told[UUIDS[0]] is not told
    site.now_s -= 1000
    told = site.turns._told[UUIDS[0]]
    site.look()
    assert site.turns._told[UUIDS[0]] is not told, "the clock was set back"
