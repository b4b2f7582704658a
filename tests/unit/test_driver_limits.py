# SPDX-License-Identifier: Apache-2.0
"""The driver's memory limits by cgroup, on the simulated driver: what they hold, who sets them, what doctor says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sim_testbed
from node_testbed import ROOT
from sim_testbed import Machine

from hami_hpc.agent.driver_limits import AGAIN_LOOKS, DriverLimits
from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import Slice
from hami_hpc.node import memory_limits

# Takes memory in pieces of 1 GiB until that is refused; prints how many it got.
TAKER = """
import ctypes, os, sys
open(f"{os.environ['HAMI_SIM']}/cgroups/{os.getpid()}", "w").write(sys.argv[1])
cuda, address, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), 0
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
while count < 64 and cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0:
    count += 1
print(count, flush=True)
sys.stdin.read()
"""
SETUP = """
import sys; sys.path.insert(0, sys.argv[1])
from hami_hpc.agent.driver_limits import DriverLimits
from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import Slice
lines = []
def grant(job_id, mem_mib=8192, mode="share", created=1):
    return Slice(Grant(job_id, 1, n.nvmlDeviceGetUUID(d), 0, 143156, "h200", mem_mib, 50, "std", "cap", mode, created),
        0, 0, 0)
agent = DriverLimits("node1", 64 << 20, lambda _uuid: (n, d), lines.append, sys.argv[2])
def hard(job_id):
    from hami_hpc.node import memory_limits as m
    return m.read(n, d, m.cgroup_of_job("node1", job_id, sys.argv[2], {})).hard >> 20
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine whose driver has the limits."""
    machine = sim_testbed.make(tmp_path / "machine")
    for name in ("memory-limits", "cgroups"):
        (machine.directory / name).mkdir()
    return machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What stands for /sys/fs/cgroup, with jobs 7 and 8."""
    root = tmp_path / "cgroup"
    for job in (7, 8):
        (scope(root) / f"job_{job}/step_0/user/task_0").mkdir(parents=True)
    return root


def scope(root: Path) -> Path:
    return root / "system.slice/slurmstepd.scope"


def run(machine: Machine, root: Path, program: str) -> Any:
    """Returns what `program`, an expression after SETUP, is in a process with the simulated NVML."""
    lines = ["import json, pynvml as n", "n.nvmlInit()", "d = n.nvmlDeviceGetHandleByIndex(0)", SETUP]
    code = "\n".join([*lines, f"print(json.dumps({program}))"])
    command = [sys.executable, "-c", code, str(ROOT), str(root)]
    done = subprocess.run(command, env=machine.env, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def takers(machine: Machine) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def take(cgroup: Path) -> int:
        """Returns how many GiB a process in this cgroup gets; it keeps them."""
        process = subprocess.Popen(
            [sys.executable, "-c", TAKER, str(cgroup)],
            env=machine.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    take.started = started  # type: ignore[attr-defined]
    yield take
    for process in started:
        sim_testbed.end(process)


def test_a_job_takes_no_more_than_its_limit_in_all_of_its_steps_and_others_are_not_concerned(
    machine: Machine, root: Path, takers: Any
) -> None:
    assert run(machine, root, "[agent.apply([grant(7), grant(8, 16384)]), hard(7), hard(8), lines]") == [
        None,
        8192 + 64,
        16384 + 64,
        [],
    ]
    task = scope(root) / "job_7/step_0/user/task_0"
    assert takers(task) == 7, "and its context: without any interposer"
    (scope(root) / "job_7/step_1").mkdir()
    assert takers(scope(root) / "job_7/step_1") == 0, "steps of a job share its limit"
    assert takers(scope(root) / "job_8/step_0") == 15
    assert takers(root / "user.slice") == 64
    sim_testbed.end(takers.started[0])
    assert takers(task) == 7, "what a dead process held is free"


def test_the_functions_answer_as_nvml_does(machine: Machine, root: Path) -> None:
    path = str(scope(root) / "job_7")
    read = f"list(__import__('hami_hpc.node.memory_limits').node.memory_limits.read(n, d, {path!r}))"
    assert run(machine, root, read) == [0, memory_limits.UNLIMITED, 0]
    error = "type(e).__name__"
    program = (
        "[tried(p, 1 << 30) for p in (sys.argv[2] + '/none', '/etc/passwd', sys.argv[2])] "
        "+ [tried(sys.argv[2], n.NVML_DEVICE_MEMORY_LIMIT_MAX)]"
    )
    tried = (
        "\ndef tried(path, hard):\n    from hami_hpc.node import memory_limits as m\n    try:\n"
        f"        m.set_hard(n, d, path, hard)\n    except n.NVMLError as e:\n        return {error}\n"
    )
    assert run_with(machine, root, tried, program) == ["NVMLError_NotFound", "NVMLError_InvalidArgument", None, None]
    assert run(machine, root, read) == [0, memory_limits.UNLIMITED, 0], "a limit that is the maximum is none"


def run_with(machine: Machine, root: Path, setup: str, program: str) -> Any:
    exec_setup = f"[exec({setup!r}, globals()), {program}][1]"
    return run(machine, root, exec_setup)


def test_a_driver_without_the_functions_changes_nothing_and_needs_no_word(machine: Machine, root: Path) -> None:
    (machine.directory / "memory-limits").rmdir()
    program = "[agent.apply([grant(7)]), agent.is_absent, lines]"
    assert run(machine, root, program) == [None, True, []]
    for name in (memory_limits.SET, memory_limits.GET):
        program = f"[delattr(n, {name!r}), agent.apply([grant(7)]), agent.is_absent, lines][2:]"
        assert run(machine, root, program) == [True, []], "an older nvidia-ml-py"


def test_a_requeued_jobs_new_cgroup_and_a_new_grant_are_limited_again(machine: Machine, root: Path) -> None:
    job = scope(root) / "job_7"
    remade = f"__import__('shutil').rmtree({str(job)!r}), __import__('os').mkdir({str(job)!r})"
    program = f"[agent.apply([grant(7)]), ({remade}), agent.apply([grant(7, 4096, created=2)]), hard(7)][3]"
    assert run(machine, root, program) == 4096 + 64


def test_mig_instances_have_no_limit(machine: Machine, root: Path) -> None:
    program = "[agent.apply([grant(7, mode='mig')]), hard(7) > 1 << 40, lines][1:]"
    assert run(machine, root, program) == [True, []]


def test_a_limit_that_the_driver_refuses_is_reported_once_and_tried_again(machine: Machine, root: Path) -> None:
    refused = machine.env | {"HAMI_SIM_FAULTS": "nvmlDeviceSetMemoryLimits_v1=6"}
    machine = Machine(machine.directory, refused)
    looks = f"[agent.apply([grant(7), grant(8)]) for _ in range({2 * AGAIN_LOOKS})]"
    (line,) = run(machine, root, f"[{looks}, lines][1]")
    assert "set no memory limit for" in line
    assert line.endswith("Jobs are limited without it")


def slice_of(job_id: int) -> Slice:
    grant = Grant(job_id, 1, "GPU-1", 0, 143156, "h200", 8192, 50, "std", "cap", "share", 1)
    return Slice(grant, 0, 0, 0)


def test_nothing_is_asked_of_nvml_again_once_the_limit_stands_or_where_no_gpu_answers(root: Path) -> None:
    asked, lines = list[str](), list[str]()
    agent = DriverLimits("node1", 0, lambda uuid: asked.append(uuid), lines.append, str(root))
    agent.apply([slice_of(7), slice_of(9)])
    assert asked == ["GPU-1"], "job 9 has no cgroup yet"
    for _ in range(AGAIN_LOOKS - 1):
        agent.apply([slice_of(7)])
    assert asked == ["GPU-1"]
    agent.apply([slice_of(7)])
    assert asked == ["GPU-1"] * 2
    assert lines == [], "the agent says elsewhere that no GPU answers"


class Nvml:
    """Keeps limits by cgroup as the driver does, but those of `refused`, for which it raises the error of this text and
    number; with `is_forgetful` it keeps none."""

    NVML_ERROR_FUNCTION_NOT_FOUND = 13

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self) -> None:
        self.hard: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.is_forgetful = False
        setattr(self, memory_limits.SET, self.set)
        setattr(self, memory_limits.GET, self.get)

    c_nvmlSetMemoryLimits_v1_t = c_nvmlGetMemoryLimits_v1_t = SimpleNamespace  # noqa: N815  NVML's names

    def set(self, handle: object, limits: SimpleNamespace) -> None:
        assert handle == "the GPU"
        name = Path(limits.nameSpace.decode()).name
        if name in self.refused:
            raise self.NVMLError(self.refused[name])
        assert limits.softLimit == 0, "nothing is reserved"
        self.hard[name] = limits.hardLimit

    def get(self, handle: object, limits: SimpleNamespace) -> None:
        assert handle == "the GPU"
        kept = 0 if self.is_forgetful else self.hard[Path(limits.nameSpace.decode()).name]
        limits.softLimit, limits.hardLimit, limits.currentUsed = 0, kept, 0

    def agent(self, root: Path, lines: list[str], sluids: Mapping[str, int] | None = None) -> DriverLimits:
        gpu: Any = (self, "the GPU")
        return DriverLimits("node1", 64 << 20, lambda _uuid: gpu, lines.append, str(root), lambda: sluids or {})


def test_each_job_with_a_cgroup_has_its_limit_whichever_others_have_none(root: Path) -> None:
    nvml, lines = Nvml(), list[str]()
    for name in ("node1_slurmstepd.scope/job_10", "slurmstepd.scope/s00H5T7VE3QKG4"):
        (root / "system.slice" / name).mkdir(parents=True)
    (scope(root) / "job_6").touch()
    mig = slice_of(8)
    mig = mig._replace(grant=mig.grant._replace(mode="mig"))
    jobs = [slice_of(9), mig, slice_of(6), slice_of(7), slice_of(10), slice_of(11)]
    nvml.agent(root, lines, {"s00H5T7VE3QKG4": 11}).apply(jobs)
    limit = (8192 + 64) << 20
    assert nvml.hard == {"job_7": limit, "job_10": limit, "s00H5T7VE3QKG4": limit}
    assert lines == []


def test_what_is_wrong_with_a_limit_is_said_once_and_keeps_no_other_job_from_its_own(root: Path) -> None:
    nvml, lines = Nvml(), list[str]()
    nvml.refused = {"job_7": 6}
    agent = nvml.agent(root, lines)
    for _ in range(AGAIN_LOOKS + 1):
        agent.apply([slice_of(7), slice_of(8)])
    path = scope(root) / "job_7"
    assert lines == [f"the driver set no memory limit for {path}: error 6. Jobs are limited without it"]
    assert list(nvml.hard) == ["job_8"]
    nvml.refused, nvml.is_forgetful = {}, True
    for _ in range(AGAIN_LOOKS):
        agent.apply([slice_of(7), slice_of(8)])
    (line,) = lines[1:]
    assert f"NVML shows 0 bytes after {(8192 + 64) << 20} were set" in line
    nvml.is_forgetful = False
    for _ in range(AGAIN_LOOKS):
        agent.apply([slice_of(7), slice_of(8)])
    assert list(nvml.hard) == ["job_8", "job_7"]
    assert len(lines) == 2


def test_a_driver_that_lacks_the_function_is_asked_once(root: Path) -> None:
    nvml, lines = Nvml(), list[str]()
    nvml.refused = {"job_7": Nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    agent = nvml.agent(root, lines)
    agent.apply([slice_of(7), slice_of(8)])
    assert (agent.is_absent, nvml.hard, lines) == (True, {}, [])
    nvml.refused = {}
    agent.apply([slice_of(7), slice_of(8)])
    assert nvml.hard == {}


def test_an_older_library_without_the_functions_needs_no_word(root: Path) -> None:
    nvml, lines = Nvml(), list[str]()
    delattr(nvml, memory_limits.GET)
    agent = nvml.agent(root, lines)
    agent.apply([slice_of(7)])
    assert (agent.is_absent, nvml.hard, lines) == (True, {}, [])


def test_a_limit_that_stands_is_not_set_again_until_the_job_has_another_cgroup(root: Path) -> None:
    nvml, lines = Nvml(), list[str]()
    agent = nvml.agent(root, lines)
    for _ in range(2):
        agent.apply([slice_of(7), slice_of(8)])
        nvml.hard.clear()
    agent.apply([slice_of(7), slice_of(8)])
    assert nvml.hard == {}
    (scope(root) / "job_7").rename(scope(root) / "old")
    (scope(root) / "job_7").mkdir()
    agent.apply([slice_of(7), slice_of(8)])
    assert list(nvml.hard) == ["job_7"]


@pytest.mark.parametrize("what", ["a link", "a file", "one that others write", "of another user's slice"])
def test_only_roots_cgroups_of_slurms_count(root: Path, what: str) -> None:
    path = scope(root) / "job_9"
    if what == "a link":
        path.symlink_to(scope(root) / "job_7")
    elif what == "a file":
        path.touch()
    elif what == "one that others write":
        path.mkdir()
        path.chmod(0o777)
    else:
        (root / "user.slice/slurmstepd.scope/job_9").mkdir(parents=True)
    assert memory_limits.cgroup_of_job("node1", 9, str(root), {}) is None
    assert memory_limits.cgroup_of_job("node1", 7, str(root), {}) == str(scope(root) / "job_7")
    named = scope(root) / "s00H5T7VE3QKG4"  # by its SLUID, since 26.05
    named.mkdir()
    assert memory_limits.cgroup_of_job("node1", 11, str(root), {"s00H5T7VE3QKG4": 11}) == str(named)
    inodes = memory_limits.cgroups_of_jobs("node1", str(root), {"s00H5T7VE3QKG4": 11})
    assert inodes[11] == named.stat().st_ino
    assert 11 not in memory_limits.cgroups_of_jobs("node1", str(root), {})
    own = root / "system.slice/node1_slurmstepd.scope/job_7"
    own.mkdir(parents=True)
    assert memory_limits.cgroup_of_job("node1", 7, str(root), {}) == str(own), "of several slurmds on a host"


DOCTOR = """
import sys; sys.path.insert(0, sys.argv[1])
from hami_hpc.doctor import fence_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import memory_limits
from hami_hpc.node.config import load_settings
memory_limits.ROOT = sys.argv[2]
def said(path):
    return [[f.level, f.detail] for f in fence_checks.check_driver_limits(Facts(load_settings(path), "node1"))]
"""


def test_doctor_says_for_which_slices_they_stand(machine: Machine, root: Path, tmp_path: Path) -> None:
    config = tmp_path / "hami-hpc.toml"
    text = f'version = 1\n[paths]\nrun_dir = "{tmp_path}/run"\nstate_dir = "{tmp_path}/state"\n'
    config.write_text(text)

    def said() -> Any:
        return run_with(machine, root, DOCTOR, f"said({str(config)!r})")

    assert said() == [["WARN", "the driver has them, and nothing sets them for slices"]]
    config.write_text(text + "[agent]\n")
    assert said() == [["OK", "stand for 0 of 0 slice(s)"]]
    uuid = machine.ask("n.nvmlDeviceGetUUID(d)")
    enter = (
        "\nfrom hami_hpc.stages import common\n"
        f"ledger = common.open_ledger(load_settings({str(config)!r}))\n"
        f"for job in (7, 8):\n    one = grant(job).grant._replace(gpu_uuid={uuid!r}, uid=1)\n"
        "    ledger.add((one,), lambda new, live: new)\nledger.close()\nagent.apply([grant(7)])\n"
    )
    assert run_with(machine, root, DOCTOR + enter, f"said({str(config)!r})") == [
        ["WARN", "stand for 1 of 2 slice(s), not for job 8"]
    ]
    (machine.directory / "memory-limits").rename(machine.directory / "none")
    assert said() == [["OK", "none: a driver from r615 on has them; slices are limited by the interposer"]]
    (machine.directory / "none").rename(machine.directory / "memory-limits")
    faulty = Machine(machine.directory, machine.env | {"HAMI_SIM_FAULTS": "nvmlDeviceGetMemoryLimits_v1=6"})
    (found,) = run_with(faulty, root, DOCTOR, f"said({str(config)!r})")
    assert (found[0], "NVML says" in found[1]) == ("WARN", True)


def test_a_resized_job_has_its_new_limit_at_the_next_look(machine: Machine, root: Path) -> None:
    looks = "[agent.apply([grant(7)]), hard(7), agent.apply([grant(7, 16384)]), hard(7), agent.apply([grant(7, 2048)])]"
    assert run(machine, root, f"[{looks}, hard(7)]") == [[None, 8192 + 64, None, 16384 + 64, None], 2048 + 64]
