# SPDX-License-Identifier: Apache-2.0
"""The simulation of bench_packing.py: no GPU holds more than it has, nobody delays the first in the queue, and the
exact rule holds as much as any."""

from __future__ import annotations

import random
import re
import sys
from itertools import pairwise, product
from pathlib import Path

import pytest
from harness.layout import CHECKOUT
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(CHECKOUT / "benchmarks"))
import packing_model
from bench_packing import EXACT, GPUS, MIG, OURS, SPREAD, WHOLE, Page, by_shards, figures, main, rules, site
from packing_jobs import (
    COUPLINGS,
    LARGE,
    MIXES,
    SMALL,
    Mix,
    backlog,
    memory_of,
    quantile,
    read_trace,
    replay,
    stream,
    work,
)
from packing_model import Job, Outcome, Rule, Sums, most_at_once, run

SHARDS = 559
BY_NAME = {rule.name: rule for rule in rules()}


def mixed(seed: int, count: int = 150) -> list[Job]:
    """Jobs of all mixes, some at once."""
    chance = random.Random(seed)
    jobs = stream(backlog(chance.choice(MIXES), count, seed), 3, chance.choice((0.5, 0.9, 1.5)), seed)
    return [job._replace(submit_s=job.submit_s // 3600 * 3600) for job in jobs]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", BY_NAME.values(), ids=BY_NAME)
def test_no_gpu_ever_holds_more_than_it_has(rule: Rule, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at from outside: by the jobs that are on each GPU after each one begins."""
    by_number = {job.number: job for job in mixed(seed)}
    began: list[int] = []
    begin = packing_model._Run._begin

    def checked(self: packing_model._Run, job: Job, gpu: int, now: float) -> None:
        begin(self, job, gpu, now)
        began.append(job.number)
        on = [by_number[number] for number in self.on[gpu]]
        # Shards are whole numbers, and percentages are rounded down to them: a slice may lack one of what it names.
        slack = len(on) * 100 / SHARDS if rule.name in (OURS, SPREAD) else 0
        assert sum(job.memory for job in on) <= 100 + slack
        assert sum(job.cores for job in on) <= 100 + slack
        if rule.name == WHOLE:
            assert len(on) == 1
        if rule.name in (OURS, SPREAD):
            assert sum(rule.need(job)[0] for job in on) <= SHARDS

    monkeypatch.setattr(packing_model._Run, "_begin", checked)
    outcome = run(list(by_number.values()), rule, 3)
    assert sorted(began) == sorted(by_number), "each job begins once"
    assert all(outcome.begin_s[number] >= job.submit_s for number, job in by_number.items())
    assert outcome.end_s == max(outcome.begin_s[number] + job.run_s for number, job in by_number.items())


@pytest.mark.parametrize("rule", [BY_NAME[OURS], BY_NAME[EXACT], BY_NAME[MIG]], ids=lambda rule: rule.name)
def test_the_same_seed_gives_the_same_run_and_another_does_not(rule: Rule) -> None:
    first, again, other = (run(mixed(seed), rule, 3) for seed in (1, 1, 2))
    assert first == again
    assert first != other


job = Job


def begins(jobs: list[Job], rule: str, gpus: int = 1) -> list[float]:
    outcome = run(jobs, BY_NAME[rule], gpus)
    return [outcome.begin_s[job.number] for job in jobs]


def test_two_that_complement_each_other_share_a_gpu_by_the_exact_rule_alone() -> None:
    jobs = [job(0, 0, 100, 80, 10), job(1, 0, 100, 10, 80)]
    assert begins(jobs, EXACT) == [0, 0]
    assert begins(jobs, OURS) == begins(jobs, WHOLE) == begins(jobs, MIG) == [0, 100]


def test_a_later_job_starts_first_only_where_the_first_is_not_delayed() -> None:
    running, head = job(0, 0, 100, 60, 60), job(1, 1, 50, 80, 80)
    short, long, small = job(2, 2, 90, 30, 30), job(3, 2, 1000, 30, 30), job(4, 2, 1000, 10, 10)
    assert begins([running, head, short], OURS) == [0, 100, 2]
    assert begins([running, head, long], OURS) == [0, 100, 150], "it would have kept the first waiting"
    assert begins([running, head, small], OURS) == [0, 100, 2], "it fits beside the first, too"
    assert begins([running, head, small, long._replace(number=5, run_s=2000)], OURS) == [0, 100, 2, 150]


def test_the_place_kept_for_the_first_is_on_one_gpu() -> None:
    jobs = [job(0, 0, 100, 60, 60), job(1, 0, 500, 60, 60), job(2, 1, 50, 80, 80), job(3, 2, 5000, 30, 30)]
    assert begins(jobs, OURS, gpus=2) == [0, 0, 100, 2], "the second GPU is free later, so the long job goes there"


def test_gpus_are_taken_in_order_or_the_emptiest_of_the_first_node() -> None:
    def places(rule: str) -> list[int]:
        jobs = [job(number, 0, 100, 20, 20) for number in range(9)]
        runner = packing_model._Run(jobs, BY_NAME[rule], GPUS)
        runner.waiting = list(jobs)
        runner._schedule(0.0)
        return [runner.where[number][0] for number in range(9)]

    assert places(OURS) == [0, 0, 0, 0, 0, 1, 1, 1, 1]  # 111 of 559 shards each
    assert places(SPREAD) == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_a_job_for_which_no_gpu_is_large_enough_is_refused() -> None:
    with pytest.raises(ValueError, match="job 7 fits on no GPU"):
        run([job(7, 0, 1, 50, 50)], Rule("small", lambda job: (2,), lambda: Sums((1,))), 4)


small_jobs = st.lists(
    st.tuples(st.sampled_from((10, 25, 35, 50, 75, 90)), st.sampled_from((10, 20, 50, 80))), max_size=5
)


def tried(needs: list[tuple[int, ...]], whole: tuple[int, ...], gpus: int) -> int:
    """Every job on every GPU, or on none."""
    best = 0
    for choice in product(range(gpus + 1), repeat=len(needs)):
        sums = [[0] * len(whole) for _ in range(gpus)]
        for need, gpu in zip(needs, choice, strict=True):
            if gpu < gpus:
                sums[gpu] = [a + b for a, b in zip(sums[gpu], need, strict=True)]
        if all(part <= most for each in sums for part, most in zip(each, whole, strict=True)):
            best = max(best, sum(gpu < gpus for gpu in choice))
    return best


@settings(max_examples=60, deadline=None)
@given(small_jobs, st.integers(1, 2))
def test_the_optimum_is_that_of_trying_everything_and_the_exact_rule_holds_most(
    sizes: list[tuple[int, int]], gpus: int
) -> None:
    jobs = [job(number, 0, 1, *size) for number, size in enumerate(sizes)]
    both: list[tuple[int, ...]] = [(job.memory, job.cores) for job in jobs]
    shards = [BY_NAME[OURS].need(job) for job in jobs]
    exact, ours = most_at_once(both, (100, 100), gpus), most_at_once(shards, (SHARDS,), gpus)
    assert exact == tried(both, (100, 100), gpus)
    assert ours == tried(shards, (SHARDS,), gpus)
    assert ours <= exact
    assert min(len(jobs), gpus) <= ours
    started = sum(begin == 0 for begin in begins(jobs, EXACT, gpus)) if jobs else 0
    assert started <= exact


@pytest.mark.parametrize(("memory", "cores"), [(5, 50), (50, 10), (1, 1), (100, 100), (28, 28)])
def test_needs_are_the_units_of_requests(memory: int, cores: int) -> None:
    """docs/architecture.md, "Units": the larger of both numbers of shards."""
    need = by_shards(site()).need(Job(0, 0, 1, memory, cores))
    assert need == (SHARDS * max(memory, cores) // 100,)
    assert by_shards(site(max_tenants=4)).need(Job(0, 0, 1, memory, cores)) == (max(need[0], 139),)
    without = by_shards(site("proportional"), cores=False).need(Job(0, 0, 1, memory, cores))
    assert without == (SHARDS * memory // 100,)


def test_work_is_that_of_the_scarcer_and_the_load_follows_from_it() -> None:
    jobs = [job(0, 0, 100, 50, 10), job(1, 0, 100, 10, 20)]
    assert work(jobs) == pytest.approx(60, abs=0.01)
    many = stream(backlog(MIXES[1], 4000, 1), 16, 0.5, 1)
    assert work(many) / 16 / many[-1].submit_s == pytest.approx(0.5, rel=0.01)
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(many))


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_sizes_have_their_distributions_and_go_together_as_the_mix_says(mix: Mix) -> None:
    jobs = backlog(mix, 3000, 5)
    memory, cores = [job.memory for job in jobs], [job.cores for job in jobs]
    means = {SMALL: 31.6, LARGE: 54.3}
    assert sum(memory) / 3000 == pytest.approx(means[mix.memory], abs=1.5)
    assert sum(cores) / 3000 == pytest.approx(means[mix.cores], abs=1.5)
    together = sum(
        (m > quantile(mix.memory, 0.5)) == (c > quantile(mix.cores, 0.5)) for m, c in zip(memory, cores, strict=True)
    )
    # Of two normal variables with correlation r, both are on one side of their medians with 1/2 + asin(r)/pi.
    assert together / 3000 == pytest.approx({0.9: 0.856, 0.0: 0.5, -0.9: 0.144, 0.3: 0.597}[mix.correlation], abs=0.04)
    assert all(0 < job.run_s <= 86400 for job in jobs)


def test_figures_count_what_ran_and_what_ended_until_then() -> None:
    jobs = [job(0, 0, 3600, 50, 20), job(1, 0, 7200, 50, 20)]
    found = figures(jobs, Outcome({0: 0.0, 1: 3600.0}, 3600.0, 10800.0), 7200.0, gpus=1)
    assert (found.rate, found.makespan) == pytest.approx((0.5, 2.0), rel=1e-4)
    assert (found.memory, found.cores) == pytest.approx((50.0, 20.0), rel=1e-4)


OPENB = "name,num_gpu,gpu_milli,pod_phase,creation_time,deletion_time,scheduled_time\n"


def test_a_trace_is_read_in_the_form_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        OPENB + "a,1,460,Running,20,80,30\nb,1,1000,Running,1,2,1\nc,2,500,Running,1,2,1\nd,1,50,Pending,1,2,\n"
        "e,1,5,Running,10,999999,20\n"
    )
    assert [(row.submit_s, row.run_s, row.cores) for row in read_trace(path)] == [(10, 86400, 1), (20, 50, 46)]
    path.write_text("submit_s,run_s,mem_percent,cores,more\n5,10,30,40,x\n")
    assert read_trace(path) == [(5, 10, 40, 30)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has the columns none; needed are"),
        ("a,b\n1,2\n", "has the columns a, b; needed are"),
        (OPENB, "has no job that shares a GPU"),
        (OPENB + "a,1,many,Running,20,80,30\n", "line 2: invalid literal"),
        ("submit_s,run_s,mem_percent,cores\n0,1,0,5\n", "from 1 to 100, not 5 and 0"),
        ("submit_s,run_s,mem_percent,cores\n0,1,5\n", "line 2"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_trace(path)


def test_memory_that_a_trace_lacks_has_the_same_sizes_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        OPENB + "".join(f"p,1,{milli},Running,{milli},{milli + 500},{milli}\n" for milli in range(100, 900, 10))
    )
    rows = read_trace(path)
    assert len(rows) == 72, "without the first tenth"
    cores = [row.cores for row in rows]
    by_coupling = {coupling: memory_of(rows, coupling, 1) for coupling in COUPLINGS}
    assert all(sorted(memory) == sorted(cores) for memory in by_coupling.values())
    assert by_coupling["equal"] == cores
    assert by_coupling["opposite"] == cores[::-1]
    jobs = replay(rows, "independent", 4, 0.7, 1)
    assert work(jobs) / 4 / jobs[-1].submit_s == pytest.approx(0.7)
    assert [job.cores for job in jobs] == cores


def test_a_page_gets_its_tables_and_charts_and_a_missing_place_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- one -->\nold\n<!-- end -->\nafter\n")
    page = Page(1)
    page.table("one", ("a", "b"), [("1", "2")])
    page.charts["chart.svg"] = "<svg/>"
    page.write(path)
    assert path.read_text() == "before\n<!-- one -->\n| a | b |\n|---|---|\n| 1 | 2 |\n<!-- end -->\nafter\n"
    assert (tmp_path / "chart.svg").read_text() == "<svg/>"
    assert page.failures == []
    page.table("two", ("a",), [])
    page.write(path)
    assert page.failures == [f"{path} has no place for the table two"]


@pytest.mark.parametrize("name", ["missing.csv", "folder", "binary.csv"])
def test_a_trace_that_cannot_be_read_ends_the_benchmark_with_one_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00submit_s")
    monkeypatch.setattr(sys, "argv", ["bench_packing.py", "--trace", str(tmp_path / name)])
    assert main() == 2
    assert re.fullmatch(r"bench-packing: .*\n", capsys.readouterr().err)
