# SPDX-License-Identifier: Apache-2.0
"""Many jobs of all modes on a private Slurm with 8 simulated GPUs, with prologs and epilogs killed at random.

    .venv/bin/python benchmarks/bench_churn.py [--jobs 1000] [--seed 1] [--kill 5] [--dir DIRECTORY]

As root. Two parts: share, mps and whole GPUs together, then mig on GPUs that it divides. While jobs run, the simulated
driver's own state and snapshots of the ledger are compared with the GPUs, triggers in the ledger write down every grant
made and returned, and `hami-hpc reconcile` runs each 5 s. At the end nothing may be left. Prints tables of how long
prologs and epilogs took, by mode and by the jobs on the node. Status 1 where a GPU was granted twice or used beyond its
size, or something is left.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster")]

import churn  # noqa: E402  after the paths to the checkout
from harness import cluster, config, jobs, node  # noqa: E402
from harness.layout import Layout  # noqa: E402

GPUS = 8
END_S = 3000
MIG_PART = 0.2  # of the jobs
FIRST_MODES = ("share", "share", "share", "share", "mps", "mps", "shard", "gpu")
PROFILES = f"""
[gpu_models.{config.GPU_MODEL}.mig_profiles]
"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {{0,1,2,3,4,5,6}}, at most 7"
"3g.71gb" = "71424 MiB, 3/7 compute, 4/8 memory at {{0,4}}, at most 2"
"7g.141gb" = "143104 MiB, 7/7 compute, 8/8 memory at {{0}}, at most 1"
"""


def offer(layout: Layout, is_mig: bool) -> None:
    """Makes the site offer the modes of one part."""
    text = config.site_toml(layout)
    if is_mig:
        (layout.machine / "proc").mkdir(exist_ok=True)
        (layout.machine / "proc/devices").write_text("Character devices:\n238 nvidia-caps\n")
        text = text.replace("[paths]", f'modes = ["mig"]\n[paths]\ndriver_root = "{layout.machine}"') + PROFILES
    else:
        text = text.replace("[vgpu]\n", '[vgpu]\nmodes = ["share", "mps"]\nbare_shard = "translate"\n')
        text += f'[mps]\ncontrol = "{churn.MPS_PROGRAM}"\n'
    config.write(layout.site_config, text)
    config.render(layout)
    for name in ("slurmd", "slurmd-cpu", "slurmctld"):
        cluster.restart(layout, name)
    if is_mig:
        for gpu in range(GPUS):
            jobs.admin(layout, "hami-hpc", "mig", "enable", str(gpu), "--node", config.NODE)


def part(layout: Layout, modes: tuple[str, ...], count: int, seed: int, kill_percent: float) -> list[str]:
    """Runs the jobs of one part to their ends. Returns what was wrong."""
    offer(layout, modes == ("mig",))
    jobs.submit(layout, "games", "--wait", "--gres=vgpu:mem=16G,cores=14", script="true")  # so that a ledger is there
    node.wait_until_clean(layout)
    churn.install_stages(layout, kill_percent)
    began = time.monotonic()
    with churn.recorded(layout) as path, churn.watched(layout) as findings:
        churn.submit_all(layout, list(churn.requests(seed, count, modes)))
        jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h"), "all jobs to end", END_S)
        jobs.wait(
            layout,
            lambda: not churn.left_over(layout),
            "the node to be clean",
            120,
            detail=lambda: str(churn.left_over(layout)),
        )
        problems = churn.over_grants(layout, path)
    refused = sum(gpu.refusals for gpu in node.gpus(layout))
    took_s = time.monotonic() - began
    print(
        f"{', '.join(dict.fromkeys(modes))}: {count} jobs in {took_s:.0f} s; {findings.looks} looks, at most "
        f"{findings.most_processes} processes on the GPUs; the node was resumed {findings.resumed} times; the driver "
        f"refused memory {refused} times",
        flush=True,
    )
    reason = node.drain_reason(layout)
    return findings.problems + problems + ([f"the node is drained: {reason}"] if reason else [])


def table(found: list[churn.Run]) -> None:
    print("\n| stage | mode | runs | killed | failed | p50 ms | p99 ms | at once |\n|---|---|---|---|---|---|---|---|")
    for stage in ("prolog", "epilog"):
        for mode in ("share", "mps", "mig", "gpu"):
            of_mode = [run for run in found if (run.stage, run.mode) == (stage, mode)]
            whole = [run for run in of_mode if not run.was_killed]
            failed = sum(run.status != 0 for run in whole)
            if whole:
                p50, p99 = churn.quantiles_ms(whole)
                killed, most = len(of_mode) - len(whole), churn.most_at_once(of_mode)
                print(f"| {stage} | {mode} | {len(of_mode)} | {killed} | {failed} | {p50:.0f} | {p99:.0f} | {most} |")
    print("\n| jobs on the node | prologs of share | p50 ms | p99 ms |\n|---|---|---|---|")
    for low, high in ((0, 4), (5, 9), (10, 19), (20, 39), (40, 999)):
        some = [
            r
            for r in found
            if (r.stage, r.mode) == ("prolog", "share") and low <= r.present <= high and not r.was_killed
        ]
        if some:
            p50, p99 = churn.quantiles_ms(some)
            print(f"| {low} to {high} | {len(some)} | {p50:.0f} | {p99:.0f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", type=float, default=5.0, help="percent of prologs and epilogs that are killed")
    parser.add_argument("--dir", type=Path, default=ROOT / "build/churn-cluster")
    options = parser.parse_args()
    config.GPU_COUNT = GPUS
    cluster.remove(options.dir)
    layout = cluster.up(options.dir)
    mig_jobs = int(options.jobs * MIG_PART)
    problems = []
    try:
        load = os.getloadavg()[0]
        print(f"seed {options.seed}, {os.cpu_count()} CPUs, load {load:.1f} before", flush=True)
        problems += part(layout, FIRST_MODES, options.jobs - mig_jobs, options.seed, options.kill)
        problems += part(layout, ("mig",), mig_jobs, options.seed, options.kill)
        found = churn.runs(layout)
        killed = [run for run in found if run.was_killed]
        prologs = [run for run in found if run.stage == "prolog"]
        print(
            f"{len(found)} runs of stages, {len(killed)} killed; at most {churn.most_at_once(prologs)} prologs at once"
        )
        table(found)
    finally:
        if not problems or options.kill < 0:
            cluster.remove(options.dir)
    print("\n" + ("\n".join(problems[:40]) or "no GPU was granted or used beyond its size, and nothing is left"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
