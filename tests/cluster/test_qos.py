# SPDX-License-Identifier: Apache-2.0
"""hami-hpc qos on a real slurmdbd, and preemption by QoS: who has to go and who stays, and each run is billed once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, node, services
from harness.config import slurm_release, write
from harness.layout import CHECKOUT, Layout
from harness.merging import merge

SETTINGS = """\
[qos.std]
priority = 100
[qos.be]
priority = 10
grace_time_s = 3
[qos.lc]
priority = 1000
preempt = ["be"]
"""
# Takes back what tests here have set: the other tests' cluster has QoS without anything.
CLEARED = """\
[qos.std]
priority = 0
[qos.be]
priority = 0
grace_time_s = 0
usage_factor = 1.0
max_jobs_per_user = "none"
[qos.lc]
priority = 0
preempt = []
usage_factor = 1.0
flags = []
max_wall = "none"
preempt_exempt_time_s = "none"
[qos.lc.max_tres_per_user]
vgpu = "none"
vgpu_mem = "none"
"""


def qos(layout: Layout, *words: str) -> jobs.Done:
    command = (str(CHECKOUT / ".venv/bin/hami-hpc"), "qos", *words)
    return jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)}, timeout_s=120)


def write_settings(layout: Layout, text: str) -> None:
    site = layout.site_config.read_text().partition("[qos")[0]
    write(layout.site_config, site + text)


@pytest.fixture
def settled(restored: Layout) -> Iterator[Layout]:
    """The private cluster, for a test that changes QoS; afterwards they have nothing set."""
    try:
        yield restored
    finally:
        write_settings(restored, CLEARED)
        cleared = qos(restored, "apply")
        assert cleared.status == 0, cleared.text


def settle(layout: Layout, text: str) -> None:
    """Writes these QoS into slurmdbd and their lines into slurm.conf, as `hami-hpc qos` says; restarts slurmctld."""
    write_settings(layout, text)
    applied = qos(layout, "apply")
    assert applied.status == 0, applied.text
    rendered = qos(layout, "render")
    assert rendered.status == 3, rendered.text
    merge(layout, rendered.out)
    again = qos(layout, "render")
    assert again.status == 0, again.text
    private_cluster.restart(layout, "slurmctld")
    assert {level for level, _ in warned(layout).values()} == {"OK"}


@pytest.fixture
def preempting(settled: Layout) -> Layout:
    settle(settled, SETTINGS)
    return settled


# ---------------------------------------------------------------------------------------------------- the command


def listed(layout: Layout, name: str, *columns: str) -> list[str]:
    printed = jobs.admin(layout, "sacctmgr", "-nP", "list", "qos", name, f"format={','.join(columns)}")
    return printed.rstrip("\n").split("|")


def test_apply_writes_what_differs_once_and_touches_nothing_else(settled: Layout) -> None:
    text = SETTINGS + "usage_factor = 2.5\nflags = ['DenyOnLimit']\nmax_wall = '1-00:00:00'\n"
    text += "preempt_exempt_time_s = 90\nmax_tres_per_user = {vgpu = 4, vgpu_mem = '40G'}\n"
    jobs.admin(settled, "sacctmgr", "-i", "modify", "qos", "lc", "set", "GrpJobs=7", "MaxTRESPerUser=cpu=9")
    write_settings(settled, text)
    try:
        before = qos(settled, "show")
        assert before.status == 3
        dry = qos(settled, "apply", "--dry-run")
        assert dry.status == 3
        assert qos(settled, "show").out == before.out, "--dry-run changes nothing"
        done = qos(settled, "apply")
        assert (done.status, done.out) == (0, dry.out)
        columns = ("Priority", "Preempt", "UsageFactor", "Flags", "MaxWall", "PreemptExemptTime", "GrpJobs")
        assert listed(settled, "lc", *columns) == [
            "1000",
            "be",
            "2.500000",
            "DenyOnLimit",
            "1-00:00:00",
            "00:01:30",
            "7",
        ]
        limits = listed(settled, "lc", "MaxTRESPU")[0].split(",")
        assert sorted(limits) == ["cpu=9", "gres/vgpu=4", "gres/vgpu_mem=40960"]
        assert listed(settled, "be", "GraceTime", "Preempt") == ["00:00:03", ""]
        again = qos(settled, "apply")
        assert (again.status, again.out) == (0, "nothing to do: slurmdbd has the QoS of the settings\n")
        shown = qos(settled, "show", "--format", "json")
        assert shown.status == 0
        rows = {(row["qos"], row["field"], row["tres"]): row for row in json.loads(shown.out)["values"]}
        assert rows["lc", "GrpJobs", ""]["settings"] is None
        assert rows["lc", "MaxTRESPerUser", "gres/vgpu_mem"]["slurmdbd"] == "40960"
    finally:
        jobs.admin(settled, "sacctmgr", "-i", "modify", "qos", "lc", "set", "GrpJobs=-1", "MaxTRESPerUser=cpu=-1")


def test_a_new_qos_is_made_and_one_that_the_settings_leave_out_stays(settled: Layout) -> None:
    write_settings(
        settled, SETTINGS.replace('["be"]', '["be", "scavenger"]') + "[qos.scavenger]\nmax_jobs_per_user = 2\n"
    )
    try:
        shown = qos(settled, "show")
        assert (shown.status, "slurmdbd has no QoS scavenger" in shown.out) == (3, True)
        done = qos(settled, "apply")
        assert done.status == 0, done.text
        assert listed(settled, "scavenger", "MaxJobsPU") == ["2"]
        assert sorted(listed(settled, "lc", "Preempt")[0].split(",")) == ["be", "scavenger"]
        write_settings(settled, SETTINGS)
        fewer = qos(settled, "apply")
        assert fewer.status == 0, fewer.text
        assert listed(settled, "lc", "Preempt") == ["be"]
        assert listed(settled, "scavenger", "MaxJobsPU") == ["2"], "nothing is deleted"
    finally:
        jobs.admin(settled, "sacctmgr", "-i", "delete", "qos", "scavenger")


def test_the_script_that_render_writes_makes_the_qos_once(settled: Layout) -> None:
    script = settled.etc / "hami-hpc-qos.sh"
    write_settings(settled, SETTINGS + "[qos.night]\nmax_jobs_per_user = 2\n")
    saved = settled.root / "etc-saved"
    shutil.copytree(settled.etc, saved, symlinks=True)
    config.render(settled)
    try:
        before = qos(settled, "show").out
        dry = jobs.run_as(settled, "root", (str(script), "--dry-run"), timeout_s=120)
        assert dry.status == 3, dry.text
        assert "sacctmgr --immediate add qos name=night MaxJobsPerUser=2\n" in dry.out
        assert "\n#   sacctmgr --immediate add qos name=night MaxJobsPerUser=2\n" in script.read_text()
        assert qos(settled, "show").out == before, "--dry-run changes nothing"
        first, second = (jobs.run_as(settled, "root", (str(script),), timeout_s=120) for _ in range(2))
        assert (first.status, first.out) == (0, dry.out), first.text
        assert (second.status, second.out) == (0, "nothing to do: slurmdbd has the QoS of the settings\n"), second.text
        assert listed(settled, "night", "MaxJobsPU") == ["2"]
        assert listed(settled, "lc", "Preempt") == ["be"]
    finally:
        shutil.rmtree(settled.etc)
        saved.rename(settled.etc)  # these settings render other modes than the cluster has
        jobs.admin(settled, "sacctmgr", "-i", "delete", "qos", "night")


def test_a_slurmdbd_that_is_down_is_named(settled: Layout) -> None:
    daemons.stop(settled, "slurmdbd")
    try:
        for words in (("show",), ("apply",), ("apply", "--dry-run")):
            done = qos(settled, *words)
            assert done.status == 1
            assert "Is slurmdbd up?" in done.err
            assert done.err.count("\n") == 1, done.err
    finally:
        daemons.start(settled, services.describe(settled, "slurmdbd"))


def warned(layout: Layout) -> dict[str, tuple[str, str]]:
    """doctor's findings about QoS: level and detail."""
    command = (str(CHECKOUT / ".venv/bin/hami-hpc"), "doctor", "--node", "node1", "--format", "json")
    done = jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)})
    return {
        row["what"]: (row["level"], row["detail"]) for row in json.loads(done.out) if row["what"].startswith("QoS in")
    }


def test_doctor_warns_of_a_slurmdbd_and_a_slurm_conf_that_the_settings_do_not_describe(settled: Layout) -> None:
    assert warned(settled) == {}
    write_settings(settled, SETTINGS)
    assert qos(settled, "apply").status == 0
    found = warned(settled)
    assert found["QoS in slurmdbd"] == ("OK", "std, be, lc")
    level, detail = found["QoS in slurm.conf"]
    assert level == "WARN"
    assert "PreemptType=preempt/qos; PreemptMode=REQUEUE; " in detail
    jobs.admin(settled, "sacctmgr", "-i", "modify", "qos", "be", "set", "GraceTime=9")
    assert warned(settled)["QoS in slurmdbd"] == ("WARN", "GraceTime of be is 9, not 3")


def test_limits_count_slices_and_memory_of_each_user(settled: Layout) -> None:
    limits = "flags = ['DenyOnLimit']\n[qos.lc.max_tres_per_user]\nvgpu = 1\nvgpu_mem = '2G'\n"
    settle(settled, SETTINGS + limits)
    first = submit(settled, "games", "lc", 10, script="sleep 60")
    second = submit(settled, "games", "lc", 10, script="sleep 60")
    others = [
        submit(settled, "games", "std", 10, script="sleep 60"),
        submit(settled, "news", "lc", 10, script="sleep 60"),
    ]
    for job in (first, *others):
        jobs.wait_for_state(settled, job, "RUNNING")

    def waits_for_the_limit() -> bool:
        return jobs.job_facts(settled, second)["Reason"] == "QOSMaxGRESPerUser"

    jobs.wait(settled, waits_for_the_limit, "the second LC job to wait for the limit", 20, second)
    too_much = jobs.run_as(
        settled, "news", ("sbatch", "--gres=vgpu:mem=3G,cores=10", "--qos=lc"), stdin="#!/bin/sh\ntrue\n"
    )
    assert too_much.status != 0
    assert "Job violates accounting/QOS policy" in too_much.err
    jobs.admin(settled, "scancel", str(first))
    jobs.wait_for_state(settled, second, "RUNNING")


# ---------------------------------------------------------------------------------------------------- preemption

# (name, QoS, percent of a GPU), the oldest first. Slurm packs: s1, e0 and e1 come to lie on one GPU, the rest on the
# other, which is then full.
PIECES = (
    *(("s1", "std", 80), ("e0", "be", 12), ("s2", "std", 30), ("old", "be", 10), ("j3", "be", 15), ("j2", "be", 20)),
    *(("j1", "be", 25), ("e1", "be", 6)),
)
# A first run lasts until the test says so; one that was requeued ends at once. Both take memory in their slice.
SCRIPT = """\
slice --use 16 >/dev/null || exit 1
echo run $SLURM_RESTART_COUNT
[ -n "$SLURM_RESTART_COUNT" ] || while ! [ -e release ]; do sleep 0.5; done"""


def submit(layout: Layout, user: str, name: str, percent: int, script: str = SCRIPT) -> int:
    request = f"--gres=vgpu:mem=1G,cores={percent}"
    return jobs.submit(layout, user, request, f"--qos={name}", "--time=30", script=script)


@dataclass(frozen=True, slots=True)
class Full:
    """Both GPUs full, each job at least a second younger than the one before; and what was billed before."""

    layout: Layout
    numbers: dict[str, int]
    billed: dict[str, int]


@pytest.fixture
def full(preempting: Layout) -> Iterator[Full]:
    release = preempting.home / "games" / "release"
    release.unlink(missing_ok=True)
    billed = held(preempting)
    numbers = {}
    for name, service_class, percent in PIECES:
        numbers[name] = submit(preempting, "games", service_class, percent)
        jobs.wait_for_state(preempting, numbers[name], "RUNNING")
        time.sleep(1.1)  # Slurm knows start times in seconds
    gpu_of = {grant.job_id: grant.gpu_uuid for grant in node.grants(preempting)}
    gpus = {name: gpu_of[number] for name, number in numbers.items()}
    assert gpus["s1"] != gpus["s2"]
    assert {name for name, uuid in gpus.items() if uuid == gpus["s1"]} == {"s1", "e0", "e1"}
    yield Full(preempting, numbers, billed)
    release.touch()


def restarts(layout: Layout, numbers: dict[str, int]) -> dict[str, int]:
    return {name: int(jobs.job_facts(layout, number)["Restarts"]) for name, number in numbers.items()}


def held(layout: Layout) -> dict[str, int]:
    """By QoS: what the bill has, in millionths of a GPU times seconds; a running job's time so far is in it."""
    printed = jobs.admin(
        layout, "hami-hpc", "bill", "--start", "2026-01-01", "--live", "--by", "qos", "--format", "json"
    )
    bill: Any = json.loads(printed)
    return {line["qos"]: int(line["gpu_microseconds_held"]) for line in bill["lines"]}


def runs(layout: Layout, numbers: Iterable[int]) -> list[dict[str, str]]:
    """Every run of the jobs, also those before a requeue, as sacct has them."""
    columns = ("JobIDRaw", "QOS", "State", "Start", "End", "ElapsedRaw")
    text = jobs.admin(
        layout, "sacct", "-n", "-P", "-X", "-D", "-j", ",".join(map(str, numbers)), "-o", ",".join(columns)
    )
    return [dict(zip(columns, line.split("|"), strict=True)) for line in text.splitlines()]


def test_an_lc_job_preempts_the_youngest_be_jobs_that_suffice_and_each_run_is_billed_once(full: Full) -> None:
    layout, numbers = full.layout, full.numbers
    if slurm_release() >= (24, 5):  # a grace time makes these run a job once more after it has completed (docs/qos.md)
        write_settings(layout, SETTINGS.replace("grace_time_s = 3", "grace_time_s = 0"))
        assert qos(layout, "apply").status == 0
    # 60 %: without j3 there are 25 + 20 + 10 = 55 on that GPU. e1, the youngest of all, is on the other one.
    lc = submit(layout, "news", "lc", 60, script="slice --use 16 >/dev/null && sleep 3")
    jobs.wait_for_state(layout, lc, "COMPLETED")
    assert restarts(layout, numbers) == {name: int(name in ("j1", "j2", "j3")) for name in numbers}
    for name in ("j1", "j2", "j3"):  # two minutes after the requeue, by themselves (docs/adr/018)
        jobs.wait_for_state(layout, numbers[name], "COMPLETED", timeout_s=200)
        assert jobs.output(layout, "games", numbers[name]) == "run 1\n"
    others = [name for name in numbers if name not in ("j1", "j2", "j3")]
    assert {jobs.state(layout, numbers[name]) for name in others} == {"RUNNING"}
    (layout.home / "games" / "release").touch()
    for name in others:
        jobs.wait_for_state(layout, numbers[name], "COMPLETED")
    assert not node.drain_reason(layout)

    everything = [*numbers.values(), lc]
    jobs.wait_until_recorded(layout, *everything, runs=12)
    rows = runs(layout, everything)
    assert len(rows) == 12
    assert {row["QOS"] for row in rows} == {"std", "be", "lc"}
    for name, number in numbers.items():
        states = [row["State"] for row in rows if row["JobIDRaw"] == str(number)]
        assert states == (["PREEMPTED", "COMPLETED"] if name in ("j1", "j2", "j3") else ["COMPLETED"]), name
        spooled = list((layout.state_dir / "usage").glob(f"{number}*.json"))
        assert len(spooled) == len(states), "the epilog writes the usage of each run"
    ((lc_start, _),) = [(row["Start"], row["End"]) for row in rows if row["JobIDRaw"] == str(lc)]
    assert max(row["End"] for row in rows if row["State"] == "PREEMPTED") <= lc_start, "no piece is held twice"
    percent = {str(numbers[name]): size for name, _, size in PIECES} | {str(lc): 60}
    expected: dict[str, int] = {}
    for row in rows:
        share = percent[row["JobIDRaw"]] * 10_000 * int(row["ElapsedRaw"])
        expected[row["QOS"]] = expected.get(row["QOS"], 0) + share
    after = held(layout)
    assert {name: after[name] - full.billed.get(name, 0) for name in expected} == expected


def test_be_preempts_nobody_and_lc_preempts_neither_std_nor_in_vain(full: Full) -> None:
    layout, numbers = full.layout, full.numbers
    waiting = [submit(layout, "news", "be", 10), submit(layout, "news", "std", 10)]
    # All BE jobs of either GPU are less than 90 %: std would have to go, too.
    waiting.append(submit(layout, "news", "lc", 90))
    time.sleep(10)  # several rounds of both schedulers
    assert [jobs.state(layout, job) for job in waiting] == ["PENDING"] * 3
    assert {jobs.state(layout, number) for number in numbers.values()} == {"RUNNING"}
    assert set(restarts(layout, numbers).values()) == {0}
    for job in waiting:
        jobs.admin(layout, "scancel", str(job))


def test_in_the_grace_time_a_jobs_steps_can_save_their_work(preempting: Layout) -> None:
    home = preempting.home / "games"
    for name in ("release", "step", "script"):
        (home / name).unlink(missing_ok=True)
    wait = "for i in $(seq 300); do sleep 0.2; done"
    jobs.write_script(preempting, "games", "step.sh", f"#!/bin/sh\ntrap 'touch step; exit' TERM\n{wait}\n")
    script = f"trap 'touch script' TERM\n[ -n \"$SLURM_RESTART_COUNT\" ] || srun ./step.sh\n{wait}"
    saved = submit(preempting, "games", "be", 100, script=script)
    filler = submit(preempting, "games", "std", 100, script="sleep 100")
    for job in (saved, filler):
        jobs.wait_for_state(preempting, job, "RUNNING")
    jobs.wait(preempting, lambda: ".0" in jobs.admin(preempting, "squeue", "-hs"), "the step", 20, saved)
    begin = time.monotonic()
    lc = submit(preempting, "news", "lc", 50, script="true")
    jobs.wait(preempting, (home / "step").exists, "the step to be told", 30, saved)
    jobs.wait_for_state(preempting, lc, "COMPLETED")
    assert time.monotonic() - begin >= 3, "the grace time"
    assert jobs.job_facts(preempting, saved)["Restarts"] == "1"
    # The script's own SIGTERM is that of any end of a job, KillWait before SIGKILL.
    assert (home / "script").stat().st_mtime - (home / "step").stat().st_mtime >= 2.5
    assert jobs.state(preempting, filler) == "RUNNING"
