# SPDX-License-Identifier: Apache-2.0
"""Submissions and scheduling with hami_hpc's filters and plugins, beside a Slurm without them.

    .venv/bin/python benchmarks/bench_submit.py [--jobs 10000] [--nodes 1000] [--dir DIRECTORY]
    .venv/bin/python benchmarks/bench_submit.py --cycles --on with --on fine
    .venv/bin/python benchmarks/bench_submit.py --clients [--before CHECKOUT]

As root. Private Slurms, each with one node of two simulated GPUs and `nodes` configured ones that are down: without
hami_hpc (gres/shard alone), the same with Lua filters that do nothing, with hami_hpc, and with shards of 1 MiB. Four
loops call sbatch at once, in turns on all clusters: a plain CPU job, and half a GPU (bare shards without hami_hpc, vgpu
with it). Then `jobs` jobs wait on each for a GPU that is held, and sdiag says how long slurmctld's cycles take. Status
1 where a plain job's rate with hami_hpc is below 0.95 of that without.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("", "tests/cluster", "tests/versions", "benchmarks")]

import bare_slurm  # noqa: E402  after the paths to the checkout
import client_costs  # noqa: E402
from harness import cluster, config, daemons, jobs  # noqa: E402
from harness.files import write  # noqa: E402
from harness.layout import Layout  # noqa: E402

LEAST, LANES, BATCH, ROUNDS = 0.95, 4, 40, 40
STOCK, EMPTY, OURS, FINE = "without hami_hpc", "with empty filters", "with hami_hpc", "with shards of 1 MiB"
EMPTY_SCRIPTS = {
    "cli_filter.lua": ("slurm_cli_setup_defaults", "slurm_cli_pre_submit", "slurm_cli_post_submit"),
    "job_submit.lua": ("slurm_job_submit", "slurm_job_modify"),
}
PLACES = {"stock": STOCK, "empty": EMPTY, "with": OURS, "fine": FINE}
USER = "games"
SCRIPT = "#!/bin/sh\nsleep 600\n"
PLAIN = "--partition=cpu"
SLICE = "--gres=vgpu:mem=8G,cores=50"
HALF = {STOCK: "--gres=shard:50", EMPTY: "--gres=shard:50", OURS: SLICE, FINE: SLICE}
HELD = ("--hold", "--time=10", "--output=/dev/null")


def add_nodes(layout: Layout, count: int) -> None:
    """Adds nodes that are down, with the GPUs' node's gres, and restarts slurmctld."""
    fragment = (layout.etc / "slurm-hami-hpc.conf").read_text()
    gres = re.search(rf"^NodeName={config.NODE} .* Gres=(\S+)", fragment, re.MULTILINE)
    assert gres is not None
    text = layout.slurm_conf.read_text()
    lines = f"NodeName=far[1-{count}] NodeAddr=127.0.0.1 Port=9 CPUs=64 RealMemory=1024 Gres={gres[1]} State=DOWN\n"
    lines += f"PartitionName=far Nodes=far[1-{count}] MaxTime=60\nMaxJobCount=100000\n"
    write(layout.slurm_conf, text + lines)
    cluster.restart(layout, "slurmctld")


def few_mib(layout: Layout) -> None:
    """Makes shards of 1 MiB, and everything that follows from it."""
    text = layout.site_config.read_text()
    assert "shard_mib = 256\n" in text
    write(layout.site_config, text.replace("shard_mib = 256\n", "shard_mib = 1\n"))
    config.render(layout)
    for name in ("slurmd", "slurmctld"):  # in this order: slurmctld drains a node that has less than slurm.conf says
        cluster.restart(layout, name)


def empty_filters(layout: Layout) -> None:
    for name, functions in EMPTY_SCRIPTS.items():
        lines = [f"function {function}() return slurm.SUCCESS end\n" for function in functions]
        write(layout.etc / name, "".join([*lines, "return slurm.SUCCESS\n"]))
    write(layout.slurm_conf, layout.slurm_conf.read_text() + "JobSubmitPlugins=lua\nCliFilterPlugins=lua\n")


@contextlib.contextmanager
def clusters(folder: Path, nodes: int, places: Sequence[str]) -> Iterator[dict[str, Layout]]:
    with contextlib.ExitStack() as stack:
        layouts = {}
        for place, name in PLACES.items():
            root = folder / place
            if place not in places:
                continue
            if name in (STOCK, EMPTY):
                layouts[name] = stack.enter_context(bare_slurm.running(root, ("", "")))
            else:
                stack.callback(cluster.remove, root)
                cluster.remove(root)
                layouts[name] = cluster.up(root)
        for name, change in ((EMPTY, empty_filters), (FINE, few_mib)):
            if name in layouts:
                change(layouts[name])
        for layout in layouts.values():
            add_nodes(layout, nodes)
        yield layouts


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a number of submissions: jobs a second, and the CPU time of each, ms, of sbatch and of slurmctld."""

    rate: float
    sbatch_ms: float
    slurmctld_ms: float


def cpu_s(layout: Layout) -> float:
    """Returns the CPU time of slurmctld so far."""
    pid = daemons.running_pid(layout, "slurmctld")
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def submit(layout: Layout, count: int, *options: str) -> Cost:
    """Submits so many jobs in LANES loops at once. Raises SystemExit where one is refused."""
    script = layout.home / USER / "job.sh"
    jobs.write_script(layout, USER, "job.sh", SCRIPT)
    words = " ".join(f"'{option}'" for option in options)
    loop = f"set -e; for i in $(seq {count // LANES}); do sbatch --parsable {words} {script} >/dev/null; done"
    command = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c", loop)
    environment = jobs.user_environment(layout, USER)
    began, before, children = time.monotonic(), cpu_s(layout), client_costs.children_s()
    running = [subprocess.Popen(command, env=environment, cwd=layout.home / USER) for _ in range(LANES)]
    ended = [process.wait(900) for process in running]
    if any(ended):
        raise SystemExit(f"sbatch {words} was refused")
    took, own = time.monotonic() - began, client_costs.children_s() - children
    return Cost(count / took, 1000 * own / count, 1000 * (cpu_s(layout) - before) / count)


def costs(layouts: dict[str, Layout], options: Callable[[str], str]) -> dict[str, list[Cost]]:
    """Returns the costs of each turn on each cluster. Each round begins with another one, as a cluster is still busy
    with its cancelled jobs when the next one's turn begins."""
    seen: dict[str, list[Cost]] = {name: [] for name in layouts}
    order = list(layouts)
    for number in range(ROUNDS + 1):
        order.append(order.pop(0))
        for name in order:
            cost = submit(layouts[name], BATCH, options(name), *HELD)
            if number:  # the first fills caches
                seen[name].append(cost)
            jobs.admin(layouts[name], "scancel", f"--user={USER}")
    return seen


def rate_beside(seen: dict[str, list[Cost]], name: str, other: str) -> float:
    """Returns the median of the ratios within a round: both had the same other work beside them, more or less."""
    return statistics.median(own.rate / its.rate for own, its in zip(seen[name], seen[other], strict=True))


def report_costs(layouts: dict[str, Layout]) -> float:
    """Prints a table for each kind of job; returns how a plain job's rate is beside that without hami_hpc."""
    found = []
    kinds: tuple[tuple[str, Callable[[str], str]], ...] = (
        ("A CPU job", lambda _name: PLAIN),
        ("Half a GPU", lambda name: HALF[name]),
    )
    for what, options in kinds:
        print(f"| {what} | /s | to empty filters | to none | sbatch, CPU ms | slurmctld, CPU ms |\n{'|---' * 6}|")
        seen = costs(layouts, options)
        for name, each in seen.items():
            cells = [f"{statistics.median(cost.rate for cost in each):.0f}"]
            cells += [f"{rate_beside(seen, name, other):.2f}" for other in (EMPTY, STOCK)]
            cells.append(f"{client_costs.undisturbed([cost.sbatch_ms for cost in each]):.2f}")
            cells.append(f"{statistics.mean(cost.slurmctld_ms for cost in each):.2f}")  # few ticks of the clock each
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        found.append(rate_beside(seen, OURS, STOCK))
        print()
    return found[0]


def cycles(layout: Layout, wait_s: float = 60) -> str:
    """Returns the mean of slurmctld's main and backfill cycles, ms, in the next seconds."""
    jobs.admin(layout, "sdiag", "--reset")
    time.sleep(wait_s)
    text = jobs.admin(layout, "sdiag")
    means = re.findall(r"Mean cycle:\s+(\d+)", text)
    depth = re.findall(r"Queue length mean:\s+(\d+)", text)
    return f"{' | '.join(f'{int(mean) / 1000:.1f}' for mean in means[:2])} | {depth[0] if depth else '-'}"


def memory_mib(layout: Layout) -> float:
    """Returns slurmctld's resident memory."""
    status = Path(f"/proc/{daemons.running_pid(layout, 'slurmctld')}/status").read_text()
    resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert resident is not None
    return int(resident[1]) / 1024


def check_waiting(layout: Layout) -> None:
    """Raises SystemExit where the jobs wait for anything but room: then a cycle has less to do."""
    reasons = set(jobs.admin(layout, "squeue", "-h", f"--user={USER}", "-o", "%r").splitlines())
    if not reasons <= {"Resources", "Priority", "None"}:
        raise SystemExit(f"jobs wait for {', '.join(sorted(reasons))}")


def report_cycles(layouts: dict[str, Layout], count: int) -> None:
    print(f"| {count} jobs wait | submitted, /s | main cycle, ms | backfill, ms | jobs looked at | slurmctld, MiB |")
    print("|---" * 6 + "|")
    for name, layout in layouts.items():
        for _ in range(2):  # both GPUs are held
            jobs.submit(layout, "root", "--gres=gpu:1", "--time=30", script="sleep 1800")
        cost = submit(layout, count, HALF[name], "--time=10", "--output=/dev/null")
        check_waiting(layout)
        print(f"| {name} | {cost.rate:.0f} | {cycles(layout)} | {memory_mib(layout):.0f} |", flush=True)
        jobs.admin(layout, "scancel", f"--user={USER}", timeout_s=300)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10000, help="that wait while cycles are measured; 0: none are")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--dir", type=Path, default=ROOT / "build/submit-clusters")
    parser.add_argument("--cycles", action="store_true", help="only the cycles")
    parser.add_argument("--on", action="append", choices=PLACES, help="with --cycles: these Slurms alone")
    parser.add_argument("--clients", action="store_true", help="only the CPU time of sbatch, with parts left out")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="with --clients: this one's filters, too")
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before; {LANES} loops of sbatch at once\n", flush=True)
    if options.clients:
        try:
            cluster.remove(options.dir)
            client_costs.report(cluster.up(options.dir), options.before)
        finally:
            cluster.remove(options.dir)
        return 0
    with clusters(options.dir, options.nodes, options.on or list(PLACES)) as layouts:
        ratio = LEAST if options.cycles else report_costs(layouts)
        if options.jobs:
            report_cycles(layouts, options.jobs)
    return 0 if ratio >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
