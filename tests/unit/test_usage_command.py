# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc usage`: what a running job uses now, on a node that has nothing of hami-hpc[accounting]."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from agent_states import make_job, make_state
from click.testing import CliRunner, Result
from harness.mounting import unmount_below
from node_testbed import ROOT, UID, UUIDS, Node

from hami_hpc.cli import ACCOUNTING_COMMANDS, main, usage_command
from hami_hpc.contract import constants as c
from hami_hpc.core.duration import duration
from hami_hpc.core.grant import Grant
from hami_hpc.core.history import Minute, pack_minute, place_of
from hami_hpc.core.records import Usage
from hami_hpc.node import agent_file

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
    assert "package hami-hpc-accounting, or pip install 'WHEEL[accounting]'" in " ".join(of_accounting.split())
    for name in ACCOUNTING_COMMANDS:
        assert name in of_accounting
        refused = on_a_node(node, name, "--month", "2026-09")
        assert refused.returncode == 2
        assert f"{name} needs " in refused.stderr
        assert "pip install 'WHEEL[accounting]'" in refused.stderr


def test_a_command_of_a_node_says_which_of_its_requirements_is_missing(tmp_path: Path) -> None:
    program = "import sys; sys.modules['jinja2'] = None; from hami_hpc.cli import main; main()"
    command = [sys.executable, "-c", program, "render"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: render needs jinja2, which is missing: the package hami-hpc-common, or pip ")


def test_of_a_job_of_another_version_it_says_so(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    path = node.jobs / "7" / "job.limits"
    data = bytearray(path.read_bytes())
    data[c.LIMITS_FIELDS["abi_version"][0]] += 1
    path.write_bytes(data)
    done = on_a_node(node, "usage", "7")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "Error: job 7: its records are of another version of hami_hpc. What runs has its limits;"
    )


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
    monkeypatch.setattr(usage_command, "read_running", lambda run_dir, job, now_ns: [(grant, used)])
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


def test_a_clock_that_was_set_back_is_no_damage_and_no_negative_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node.make(tmp_path)
    node.prolog(7)
    node.write_usage(7, gpu_busy_ns=1800 * 10**9)
    genuine, now_ns, boot_ns = time.clock_gettime_ns, time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    boots = {time.CLOCK_BOOTTIME: boot_ns + 3600 * 10**9}
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: boots.get(clock) or genuine(clock))
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 5 * 3600 * 10**9)
    result: Result = CliRunner().invoke(main, ["usage", "7"], env={"HAMI_HPC_CONFIG": str(node.config)})
    assert re.match(r"Job 7, running for 0[01]:(00:0|59:5)\d on ", result.stdout)
    assert "busy for 00:30:00: 50.0 % of the GPU" in result.stdout
    assert "damaged" not in result.stdout


def test_durations_are_written_as_slurm_writes_them() -> None:
    assert [duration(s) for s in (0, 59.6, 3661, 90061)] == ["00:00:00", "00:01:00", "01:01:01", "1-01:01:01"]


def put_minutes(node: Node, job: int, *minutes: Minute) -> None:
    with (node.jobs / str(job) / c.FILE_HISTORY).open("r+b") as file:
        for one in minutes:
            file.seek(place_of(one.minute))
            file.write(pack_minute(one))


HOUR = tuple(Minute(number, 100 * (number % 60), number % 60) for number in range(60))


def test_the_history_of_a_running_job_is_drawn(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    done = on_a_node(node, "usage", "7", "--history")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the agent (hami-hpc agent) has seen no minute of it" in done.stdout
    put_minutes(node, 7, *HOUR)
    lines = on_a_node(node, "usage", "7", "--history").stdout.splitlines()
    assert lines[0].startswith("Job 7, running for 00:00:0")
    assert lines[2] == "  memory, of 8,192 MiB: 5,900 MiB at most"
    assert lines[3].startswith("  |·▁▁")
    assert "▆" in lines[3]
    assert lines[4] == "  time of its GPU: 29.5 % on average"
    assert lines[6].split() == ["0:00", "1:00"]


def test_without_utf_8_and_in_a_narrow_terminal_it_is_drawn_too(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    put_minutes(node, 7, *HOUR)
    environment = {"HAMI_HPC_CONFIG": str(node.config), "PYTHONPATH": str(ROOT), "LC_ALL": "C", "COLUMNS": "30"}
    environment |= {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", ON_A_NODE, "usage", "7", "--history"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[3] == "  |......::::::------++|"[: len(lines[3])] or set(lines[3].strip()) <= set("|_.:-=+*#@")
    assert len(lines[3]) <= 30


def test_the_samples_of_a_history_as_json(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    put_minutes(node, 7, *HOUR)
    for option in (("--format", "json"), ("--json",)):
        told = json.loads(on_a_node(node, "usage", "7", "--history", *option).stdout)
        assert told["minutes"][59] == {"minute": 59, "mem_mib": 5900, "percent": 59}
        assert (told["job_id"], told["gpu_count"], told["mem_mib"], told["end_unix_ns"]) == (7, 1, 8192, 0)
    assert node.epilog(7) == 0
    ended = json.loads(on_a_node(node, "usage", "7", "--history", "--json").stdout)
    assert ended["minutes"] == told["minutes"]
    assert ended["end_unix_ns"] > ended["start_unix_ns"] == told["start_unix_ns"]


def saw(node: Node, off_gpu_ns: int) -> None:
    """Writes what the agent saw of job 7."""
    grant = node.grants()[7]
    job = make_job(7, 0, gpu_uuid=grant.gpu_uuid, created_unix_ns=grant.created_unix_ns, off_gpu_ns=off_gpu_ns)
    agent_file.make_folder(node.settings.run_dir)
    agent_file.write(node.settings.run_dir, make_state(jobs=0)._replace(jobs=(job, make_job(8, 0, off_gpu_ns=1))))


def test_time_off_the_gpu_is_told_of_a_running_job_and_of_one_that_has_ended(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    node.config.write_text(node.config.read_text() + "[agent]\n")
    assert node.prolog(7) == 0
    ways = (("usage", "7"), ("usage", "7", "--history"))
    assert not any("off the GPU" in on_a_node(node, *way).stdout for way in ways)
    assert json.loads(on_a_node(node, "usage", "7", "--json").stdout)["moved"]["off_gpu_ns"] is None, "not known"
    saw(node, 0)
    assert not any("off the GPU" in on_a_node(node, *way).stdout for way in ways)
    assert json.loads(on_a_node(node, "usage", "7", "--json").stdout)["moved"]["off_gpu_ns"] == 0
    saw(node, 75_000_000_000)
    assert "\n           off the GPU for 00:01:15 so far\n" in on_a_node(node, "usage", "7").stdout
    assert "\n  off the GPU for 00:01:15\n" in on_a_node(node, "usage", "7", "--history").stdout
    assert json.loads(on_a_node(node, "usage", "7", "--json").stdout)["moved"]["off_gpu_ns"] == 75_000_000_000
    put_minutes(node, 7, *HOUR)
    assert node.epilog(7) == 0
    assert "\n  off the GPU for 00:01:15\n" in on_a_node(node, "usage", "7", "--history").stdout
    assert json.loads(on_a_node(node, "usage", "7", "--history", "--json").stdout)["off_gpu_ns"] == 75_000_000_000


def test_of_the_runs_of_a_job_the_last_one_is_drawn(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    for mib in (111, 222):
        assert node.prolog(7, mem_mib=1024 + mib) == 0
        put_minutes(node, 7, Minute(0, mib, 5))
        assert node.epilog(7) == 0
    assert len(node.spooled()) == 2
    done = on_a_node(node, "usage", "7", "--history")
    assert done.stdout.startswith("Job 7, ran for 00:00:0")
    assert "memory, of 1,246 MiB: 222 MiB at most" in done.stdout
    assert node.prolog(7) == 0
    put_minutes(node, 7, Minute(0, 333, 5))
    assert "333 MiB at most" in on_a_node(node, "usage", "7", "--history").stdout


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job_id": 8}', '{"job_id": 7, "history": 5}', "\0" * 99])
def test_a_record_that_is_none_has_no_history(tmp_path: Path, content: str) -> None:
    node = Node.make(tmp_path)
    folder = Path(node.settings.state_dir) / "usage"
    folder.mkdir(parents=True)
    (folder / "7.json").write_text(content)
    (folder / "77.json").write_text("{}")
    done = on_a_node(node, "usage", "7", "--history")
    assert done.returncode == 1
    assert "job 7 does not run on this node, and no usage record of it waits here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_job_that_was_refused_has_no_history(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7, gpu="0,1") == 0
    done = on_a_node(node, "usage", "7", "--history")
    assert (done.returncode, "no history of job 7 is kept: it was refused" in done.stderr) == (1, True)


def test_nobody_reads_the_history_of_anothers_job() -> None:
    """Neither of a running one nor of one that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = Node.make(Path(folder))
        node.config.chmod(0o644)
        node.prolog(7)
        put_minutes(node, 7, *HOUR)

        def asked_by(uid: int) -> subprocess.CompletedProcess[str]:
            script = (
                "import os, sys; sys.path.insert(0, sys.argv[1]); "
                "import hami_hpc.cli.usage_command, hami_hpc.node.config, encodings.idna\n"
                f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
                "from hami_hpc.cli import main; main(['usage', '7', '--history'])"
            )
            environment = {"HAMI_HPC_CONFIG": str(node.config), "LC_ALL": "C.UTF-8"}
            command = [sys.executable, "-c", script, str(ROOT)]
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

        own = asked_by(UID)
        assert own.returncode == 0, own.stderr
        assert "5,900 MiB at most" in own.stdout
        other = asked_by(1234)
        assert other.returncode == 1
        assert "only the user of job 7, root and the group of [agent] can read its history" in other.stderr
        assert "MiB" not in other.stdout
        node.epilog(7)
        unmount_below(Path(folder))
        own = asked_by(UID)
        assert own.returncode == 0, own.stderr
        assert "5,900 MiB at most" in own.stdout
        other = asked_by(1234)
        assert other.returncode == 1
        assert "7.json: only root can read it, and the job's user where" in other.stderr
        assert "MiB" not in other.stdout
