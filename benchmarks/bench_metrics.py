# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc metrics` costs on a node with 8 GPUs and 80 jobs: CPU time of one exposition, memory of the server.

    .venv/bin/python benchmarks/bench_metrics.py [--gpus 8] [--jobs 80] [--scrapes 20]

As root, since a state file that root does not own is not read. The server runs as a process of its own, and is asked
every 1.1 s (it makes the text once a second at most); its CPU time and memory are read from /proc.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit")]

from metrics_testbed import AgentNode, make_state  # noqa: E402  after the path to the checkout

SCRAPE_SECONDS = 15  # of the aim: agent and metrics together at most 1 % of a core and 60 MiB


def cpu_ms(pid: int) -> float:
    """Returns user and system time of a process, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Returns the largest resident memory, and the present resident and proportional one."""
    status = Path(f"/proc/{pid}/status").read_text() + Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = dict(re.findall(r"^(VmHWM|VmRSS|Pss):\s+(\d+) kB", status, re.MULTILINE))
    return {name: int(kib) / 1024 for name, kib in found.items()}


def scrape(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read())


def measure_server(node: AgentNode, gpus: int, jobs: int, scrapes: int) -> None:
    command = [sys.executable, "-m", "hami_hpc.cli", "metrics", "--config", str(node.config), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        url = f"http://{process.stderr.readline().split()[-1]}/metrics"
        text = scrape(url)
        time.sleep(1.1)
        before = cpu_ms(process.pid)
        for _ in range(scrapes):
            node.write(make_state(gpus, jobs // gpus))
            assert b"hami_hpc_agent_up 1" in scrape(url)
            time.sleep(1.1)
        each = (cpu_ms(process.pid) - before) / scrapes
        memory = memory_mib(process.pid)
        process.send_signal(signal.SIGTERM)
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    print(f"text                     {len(text) / 1024:7.0f} KiB, {samples} samples")
    print(
        f"CPU per scrape           {each:7.1f} ms = {each / SCRAPE_SECONDS / 10:.2f} % of a core at {SCRAPE_SECONDS} s"
    )
    print(
        f"server, resident         {memory['VmRSS']:7.1f} MiB ({memory['VmHWM']:.1f} at most, {memory['Pss']:.1f} PSS)"
    )


def measure_command(node: AgentNode, path: Path) -> None:
    command = [sys.executable, "-m", "hami_hpc.cli", "metrics", "--config", str(node.config), "--textfile", str(path)]
    before, start = os.times(), time.monotonic()
    for _ in range(5):
        subprocess.run(command, cwd=ROOT, check=True)
    after, wall = os.times(), (time.monotonic() - start) / 5
    spent = (after.children_user + after.children_system - before.children_user - before.children_system) / 5
    print(f"one run with --textfile  {spent * 1000:7.0f} ms of CPU, {wall * 1000:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=80)
    parser.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = AgentNode(Path(folder))
        node.write(make_state(options.gpus, options.jobs // options.gpus))
        print(f"state file               {node.state_file.stat().st_size / 1024:7.0f} KiB")
        measure_command(node, Path(folder) / "hami.prom")
        measure_server(node, options.gpus, options.jobs, options.scrapes)


if __name__ == "__main__":
    main()
