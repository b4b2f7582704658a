# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc baseline` on simulated GPUs: its statuses, and that it measures nothing that somebody uses."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from node_testbed import ROOT, Node, job_environment
from sim_testbed import SIM, TENANT

from hami_hpc.cli import baseline_command, main
from hami_hpc.core.baseline import Record, format_records
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.node import gpu_jobs, job_dirs
from hami_hpc.node.measure import UsedError, check_unused

DRIVER = "580.159.04"
GOOD = {"launch_us": 10_000.0, "alone_per_s": 300.0, "free_mib": 140_000.0}  # what a busy machine reaches, too


@dataclass(frozen=True)
class Bench:
    """A node whose two GPUs are those of a simulated machine."""

    node: Node
    uuids: list[str]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(SIM),
            "HAMI_SIM": str(self.node.root / "sim"),
            "LD_PRELOAD": str(SIM / "libhami-sim-kernel.so"),
            "HAMI_HPC_CONFIG": str(self.node.config),
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C.UTF-8",
        }

    def write(self, driver: str = DRIVER, **figures: float) -> None:
        records = {uuid: Record(driver, 1000, GOOD | figures) for uuid in self.uuids}
        state = Path(self.node.settings.state_dir)
        state.mkdir(exist_ok=True)
        (state / "baseline.json").write_text(format_records(records))

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hami_hpc.cli", "baseline", *words, "--format", "json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment, cwd="/", text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, *words: str) -> tuple[int, Any, str]:
        return finish(self.start(*words))


def finish(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    out, errors = process.communicate(timeout=60)
    return process.returncode, json.loads(out or "null"), errors


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    node = Node.make(tmp_path / "node", with_gpus=False)
    directory = node.root / "sim"
    subprocess.run([SIM / "sim-machine", directory, "h200", "h200"], check=True, capture_output=True)
    text = (directory / "machine.conf").read_text()
    uuids = [line.removeprefix("uuid=") for line in text.splitlines() if line.startswith("uuid=")]
    interposer = f'interposer = "{ROOT}/build/native/libhami-hpc.so"'
    node.config.write_text(node.config.read_text().replace("[gpu_models", f"{interposer}\n[gpu_models", 1))
    job_dirs.prepare(node.settings.run_dir)
    return Bench(node, uuids)


def test_a_check_without_a_record_or_with_one_of_another_driver_says_so(bench: Bench) -> None:
    status, answers, _ = bench.run("check")
    assert status == 3
    assert [answer["no_record"] for answer in answers] == [f"no figures are recorded for it with driver {DRIVER}"] * 2
    bench.write(driver="535.1")
    status, answers, _ = bench.run("check")
    assert status == 3
    assert answers[0]["no_record"].endswith("(it was recorded with driver 535.1)")
    (Path(bench.node.settings.state_dir) / "baseline.json").write_text("{")
    status, answers, _ = bench.run("check")
    assert status == 3
    assert "baseline.json is damaged" in answers[0]["no_record"]


def test_a_quick_check_is_done_in_3_s_and_fails_where_a_figure_is_worse(bench: Bench) -> None:
    bench.write()
    begun = time.monotonic()
    status, answers, errors = bench.run("check", "--quick")
    assert time.monotonic() - begun < 5  # 1.4 s where nothing else runs
    assert (status, errors) == (0, "")
    assert [sorted(answer["figures"]) for answer in answers] == [["alone_per_s", "free_mib", "launch_us"]] * 2
    assert answers[0]["recorded"] == {"driver": DRIVER, "recorded_unix_s": 1000, "figures": GOOD}
    bench.write(alone_per_s=5000.0)
    status, answers, errors = bench.run("check", "--quick")
    assert status == 1
    assert errors.startswith(f"Error: GPU 0 ({bench.uuids[0]}): one tenant's rate: ")
    assert "recorded 5,000 kernels/s (less than 80 % of it)" in errors
    assert not (Path(bench.node.settings.run_dir) / "baseline").exists()


def test_a_gpu_of_a_job_or_of_a_process_is_left_alone(bench: Bench) -> None:
    bench.write()
    assert bench.node.run("prolog", job_environment(7, gpu="0") | bench.environment)[0] == 0
    tenant = subprocess.Popen(
        [sys.executable, "-c", TENANT], env=bench.environment | {"CUDA_VISIBLE_DEVICES": bench.uuids[1]},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert tenant.stdout is not None
        assert tenant.stdout.readline() == "ready\n"
        status, answers, errors = bench.run("check", "--quick")
        assert (status, errors) == (0, "")
        assert [answer["skipped"] for answer in answers] == ["job 7 holds a part of it", "1 other process(es) use it"]
        status, answers, _ = bench.run("record")
        assert (status, [answer["figures"] for answer in answers]) == (3, [{}, {}])
    finally:
        tenant.communicate()


def test_a_gpu_that_a_job_holds_whole_is_left_alone_before_its_first_process(bench: Bench) -> None:
    bench.write()
    gpu_jobs.place(bench.node.settings.run_dir, GpuJob(7, 1000, (1,), time.time_ns()))
    status, answers, errors = bench.run("check", "--quick")
    assert (status, errors) == (0, "")
    assert [answer["skipped"] for answer in answers] == [None, "job 7 holds it"]


@pytest.mark.parametrize("name", ["job", "whole", "gpus"])
def test_a_job_that_comes_ends_the_measurement_at_once_and_is_no_failure(bench: Bench, name: str) -> None:
    bench.write(alone_per_s=1.0)
    process = bench.start("check")
    folder = Path(bench.node.settings.run_dir) / "baseline"
    while not list(folder.glob("*/2")):  # two tenants at work
        assert process.poll() is None
        time.sleep(0.01)
    if name == "whole":
        gpu_jobs.place_whole(bench.node.settings.run_dir, 7, "it holds the node")
    elif name == "gpus":
        gpu_jobs.place(bench.node.settings.run_dir, GpuJob(7, 1000, (0,), time.time_ns()))
    else:
        assert bench.node.run("prolog", job_environment(7, gpu="0") | bench.environment)[0] == 0
    came = time.monotonic()
    while list(folder.glob(f"{bench.uuids[0]}/2/shared/usage")) and uses(bench.environment["HAMI_SIM"]):
        assert time.monotonic() - came < 2
        time.sleep(0.01)
    status, answers, errors = finish(process)
    assert (status, errors) == (0, "")
    assert answers[0]["skipped"].startswith("job 7 holds")


def uses(machine: str) -> bool:
    done = subprocess.run([SIM / "sim-state"], env={"HAMI_SIM": machine}, capture_output=True, text=True, check=True)
    return bool(json.loads(done.stdout)["gpus"][0]["processes"])


def test_a_gpu_that_does_not_answer_is_a_failure_within_the_time(bench: Bench) -> None:
    bench.write()
    (bench.node.root / "sim" / "faults").write_text("cuInit=999\n")
    status, _, errors = bench.run("check", "--quick")
    assert status == 1
    assert "cuInit failed (CUDA error 999)" in errors
    (bench.node.root / "sim" / "faults").write_text("cuCtxSynchronize=0:delay_us=60000000\n")
    begun = time.monotonic()
    status, _, errors = bench.run("check", "--quick")
    assert (status, time.monotonic() - begun < 12) == (1, True)
    assert "did not answer in time" in errors


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("/nowhere.so", "there is no interposer /nowhere.so"),
        (str(SIM / "libnvidia-ml.so.1"), "did not limit the program"),
    ],
)
def test_tenants_without_the_interposer_are_no_figures(bench: Bench, library: str, message: str) -> None:
    text = bench.node.config.read_text().replace(f"{ROOT}/build/native/libhami-hpc.so", library)
    bench.node.config.write_text(text)
    bench.write()
    status, _, errors = bench.run("check", "--quick")
    assert (status, message in errors) == (1, True)


class FakeDriver:
    """NVML that shows these processes."""

    def __init__(self, *pids: int) -> None:
        self.pids = frozenset(pids)

    def processes(self, uuid: str) -> frozenset[int]:
        return self.pids


@pytest.mark.parametrize(
    ("shown", "own", "is_used"),
    [
        ((), (), False),
        ((5,), (), True),
        ((5,), (5, 6), False),
        ((5, 7), (5, 6), True),
        ((70, 80), (5, 6), False),  # in a process namespace NVML shows other ids
        ((70, 80, 90), (5, 6), True),
    ],
)
def test_a_process_that_is_not_ones_own_is_told_by_id_or_by_number(
    bench: Bench, shown: tuple[int, ...], own: tuple[int, ...], is_used: bool
) -> None:
    driver: Any = FakeDriver(*shown)
    if not is_used:
        check_unused(driver, bench.node.settings.run_dir, bench.uuids[0], frozenset(own))
        return
    with pytest.raises(UsedError, match=r"other process\(es\) use it"):
        check_unused(driver, bench.node.settings.run_dir, bench.uuids[0], frozenset(own))


def test_a_driver_that_never_answers_ends_the_command() -> None:
    code = (
        "import time; from hami_hpc.cli import baseline_command as b; b.WAIT_FOR_DRIVER_S = b.CHECK_QUICK_S = 0.1;"
        "b._watch(True); time.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (1, "Error: the driver did not answer within 0 s: see dmesg (Xid)\n")


def test_two_at_once_do_not_measure_each_other(bench: Bench) -> None:
    bench.write()
    with (Path(bench.node.settings.run_dir) / "baseline.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert bench.run("check")[::2] == (0, f"{baseline_command.QUIET_LOCK}\n")
        assert bench.run("record")[::2] == (1, f"Error: {baseline_command.QUIET_LOCK}\n")


def test_what_a_killed_one_left_is_removed(bench: Bench) -> None:
    bench.write()
    folder = Path(bench.node.settings.run_dir) / "baseline"
    process = bench.start("check")
    while not list(folder.glob("*/1/shared/usage")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    while uses(bench.environment["HAMI_SIM"]):  # its tenants end with it
        time.sleep(0.01)
    assert folder.exists()
    assert bench.run("check", "--quick")[0] == 0
    assert not folder.exists()


def test_wrong_words_and_ordinary_users_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.run("record", "--quick")[0] == 2
    assert bench.run("measure")[0] == 2
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(main, ["baseline", "check", "--config", str(bench.node.config)])
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: only root can check a baseline: run this as root on the node\n",
    )
