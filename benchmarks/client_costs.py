# SPDX-License-Identifier: Apache-2.0
"""CPU time of one sbatch with parts of hami_hpc's client side left out: the SPANK plugin, the filter, its modules."""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from harness import config, jobs
from harness.layout import Layout

USER = "games"
JOBS, ROUNDS = 4, 80
SPANK = "plugstack.conf.d/hami-hpc.conf"
EMPTY_FILTER = "".join(
    f"function slurm_cli_{name}() return slurm.SUCCESS end\n"
    for name in ("setup_defaults", "pre_submit", "post_submit")
)


OURS = "ours"


def name_filter(etc: Path, line: str) -> None:
    fragment = etc / "slurm-hami-hpc.conf"
    text = fragment.read_text()
    assert "CliFilterPlugins=hami_hpc\n" in text
    fragment.write_text(text.replace("CliFilterPlugins=hami_hpc\n", line))


def without_filter(etc: Path) -> None:
    name_filter(etc, "")


def without_spank(etc: Path) -> None:
    (etc / SPANK).write_text("")
    without_filter(etc)


def with_lua(etc: Path) -> None:
    name_filter(etc, "CliFilterPlugins=lua\n")


def empty_filter(etc: Path) -> None:
    with_lua(etc)
    (etc / "cli_filter.lua").write_text(f"{EMPTY_FILTER}return slurm.SUCCESS\n")


def filters_of(checkout: Path) -> Callable[[Path], None]:
    def copy(etc: Path) -> None:
        with_lua(etc)
        for script in (checkout / "slurm-plugins" / "lua").glob("*.lua"):
            shutil.copy(script, etc / script.name)

    return copy


def variants(before: Path | None) -> dict[str, Callable[[Path], None]]:
    found: dict[str, Callable[[Path], None]] = {
        "no filter, no SPANK plugin": without_spank,
        "no filter, our SPANK plugin": without_filter,
        "`CliFilterPlugins=lua` with an empty script, our SPANK plugin": empty_filter,
        f"{OURS}, `CliFilterPlugins=lua`": with_lua,
        f"{OURS}, `CliFilterPlugins=hami_hpc`": lambda _etc: None,
    }
    return found | ({f"{OURS}, before": filters_of(before)} if before else {})


def children_s() -> float:
    """Returns the CPU time of all programs that this process has waited for. os.times() has ticks of 10 ms."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def client_conf(layout: Layout, number: int, change: Callable[[Path], None]) -> Path:
    """Returns slurm.conf in a copy of the cluster's configuration that only clients read."""
    etc = config.copy_for_clients(layout, f"client{number}")
    change(etc)
    return etc / "slurm.conf"


def sbatch_ms(layout: Layout, conf: Path, *options: str) -> float:
    """Returns the CPU time of one sbatch of JOBS, ms. Raises CalledProcessError where one is refused."""
    jobs.write_script(layout, USER, "job.sh", "#!/bin/sh\nsleep 600\n")
    words = " ".join(f"'{option}'" for option in ("--parsable", "--hold", "--output=/dev/null", *options))
    loop = f"set -e; for i in $(seq {JOBS}); do sbatch {words} job.sh >/dev/null; done"
    command = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c", loop)
    environment = jobs.user_environment(layout, USER) | {"SLURM_CONF": str(conf)}
    before = children_s()
    subprocess.run(command, env=environment, cwd=layout.home / USER, check=True)
    return 1000 * (children_s() - before) / JOBS


def undisturbed(times: list[float]) -> float:
    """Returns the mean of the lower half: what other work on the machine adds is in the upper one."""
    return statistics.mean(sorted(times)[: len(times) // 2])


def report(layout: Layout, before: Path | None) -> None:
    """Prints the CPU time of a CPU job and, where the filter is ours, half a GPU, in ROUNDS of all."""
    changes = variants(before)
    confs = {name: client_conf(layout, number, change) for number, (name, change) in enumerate(changes.items())}
    kinds = {"a CPU job": ("--partition=cpu",), "half a GPU": ("--gres=vgpu:mem=8G,cores=50",)}
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, conf in confs.items():
            for kind, options in kinds.items():
                if kind == "a CPU job" or name.startswith(OURS):
                    took.setdefault((name, kind), []).append(sbatch_ms(layout, conf, *options))
        jobs.admin(layout, "scancel", f"--user={USER}")
    print(f"| client's configuration | {', CPU ms | '.join(kinds)}, CPU ms |\n|---|---|---|")
    for name in confs:
        cells = [f"{undisturbed(took[name, kind]):.2f}" if (name, kind) in took else "" for kind in kinds]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()
