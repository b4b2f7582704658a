# SPDX-License-Identifier: Apache-2.0
"""Two accounts with shares of 2:1 want all GPUs: what each gets, with slices weighed as `hami-hpc quota` says and not.

    .venv/bin/python benchmarks/bench_fair_share.py [--minutes 30] [--dir DIRECTORY]

As root, on two private Slurms at once, each with two simulated GPUs; slurm.conf of one has no weights. physics sends
halves of a GPU, vision quarters, each for 10 s, always more than fit. Slurm looks at shares each minute, the least it
offers, and then runs the jobs of the account that is behind: the ratio swings around its value, less and less. Status 1
where with weights it is not within 10 % of 2 at the end.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster")]

from harness import cluster, jobs  # noqa: E402  after the paths to the checkout
from harness.files import write  # noqa: E402
from harness.layout import Layout  # noqa: E402
from harness.merging import merge  # noqa: E402

QUOTAS = "version = 1\n[accounts.physics]\nfairshare = 20\n[accounts.vision]\nfairshare = 10\n"
REQUESTS = {"games": "vgpu:mem=4G,cores=50", "news": "vgpu:mem=4G,cores=25"}
PARTS = {"games": 0.5, "news": 0.25}
JOB_S, LOOK_S, ARRAY = 10, 60, 999
WANTED, TOLERANCE = 2.0, 0.1
WEIGHED, PLAIN = "with weights", "without"


def quota(layout: Layout, *words: str) -> str:
    command = (str(ROOT / ".venv/bin/hami-hpc"), "quota", *words)
    return jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)}, timeout_s=120).out


def settle(layout: Layout, weighed: bool) -> None:
    """Writes the shares, and slurm.conf's lines; without the weights of slices where not `weighed`."""
    write(layout.site_config.with_name("quotas.toml"), QUOTAS)
    quota(layout, "apply")
    merge(layout, quota(layout, "render"))
    text = layout.slurm_conf.read_text() + "PriorityCalcPeriod=1\n"
    write(layout.slurm_conf, text if weighed else re.sub(r" TRESBillingWeights=\S+", "", text))
    cluster.restart(layout, "slurmctld")


def held(layout: Layout, since: float) -> dict[str, float]:
    """Returns the GPU-hours that each user's jobs have held since then."""
    words = ("-n", "-P", "-X", "-a", "-o", "User,Start,End", "-S", f"now-{int(time.time() - since) + 5}seconds")
    text = jobs.admin(layout, "env", "SLURM_TIME_FORMAT=%s", "sacct", *words)
    hours = dict.fromkeys(REQUESTS, 0.0)
    for line in text.splitlines():
        user, start, end = line.split("|")
        if user in hours and start.isdigit():
            end_s = float(end) if end.isdigit() else time.time()
            hours[user] += PARTS[user] * max(0.0, end_s - max(float(start), since)) / 3600
    return hours


def contend(layouts: Mapping[str, Layout], minutes: int) -> dict[str, float]:
    """Runs both accounts' jobs on each cluster; prints a row each minute, and returns the last ratios."""
    began = time.time()
    for layout in layouts.values():
        for user, request in REQUESTS.items():
            options = (f"--gres={request}", f"--array=0-{ARRAY}", "--time=1")
            jobs.submit(layout, user, *options, script=f"sleep {JOB_S}")
    heads = [f"{name}: physics, GPU-hours | vision | ratio" for name in layouts]
    print(f"| minute | {' | '.join(heads)} |\n{'|---' * (1 + 3 * len(layouts))}|")
    ratios = {}
    for minute in range(1, minutes + 1):
        time.sleep(max(0.0, began + minute * LOOK_S - time.time()))
        cells = []
        for name, layout in layouts.items():
            hours = held(layout, began)
            ratios[name] = hours["games"] / hours["news"] if hours["news"] else float("inf")
            cells.append(f"{hours['games']:.3f} | {hours['news']:.3f} | {ratios[name]:.2f}")
        print(f"| {minute} | {' | '.join(cells)} |", flush=True)
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--dir", type=Path, default=ROOT / "build/fair-share")
    options = parser.parse_args()
    roots = {name: Path(f"{options.dir}-{number}") for number, name in enumerate((WEIGHED, PLAIN))}
    layouts = {}
    try:
        for name, root in roots.items():
            cluster.remove(root)
            layouts[name] = cluster.up(root)
            settle(layouts[name], name == WEIGHED)
        ratios = contend(layouts, options.minutes)
    finally:
        for root in roots.values():
            cluster.remove(root)
    good = abs(ratios[WEIGHED] - WANTED) <= TOLERANCE * WANTED
    print(f"\n{WEIGHED} {ratios[WEIGHED]:.2f}, {PLAIN} {ratios[PLAIN]:.2f}; the shares are {WANTED:.0f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
