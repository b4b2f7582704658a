# SPDX-License-Identifier: Apache-2.0
"""What the agent costs on a node with 8 GPUs and 80 tenants: CPU time, memory, time of a look.

    .venv/bin/python benchmarks/bench_agent.py [--gpus 8] [--tenants 80] [--seconds 60] [--profile] [--oversold]

As root. Each tenant is a process under the interposer that holds memory of a simulated GPU and runs a kernel each
second; the prolog made its job's run directory, and a script in place of scontrol says whose job it is. The agent and
`hami-hpc metrics`, scraped each 15 s, run as processes of their own; their CPU time and memory are read from /proc.
With --oversold the GPUs' memory is sold three times, and each tenant has 36 GiB: three are on a GPU, and the others
wait for their turn. No turn ends meanwhile. After that, the same looks are timed one by one in another process. Then
all of it again without tenants.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster")]

from harness.mounting import unmount_below  # noqa: E402  after the paths to the checkout

from hami_hpc.contract import constants as c  # noqa: E402
from hami_hpc.core.inventory import Device, make_inventory  # noqa: E402
from hami_hpc.node import job_dirs  # noqa: E402
from hami_hpc.node.config import load_settings  # noqa: E402
from hami_hpc.stages import common  # noqa: E402
from hami_hpc.stages.prolog import main as prolog_main  # noqa: E402

BUILD = ROOT / "build/native"
CPU_PERCENT, MEMORY_MIB = 1.0, 60.0  # the budget of agent and metrics together
SCRAPE_SECONDS = 15
GPU_MIB, JOB_MIB, TENANT_MIB = 143156, 12288, 4096
OVERSOLD_JOB_MIB, ON_GPU = 36864, 3
KERNEL_MS, PERIOD_MS = 30, 1000
SETTINGS = """\
version = 1
[paths]
run_dir = "{folder}/run"
state_dir = "{folder}/state"
[gpu_models.h200]
total_mib = 143156
[partitions.gpu]
gpu_models = ["h200"]
"""
OVERSOLD = """\
[agent]
[vgpu]
memory_scaling = 3
turn_s = 600
[classes.be]
swap = true
"""
SCONTROL = '#!/bin/sh\n[ "$1" = listpids ] && cat {folder}/pids\n'


@dataclass
class Node:
    """A simulated machine in memory (/dev/shm), as /run is on a node, with its settings and its jobs."""

    folder: Path
    gpus: int
    is_oversold: bool = False

    @property
    def config(self) -> Path:
        return self.folder / "hami-hpc.toml"

    def make(self) -> None:
        machine = self.folder / "sim"
        subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), *["h200"] * self.gpus], check=True)
        uuids = re.findall(r"uuid=(GPU-\S+)", (machine / "machine.conf").read_text())
        text = SETTINGS.format(folder=self.folder)
        self.config.write_text(text + OVERSOLD if self.is_oversold else text)
        settings = load_settings(str(self.config))
        ledger = common.open_ledger(settings)
        devices = [Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(uuids)]
        ledger.set_inventory(make_inventory(devices, settings.gpu_models))
        ledger.close()
        stub = self.folder / "bin/scontrol"
        stub.parent.mkdir()
        stub.write_text(SCONTROL.format(folder=self.folder))
        stub.chmod(0o755)
        (self.folder / "pids").write_text("")

    def environment(self, **more: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HAMI_", "LD_", "CUDA_"))}
        path = f"{self.folder}/bin:{own.get('PATH', '')}"
        sim = {"HAMI_SIM": f"{self.folder}/sim", "LD_LIBRARY_PATH": str(BUILD / "sim")}
        return own | sim | {"PATH": path} | more

    @contextmanager
    def tenants(self, count: int) -> Iterator[None]:
        """Starts a job with one process for each tenant, as many on each GPU."""
        processes = []
        try:
            for number in range(count):
                processes.append(self._tenant(1000 + number, number % self.gpus))
                time.sleep(PERIOD_MS / 1000 / count)  # not all at the same moment of the period
            lines = [f"{one.pid} {1000 + number} 0 0 0\n" for number, one in enumerate(processes)]
            (self.folder / "pids").write_text("PID JOBID STEPID LOCALID GLOBALID\n" + "".join(lines))
            yield
            ended = [one.pid for one in processes if one.poll() is not None]
            assert not ended, f"tenants ended by themselves: {ended}"
        finally:
            for process in processes:
                process.kill()
                process.communicate()

    def _tenant(self, job_id: int, gpu: int) -> subprocess.Popen[str]:
        request = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": "0",
            "SLURM_JOB_GPUS": str(gpu),
            c.ENV_VGPU: "1",
            c.ENV_CLASS: "be" if self.is_oversold else "std",
            c.ENV_MEM_MIB: str(OVERSOLD_JOB_MIB if self.is_oversold else JOB_MIB),
            c.ENV_CORES: "10",
        }
        assert prolog_main(["--config", str(self.config)], request) == 0
        directory = job_dirs.job_dir(f"{self.folder}/run", job_id)
        limits = f"{directory}/{c.FILE_JOB_LIMITS}"
        preload = f"{BUILD}/libhami-hpc.so {BUILD}/sim/libhami-sim-kernel.so"
        process = subprocess.Popen(
            [str(BUILD / "bench/agent_tenant"), str(TENANT_MIB), str(KERNEL_MS), str(PERIOD_MS)],
            env=self.environment(LD_PRELOAD=preload, CUDA_VISIBLE_DEVICES=str(gpu), **{c.ENV_LIMITS: limits}),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        if not self.is_oversold or (job_id - 1000) // self.gpus < ON_GPU:  # else it waits for its turn
            assert process.stdout.readline() == "ready\n"
        return process


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time, s, and memory, MiB, of a process; `children_s` of those that it started and that ended."""

    cpu_s: float
    children_s: float
    rss_mib: float = 0.0
    pss_mib: float = 0.0


def cost_of(pid: int) -> Cost:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, children = (sum(map(int, fields[at : at + 2])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", rollup, re.MULTILINE))
    return Cost(own, children, int(kib["Rss"]) / 1024, int(kib["Pss"]) / 1024)


def since(before: Cost, now: Cost) -> Cost:
    return Cost(now.cpu_s - before.cpu_s, now.children_s - before.children_s, now.rss_mib, now.pss_mib)


@contextmanager
def started(command: list[str], node: Node) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "hami_hpc.cli", *command, "--config", str(node.config)],
        cwd=ROOT,
        env=node.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def measure(node: Node, seconds: float) -> tuple[Cost, Cost, str]:
    """Returns what agent and metrics cost in that time, and the last metrics."""
    with (
        started(["agent", "--node", "node1"], node) as agent,
        started(["metrics", "--listen", "127.0.0.1:0"], node) as server,
    ):
        assert server.stderr is not None
        url = f"http://{server.stderr.readline().split()[-1]}/metrics"
        time.sleep(5)  # the start is not part of it
        scrape(url)
        before = cost_of(agent.pid), cost_of(server.pid)
        start = time.monotonic()
        for number in range(1, max(1, round(seconds / SCRAPE_SECONDS)) + 1):
            time.sleep(max(0, start + min(seconds, number * SCRAPE_SECONDS) - time.monotonic()))
            text = scrape(url)
        now = cost_of(agent.pid), cost_of(server.pid)
    return since(before[0], now[0]), since(before[1], now[1]), text


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read()).decode()


LOOKS = """
import json, sys, threading, time
from hami_hpc.agent import service
from hami_hpc.node import agent_file
from hami_hpc.node.agent_settings import read_agent
from hami_hpc.node.config import load_settings
settings = load_settings(sys.argv[1])
watcher = service.make_watcher(settings, read_agent(settings), "node1")
watcher.emit = lambda event: None
def look():
    agent_file.write(settings.run_dir, watcher.look())
look()
profile = None
if sys.argv[3]:
    import cProfile
    profile = cProfile.Profile()
times = []
for _ in range(int(sys.argv[2])):
    time.sleep(1)
    start, cpu = time.perf_counter(), time.process_time()
    profile.runcall(look) if profile else look()
    times.append([(time.perf_counter() - start) * 1000, (time.process_time() - cpu) * 1000])
if profile:
    profile.dump_stats(sys.argv[3])
print(json.dumps(times))
"""


def time_looks(node: Node, count: int, profile: str = "") -> list[tuple[float, float]]:
    """Returns wall and CPU time, ms, of each look, the writing of the state file included."""
    command = [sys.executable, "-c", LOOKS, str(node.config), str(count), profile]
    done = subprocess.run(command, cwd=ROOT, env=node.environment(), check=True, capture_output=True, text=True)
    return [(wall, cpu) for wall, cpu in json.loads(done.stdout)]


def report(node: Node, options: argparse.Namespace, tenants: int) -> bool:
    """Measures and prints with so many tenants. Returns whether the budget is kept."""
    agent, metrics, text = measure(node, options.seconds)
    held = re.search(r"(?m)^hami_hpc_agent_looks_total (\S+)", text)
    assert held is not None
    busy = re.findall(r"(?m)^hami_hpc_job_busy_seconds_total\{.*\} (\S+)", text)
    assert len(busy) == tenants, f"{len(busy)} jobs of {tenants}"
    on_gpus = min(tenants, node.gpus * ON_GPU) if node.is_oversold else tenants
    assert sum(float(one) > 0 for one in busy) == on_gpus, "a tenant that ran was not seen"
    assert "hami_hpc_job_finding{" not in text, "a tenant that does no harm was found"
    state = node.folder / "run/agent/state.json"
    standings = [one["state"] for one in json.loads(state.read_text())["standings"]]
    waiting = tenants - on_gpus
    assert standings.count("waits") == waiting, standings
    size = state.stat().st_size / 1024
    looks = time_looks(node, options.looks)
    walls, cpus = ([one[i] for one in looks] for i in (0, 1))
    percent = {name: one.cpu_s / options.seconds * 100 for name, one in (("agent", agent), ("metrics", metrics))}
    children = agent.children_s / options.seconds * 100
    which = f", {waiting} of which wait for their turn" if node.is_oversold else ""
    print(f"\n{node.gpus} GPUs, {tenants} tenants{which}, {options.seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    print(f"{'':10}{'% of a core':>12}{'RSS MiB':>10}{'PSS MiB':>10}")
    for name, one in (("agent", agent), ("metrics", metrics)):
        print(f"{name:10}{percent[name]:12.2f}{one.rss_mib:10.1f}{one.pss_mib:10.1f}")
    cpu = sum(percent.values()) + children
    rss, pss = agent.rss_mib + metrics.rss_mib, agent.pss_mib + metrics.pss_mib
    print(f"{'children':10}{children:12.2f}\n{'together':10}{cpu:12.2f}{rss:10.1f}{pss:10.1f}")
    print(
        f"one look, of {len(looks)}: median {statistics.median(walls):.1f} ms, 99 % within "
        f"{statistics.quantiles(walls, n=100, method='inclusive')[98]:.1f} ms; "
        f"CPU median {statistics.median(cpus):.1f} ms"
    )
    print(f"state file {size:.1f} KiB; looks of the agent {float(held[1]):.0f}")
    is_kept = cpu <= CPU_PERCENT and rss <= MEMORY_MIB
    print(f"budget: {CPU_PERCENT:.0f} % of a core, {MEMORY_MIB:.0f} MiB (RSS): {'kept' if is_kept else 'MISSED'}")
    if options.profile:
        file = f"{node.folder}/profile"
        time_looks(node, options.looks, file)
        pstats.Stats(file).sort_stats("tottime").print_stats(30)
    return is_kept


def main() -> int:
    """Prints what it costs with tenants and without; returns 1 when one of them passes the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--tenants", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--looks", type=int, default=30)
    parser.add_argument("--profile", action="store_true", help="where a look's time goes, by cProfile")
    parser.add_argument("--oversold", action="store_true", help="the memory of the GPUs is sold three times")
    options = parser.parse_args()
    kept = []
    for tenants in dict.fromkeys((options.tenants, 0)):
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="hami-bench-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(unmount_below, folder)
            node = Node(folder, options.gpus, options.oversold)
            node.make()
            with node.tenants(tenants):
                kept.append(report(node, options, tenants))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
