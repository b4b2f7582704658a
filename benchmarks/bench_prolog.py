# SPDX-License-Identifier: Apache-2.0
"""Wall time and CPU time of prolog and epilog, as slurmd starts them, against an empty `python3 -c pass`.

    .venv/bin/python benchmarks/bench_prolog.py [--rounds 101] [--before CHECKOUT]

CPU time is that of a stage and of the programs that it waits for, in and out of the kernel. With --before each round
runs the stages of another checkout too (git worktree add build/before COMMIT; ln -s ../../.venv build/before/.venv).

Each round runs every case once, one after the other, so that whatever else the machine does falls on all alike. The
run directory, with the ledger, lies in memory (/dev/shm), as /run does on a node; the spool lies in TMPDIR. The
inventory is in the ledger, as in all prologs of a boot but the first.

Modes mps and mig use the simulated control daemon and NVML, so what the real ones take comes on top. "first": the
job's prolog starts the daemon, and its epilog ends it; "next": another job has it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIM = ROOT / "build/native/sim"
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster")]

from harness.mounting import unmount_below  # noqa: E402  after the paths to the checkout

from hami_hpc.core.inventory import Device, make_inventory  # noqa: E402  after the path to the checkout
from hami_hpc.node.config import load_settings  # noqa: E402
from hami_hpc.stages import common  # noqa: E402

AIM, AIM_OF_MODES = 2.5, 3.5  # in CPU time; of mps and mig, for which programs and NVML are called
EMPTY, BEFORE = "python3 -I -S -c pass", "before: "
SETTINGS = """\
version = 1
[paths]
run_dir = "{memory}/run"
state_dir = "{root}/state"
[gpu_models.h200]
total_mib = 143156
{profiles}
[partitions.gpu]
gpu_models = ["h200"]
"""
MODES = """\
[vgpu]
modes = ["share", "mps", "mig"]
[mps]
control = "{sim}/nvidia-cuda-mps-control"
"""
MIG_PROFILES = """\
[gpu_models.h200.mig_profiles]
"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One command and its environment."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]


def make_slurm_conf(folder: Path) -> str:
    """A slurm.conf with 200 lines of nodes, and a plugstack.conf as Debian has it: the prolog reads both."""
    nodes = "".join(
        f"NodeName=gpu{i:03} CPUs=64 RealMemory=512000 Gres=gpu:h200:8 Feature=rack{i}\n" for i in range(200)
    )
    (folder / "slurm.conf").write_text(f"ClusterName=bench\n{nodes}include more.conf\n")
    (folder / "more.conf").write_text("Prolog=/etc/slurm/prolog\n")
    (folder / "plugstack.conf.d").mkdir()
    (folder / "plugstack.conf").write_text(f"include {folder}/plugstack.conf.d/*.conf\n")
    (folder / "plugstack.conf.d" / "hami-hpc.conf").write_text("required spank_hami_hpc.so run_dir=/run/hami-hpc\n")
    return f"{folder}/slurm.conf"


def make_cases(checkout: Path, folder: Path, memory: Path) -> list[Case]:
    """A node with one GPU under `folder` and `memory`, and what to time on it, in the order to run."""
    config = folder / "hami-hpc.toml"
    config.write_text(SETTINGS.format(root=folder, memory=memory, profiles=""))
    settings = load_settings(str(config))
    ledger = common.open_ledger(settings)
    ledger.set_inventory(make_inventory([Device(0, "GPU-bench", "NVIDIA H200", 143156)], settings.gpu_models))
    ledger.close()
    watched = folder / "watched.toml"  # a job with whole GPUs is noted where an agent is
    watched.write_text(f"{config.read_text()}[agent]\n")
    slurm_conf = make_slurm_conf(folder)
    none = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "65534", "SLURM_CONF": slurm_conf}
    job = none | {"SLURM_JOB_GPUS": "0"}
    vgpu = {"HAMI_HPC_VGPU": "1", "HAMI_HPC_CLASS": "std", "HAMI_HPC_MEM_MIB": "8192", "HAMI_HPC_CORES": "50"}
    arguments, agent = ("--config", str(config)), ("--config", str(watched))
    prolog, epilog = str(checkout / "prolog" / "prolog"), str(checkout / "prolog" / "epilog")
    return [
        # The same interpreter with the same switches: site-packages with many .pth files would flatter the ratio.
        Case(EMPTY, (sys.executable, "-I", "-S", "-c", "pass"), {}),
        Case("prolog, job with vgpu", (prolog, *arguments), job | vgpu),
        Case("epilog, job with vgpu", (epilog, *arguments), job | vgpu),
        Case("prolog, whole GPU", (prolog, *agent), job),
        Case("epilog, whole GPU", (epilog, *agent), job),
        Case("prolog, job without GPU", (prolog, *arguments), none),
        Case("epilog, job without GPU", (epilog, *arguments), none),
    ]


def make_machine(folder: Path) -> tuple[dict[str, str], str]:
    """Makes two simulated H200s, the second divided by MIG. Returns variables that find them, and its UUID."""
    machine = folder / "machine"
    subprocess.run((f"{SIM}/sim-machine", machine, "h200", "h200"), check=True, stdout=subprocess.DEVNULL)
    (machine / "proc").mkdir()
    (machine / "proc/devices").write_text("Character devices:\n238 nvidia-caps\n")
    found = {"HAMI_SIM": str(machine), "LD_LIBRARY_PATH": str(SIM)}
    program = "import pynvml as n; n.nvmlInit(); g = n.nvmlDeviceGetHandleByIndex(1); n.nvmlDeviceSetMigMode(g, 1); "
    program += "print(n.nvmlDeviceGetUUID(g))"
    command = (sys.executable, "-c", program)
    done = subprocess.run(command, env=found, check=True, capture_output=True, text=True)
    return found, done.stdout.strip()


def make_mode_cases(checkout: Path, folder: Path, memory: Path) -> list[Case]:
    """The same for the other modes, on a node with two GPUs: one for MPS, and one that MIG divides."""
    found, uuid = make_machine(folder)
    config = folder / "modes.toml"
    text = SETTINGS.format(root=folder, memory=memory / "m", profiles=MIG_PROFILES)
    config.write_text(text.replace("[paths]", f'{MODES.format(sim=SIM)}[paths]\ndriver_root = "{found["HAMI_SIM"]}"'))
    settings = load_settings(str(config))
    ledger = common.open_ledger(settings)
    devices = [Device(0, "GPU-bench", "NVIDIA H200", 143156), Device(1, uuid, "NVIDIA H200", 143156)]
    ledger.set_inventory(make_inventory(devices, settings.gpu_models))
    ledger.close()
    base = found | {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "65534", "SLURM_CONF": f"{folder}/slurm.conf"}
    vgpu = {"HAMI_HPC_VGPU": "1", "HAMI_HPC_CLASS": "std", "HAMI_HPC_MEM_MIB": "16384", "HAMI_HPC_CORES": "14"}
    mps = base | vgpu | {"SLURM_JOB_GPUS": "0", "SLURM_JOB_CONSTRAINTS": "vgpu_mps"}
    mig = base | vgpu | {"SLURM_JOB_GPUS": "1", "SLURM_JOB_CONSTRAINTS": "vgpu_mig"}
    other = mps | {"SLURM_JOB_ID": "8"}
    prolog, epilog = ((str(checkout / "prolog" / name), "--config", str(config)) for name in ("prolog", "epilog"))
    return [
        Case("prolog, mps, first", prolog, mps),
        Case("prolog, mps, next", prolog, other),
        Case("epilog, mps, next", epilog, other),
        Case("epilog, mps, first", epilog, mps),
        Case("prolog, mig", prolog, mig),
        Case("epilog, mig", epilog, mig),
    ]


def timed_ms(case: Case) -> tuple[float, float]:
    """Wall and CPU milliseconds of one run, which must succeed; CPU of the programs that it waits for, too."""
    begin = time.perf_counter()
    process = subprocess.Popen(case.command, env=case.environment, stdin=subprocess.DEVNULL)
    _pid, status, used = os.wait4(process.pid, 0)
    wall_ms = (time.perf_counter() - begin) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, case.command)
    return wall_ms, (used.ru_utime + used.ru_stime) * 1000


def make_all(checkout: Path, folder: Path, memory: Path) -> list[Case]:
    """All cases of one checkout, with a node of its own; the empty start is the first."""
    for path in (folder, memory):
        path.mkdir()
    return make_cases(checkout, folder, memory) + make_mode_cases(checkout, folder, memory)


def measure(cases: list[Case], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Times of each case by its name, in rounds of all."""
    for case in cases:  # compiled modules and page cache
        timed_ms(case)
    times: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            times[case.name].append(timed_ms(case))
    return times


def show(times: dict[str, list[tuple[float, float]]], names: list[str]) -> list[str]:
    """Prints medians and ratios of these cases. Returns the names of those that pass the aim."""
    empty, empty_cpu = (statistics.median(column) for column in zip(*times[EMPTY], strict=True))
    print(f"{'':24}{'median ms':>10}{'10th':>8}{'90th':>8}{'x empty':>9}{'CPU ms':>9}{'x empty':>9}")
    missed = []
    for name in names:
        walls, cpus = zip(*times[name], strict=True)
        wall, cpu, cuts = statistics.median(walls), statistics.median(cpus), statistics.quantiles(walls, n=10)
        if cpu / empty_cpu > (AIM_OF_MODES if "mps" in name or "mig" in name else AIM):
            missed.append(name)
        print(f"{name:24}{wall:10.1f}{cuts[0]:8.1f}{cuts[-1]:8.1f}{wall / empty:9.2f}{cpu:9.1f}{cpu / empty_cpu:9.2f}")
    return missed


def main() -> int:
    """Prints medians and ratios; returns 1 when one passes the aim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hami-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="hami-bench-", dir="/dev/shm") as memory,
    ):
        cases = make_all(ROOT, Path(folder, "now"), Path(memory, "now"))
        names = [case.name for case in cases]
        before = make_all(options.before, Path(folder, "old"), Path(memory, "old"))[1:] if options.before else []
        cases += [replace(case, name=f"{BEFORE}{case.name}") for case in before]
        times = measure(cases, options.rounds)
        unmount_below(Path(memory))
    print(f"{options.rounds} rounds, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    missed = show(times, names)
    if options.before:
        print(f"\n{options.before}, in the same rounds:")
        show(
            {name.removeprefix(BEFORE): each for name, each in times.items() if name == EMPTY or BEFORE in name}, names
        )
    result = f"MISSED by {', '.join(missed)}" if missed else "kept"
    print(f"aim: at most {AIM} x empty in CPU time, {AIM_OF_MODES} with mps or mig: {result}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
