# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc usage`: what a running job uses now, on a node that has nothing of hami-hpc[accounting]."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import ROOT, UUIDS, Node

from hami_hpc.cli import ACCOUNTING_COMMANDS, main, usage_command
from hami_hpc.contract import constants as c
from hami_hpc.core.duration import duration
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import Usage

MIB = 1 << 20
# What hami-hpc[accounting] and [pdf] install; and none of accounting's own modules has to be there either.
ON_A_NODE = """
import sys
for name in ("duckdb", "pandas", "pyarrow", "numpy", "weasyprint", "hami_hpc.accounting"):
    sys.modules[name] = None  # an import of it fails as one of a module that is not installed
from hami_hpc.cli import main
main()
"""


def on_a_node(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """hami-hpc in a process that can import nothing of accounting."""
    environment = {"HAMI_HPC_CONFIG": str(node.config), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-c", ON_A_NODE, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_node_without_accounting_tells_what_a_running_job_uses(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    node.write_usage(7, peak_bytes=2048 * MIB, oom_count=3)
    done = on_a_node(node, "usage", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Job 7, running for 00:00:0")
    assert "0 of 8,192 MiB now, 2,048 MiB at most" in done.stdout
    assert "3 requests refused" in done.stdout
    told = json.loads(on_a_node(node, "usage", "7", "--format", "json").stdout)
    assert (told["job_id"], told["grant"]["gpu_uuid"], told["usage"]["peak_bytes"]) == (7, UUIDS[0], 2048 * MIB)


def test_requests_that_were_measured_are_told(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    assert "requests 1" not in on_a_node(node, "usage", "7").stdout
    path = node.jobs / "7" / c.FILE_USAGE
    data = bytearray(path.read_bytes())
    for name, place, number in (("latency_buckets", 14, 1234), ("slo_miss_count", 0, 5)):
        at = c.USAGE_FIELDS[name][0] + 8 * place
        data[at : at + 8] = number.to_bytes(8, "little")
    path.write_bytes(data)
    done = on_a_node(node, "usage", "7")
    assert "  requests 1,234; 99 of 100 took at most 8.19 ms; 5 took longer than they should" in done.stdout


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_a_limits_record_that_is_no_file_is_none_at_once(tmp_path: Path, kind: str) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    path = node.jobs / "7" / "job.limits"
    path.rename(path.with_name("moved"))
    {"pipe": os.mkfifo, "link": lambda at: at.symlink_to("moved"), "directory": Path.mkdir}[kind](path)
    done = on_a_node(node, "usage", "7")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: job 7 holds no vGPU on this node")


def test_a_node_without_accounting_lists_its_own_commands_and_how_to_get_the_others(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    done = on_a_node(node, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    of_node, _, of_accounting = done.stdout.partition("Commands of accounting:")
    assert re.search(r"\n  usage +What a running vGPU job uses now\.\n", of_node)
    assert "pip install 'hami-hpc[accounting]'" in of_accounting
    for name in ACCOUNTING_COMMANDS:
        assert name in of_accounting
        refused = on_a_node(node, name, "--month", "2026-09")
        assert refused.returncode == 2
        assert f"{name} needs " in refused.stderr
        assert "pip install 'hami-hpc[accounting]'" in refused.stderr


def test_a_job_that_is_not_here_is_answered_with_the_command_that_asks_on_its_node(tmp_path: Path) -> None:
    done = on_a_node(Node.make(tmp_path), "usage", "5")
    assert done.returncode == 1
    assert "job 5 holds no vGPU on this node; to ask the job's node, run: srun --jobid=5" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert on_a_node(Node.make(tmp_path), "usage", "x").returncode == 2


@pytest.mark.parametrize(("state", "damaged"), [("ok", False), ("damaged", True)])
def test_a_running_job_is_told_what_it_uses_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, damaged: bool
) -> None:
    """Half an H200 and 8 GiB for 100 s: busy for 25 s is 25 % of the GPU."""
    node = Node.make(tmp_path)
    grant = Grant(5, 1001, "GPU-1", 0, 143156, "h200", 8192, 50, "std", "cap", "share", 1_000_000_000_000)
    used = Usage(state, 1024 * MIB, 2048 * MIB, 3, 25_000_000_000, 7_000_000_000)
    monkeypatch.setattr(usage_command, "read_running", lambda run_dir, job, now_ns: (grant, used))
    monkeypatch.setattr(time, "time_ns", lambda: 1_100_000_000_000)
    result: Result = CliRunner().invoke(main, ["usage", "5"], env={"HAMI_HPC_CONFIG": str(node.config)})
    lines = result.stdout.splitlines()
    assert lines[0] == "Job 5, running for 00:01:40 on GPU-1"
    assert lines[2:5] == [
        "  memory   1,024 of 8,192 MiB now, 2,048 MiB at most",
        "  GPU      busy for 00:00:25: 25.0 % of the GPU, of 50 % held",
        "  limits   held back for 00:00:07; 3 requests refused",
    ]
    assert ("damaged" in lines[-1]) == damaged


def test_durations_are_written_as_slurm_writes_them() -> None:
    assert [duration(s) for s in (0, 59.6, 3661, 90061)] == ["00:00:00", "00:01:00", "01:01:01", "1-01:01:01"]
