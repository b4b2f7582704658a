# SPDX-License-Identifier: Apache-2.0
"""pam_hami_hpc: a session in the extern step of a job with a slice is limited as a step is, or is not opened."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from conformance import INTERPOSER, JOB, REAL_GPU, make_slice, put
from sessions import REFUSED, ROOT, Sshd, build, extern_step, make_sshd
from unprivileged import make_open_machine

from hami_hpc.contract import constants as c
from hami_hpc.node import sluids

pytestmark = [
    pytest.mark.skipif(REAL_GPU, reason="binds over /run, which a GPU machine's own jobs may use"),
    pytest.mark.skipif(os.geteuid() != 0, reason="opens sessions of other users, as root's sshd does"),
]
USER = "games"
UID = pwd.getpwnam(USER).pw_uid
SLUID = "s00H5T7VE3QKG4"
EXTERN = 0xFFFFFFFC  # SLURM_EXTERN_CONT
LIMIT_MIB = 4096
TOO_MUCH = 3  # slice --use: there is less
IS_FENCED = "env -i cat /proc/self/maps | grep -q libhami-hpc.so && echo fenced || echo open"
PROBE = ("sh", "-c", f"{IS_FENCED}; exec env -u PWD")


@dataclass(frozen=True)
class Node:
    """A node with one simulated GPU and one job of USER's, where that user reaches all."""

    root: Path
    job: Path
    cgroup: Path
    gpu_uuid: str
    environment: dict[str, str]  # of programs on the simulated driver, which a real node's have no need of

    def sshd(self, *arguments: str, preload: str = "ldso", user: str = USER) -> Sshd:
        given = arguments or (f"run_dir={self.root}/run", f"interposer={self.interposer}", f"preload={preload}")
        return make_sshd(self.root / "pam.d", user, *given)

    @property
    def interposer(self) -> Path:
        return self.root / INTERPOSER.name

    def session(
        self, *command: str, preload: str = "ldso", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        given = self.environment if environment is None else environment
        return self.sshd(preload=preload).run(self.cgroup, given, *command)

    def record(self) -> Path:
        return self.job / c.FILE_STEP_LIMITS.format(step_id=EXTERN)

    def change(self, **fields: int | str) -> None:
        path = self.job / c.FILE_JOB_LIMITS
        path.write_bytes(put(path.read_bytes(), fields))


def fill(root: Path) -> tuple[Path, str, dict[str, str]]:
    machine, gpu_uuid = make_open_machine(root)
    for library in (INTERPOSER, ROOT / "build" / "examples" / "slice"):
        shutil.copy(library, root / library.name)
    made = make_slice(root / "run" / "jobs", machine, gpu_uuid, job_mib=LIMIT_MIB, cores_percent=25, uid=UID)
    os.chown(made.directory / c.FILE_USAGE, UID, UID)
    environment = {"LD_LIBRARY_PATH": str(root / "sim"), "HAMI_SIM": str(machine)}
    return made.directory, gpu_uuid, {**environment, "LD_PRELOAD": str(root / "sim" / "libhami-sim-kernel.so")}


@pytest.fixture(params=["v1", "v2", "sluid"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    build()
    version, sluid = ("v2", SLUID) if request.param == "sluid" else (request.param, "")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        cgroup = stack.enter_context(extern_step(version, JOB, UID, sluid=sluid))
        job, gpu_uuid, environment = fill(root)
        if sluid:
            sluids.note(str(root / "run"), JOB, sluid)
        yield Node(root, job, cgroup, gpu_uuid, environment)


def values(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def test_a_session_has_what_a_task_of_a_step_has(node: Node) -> None:
    done = node.session(*PROBE, environment={"HOME": "/"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fenced\n"), done.stdout
    found = values(done.stdout)
    assert found["CUDA_VISIBLE_DEVICES"] == node.gpu_uuid
    assert found[c.ENV_LIMITS] == str(node.record())
    assert found[c.ENV_CLASS] == "std"
    assert "/run/hami-hpc/self" in found["APPTAINER_BINDPATH"]
    assert "LD_PRELOAD" not in found


def test_session_and_step_share_the_limit_of_their_job(node: Node) -> None:
    program = str(node.root / "slice")
    alone = node.session(program, "--use", "5000")
    assert alone.returncode == TOO_MUCH, alone.stdout + alone.stderr
    step = {
        **node.environment,
        c.ENV_LIMITS: str(node.job / "step-0.limits"),
        "LD_PRELOAD": f"{node.interposer} {node.environment['LD_PRELOAD']}",
    }
    user = ["setpriv", f"--reuid={USER}", "--regid=60", "--clear-groups"]
    with subprocess.Popen(
        [*user, program, "--use", "2000", "--hold", "60"], env=step, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        while b"ok" not in (line := holder.stdout.readline()):
            assert line, "the step could not allocate"
        beside = node.session(program, "--use", "2000")
        less = node.session(program, "--use", "500")
        holder.kill()
    assert beside.returncode == TOO_MUCH, beside.stdout + beside.stderr
    assert less.returncode == 0, less.stdout + less.stderr


def test_with_preload_env_the_variables_say_what_a_step_s_do(node: Node) -> None:
    done = node.session(*PROBE, preload="env")
    assert done.stdout.startswith("open\n"), "as in a step: a user can take it away"
    found = values(done.stdout)
    assert found["LD_PRELOAD"] == f"{node.interposer}:{node.environment['LD_PRELOAD']}"
    assert found[c.ENV_LIMITS] == str(node.record())
    program = str(node.root / "slice")
    assert node.session(program, "--use", "5000", preload="env").returncode == TOO_MUCH
    assert node.session(program, "--use", "500", preload="env").returncode == 0


def test_two_sessions_at_once_are_both_limited_and_the_first_stays_so(node: Node) -> None:
    """The records that the second one writes take no mount of the first one's away."""
    sshd = node.sshd()
    fences = (
        "grep -c libhami-hpc.so /proc/self/maps >/dev/null && test -s /run/hami-hpc/self/step.limits && echo fenced"
    )
    first = ("sh", "-c", f"echo ready; read line; sh -c '{fences}'; exec {node.root}/slice --use 5000")
    command = sshd.command(node.cgroup, node.environment, *first)
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        for _ in range(3):
            second = sshd.run(node.cgroup, node.environment, str(node.root / "slice"), "--use", "500")
            assert second.returncode == 0, second.stderr
        out, _err = one.communicate("go\n", timeout=60)
    assert out.startswith("fenced\n"), out
    assert one.returncode == TOO_MUCH, out


def test_a_session_of_a_job_with_several_slices_has_them_all(node: Node) -> None:
    node.change(slice_count=2)
    record = put((node.job / c.FILE_JOB_LIMITS).read_bytes(), {"slice_index": 1, "gpu_uuid": "GPU-second"})
    (node.job / c.FILE_SLICE_JOB_LIMITS.format(slice=1)).write_bytes(record)
    script = f"cat {c.FILE_SELF}/step.1.limits | tr -cd '[:print:]'; echo; exec env"
    done = node.session("sh", "-c", script, environment={})
    assert done.returncode == 0, done.stderr
    assert "GPU-second" in done.stdout.splitlines()[0]
    assert values(done.stdout)["CUDA_VISIBLE_DEVICES"] == f"{node.gpu_uuid},GPU-second"


@pytest.mark.parametrize("mode", ["mps", "mig"])
def test_a_session_of_another_mode_has_that_mode_s_variables(node: Node, mode: str) -> None:
    node.change(mode={"mps": 1, "mig": 2}[mode])
    missing = node.session(*PROBE, environment={})
    check_refused(missing, f"jobs/{JOB}/{mode}")
    text = f"0 {node.root}/run/mps/pipe" if mode == "mps" else "MIG-1234-5 note"
    (node.job / mode).write_text(f"{text}\n")
    found = values(node.session(*PROBE, environment={}).stdout)
    if mode == "mps":
        assert found["CUDA_MPS_PIPE_DIRECTORY"] == f"{node.root}/run/mps/pipe"
        assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={LIMIT_MIB}M"
        assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert found["CUDA_VISIBLE_DEVICES"] == node.gpu_uuid
    else:
        assert found["CUDA_VISIBLE_DEVICES"] == found["NVIDIA_VISIBLE_DEVICES"] == "MIG-1234-5"


def test_a_session_of_no_slice_is_left_alone(node: Node) -> None:
    """Not in a job; in a job without a slice; in a whole-GPU job; in a step, which is limited already; root's own."""
    sshd = node.sshd()
    assert sshd.run(None, {}, *PROBE).stdout == "open\n"
    assert node.sshd(user="root").run(node.cgroup, {}, *PROBE).stdout == "open\n"
    sshd = node.sshd()
    other = Path(shutil.move(node.job, node.job.with_name("4712")))
    (other / c.FILE_SLUID).unlink(missing_ok=True)  # that job has another
    assert sshd.run(node.cgroup, {}, *PROBE).stdout == "open\n"
    node.job.mkdir()
    (node.job / c.FILE_WHOLE).write_text("job 4711 holds the whole node\n")
    assert sshd.run(node.cgroup, {}, *PROBE).stdout == "open\n"
    assert sorted(path.name for path in node.job.iterdir()) == [c.FILE_WHOLE]


def test_a_session_in_a_step_is_not_given_what_its_job_has(node: Node) -> None:
    with extern_step("v1" if "freezer" in str(node.cgroup) else "v2", 4713, UID, "step_0") as cgroup:
        node.job.rename(node.job.with_name("4713"))
        assert node.sshd().run(cgroup, {}, *PROBE).stdout == "open\n"


def check_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == REFUSED, done.stdout + done.stderr
    assert re.search(f"hami_hpc: this session in job ({JOB}|{SLUID}) is not opened: ", done.stderr)
    for part in parts:
        assert part in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr  # one line of ours, and the program's own


def damage(node: Node, kind: str) -> tuple[str, ...]:
    """Makes one thing wrong. Returns arguments of the module other than the test's own, if any."""
    given = (f"run_dir={node.root}/run", f"interposer={node.interposer}")
    limits = node.job / c.FILE_JOB_LIMITS
    if kind == "another user":
        node.change(uid=UID + 1)
    elif kind == "writable record":
        limits.chmod(0o666)
    elif kind == "damaged record":
        limits.write_bytes(b"")
    elif kind == "refused job":
        limits.unlink()
        (node.job / c.FILE_REFUSED).write_text("E_HELD: there is no room\n")
    elif kind == "no library":
        node.interposer.unlink()
    elif kind == "library of others":
        node.interposer.chmod(0o666)
    elif kind == "missing slice":
        node.change(slice_count=2)
    elif kind == "options":
        return (*given, "preload=both")
    elif kind == "run_dir":
        (node.root / "other").write_text("")
        return (f"run_dir={node.root}/other", *given[1:])
    return given


REFUSALS = {
    "another user": "is of another job or user",
    "writable record": "can be written by others than root",
    "damaged record": "has the wrong size",
    "refused job": "E_HELD: there is no room",
    "no library": "is not there",
    "library of others": "must be a file of root",
    "missing slice": "job.1.limits No such file or directory",
    "options": "preload=both in the line of pam_hami_hpc.so in /etc/pam.d: preload must be env or ldso",
    "run_dir": "(Not a directory)",
}


@pytest.mark.parametrize("kind", list(REFUSALS))
def test_a_session_that_cannot_be_limited_is_not_opened(node: Node, kind: str) -> None:
    arguments = damage(node, kind)
    check_refused(node.sshd(*arguments).run(node.cgroup, {}, "echo", "begun"), REFUSALS[kind])


def test_a_full_disk_refuses_the_session_and_harms_no_step(node: Node) -> None:
    """The job's files are as they were, and nothing is left that anybody would read."""
    before = {path.name: path.read_bytes() for path in node.job.iterdir() if path.is_file()}
    script = f"""set -e
mkdir {node.root}/full; mount -t tmpfs -o size=64k none {node.root}/full; mkdir -p {node.root}/full/jobs
cp -a {node.job} {node.root}/full/jobs/ 2>/dev/null || true
cp {node.job}/*.limits {node.root}/full/jobs/{JOB}/
head -c 65536 /dev/zero >{node.root}/full/rest 2>/dev/null || true
set +e; "$@"; status=$?
ls -A {node.root}/full/jobs/{JOB} >{node.root}/left
exit $status
"""
    sshd = node.sshd(f"run_dir={node.root}/full", f"interposer={node.interposer}")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
    command += sshd.command(node.cgroup, {}, "echo", "begun")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    check_refused(done, "No space left on device")
    left = (node.root / "left").read_text().split()
    assert c.FILE_JOB_LIMITS in left
    assert not [name for name in left if name.startswith(".") or str(EXTERN) in name], left
    assert {path.name: path.read_bytes() for path in node.job.iterdir() if path.is_file()} == before


def test_sessions_that_are_killed_while_they_begin_leave_all_others_as_they_are(node: Node) -> None:
    """A step that holds the job's files mounted goes on, and the next session is limited."""
    sshd = node.sshd()
    command = sshd.command(node.cgroup, node.environment, "sleep", "60")
    held = sshd.command(
        node.cgroup, node.environment, "sh", "-c", f"echo ready; read line; exec {node.root}/slice --use 5000"
    )
    with subprocess.Popen(held, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "ready\n"
        for round_ in range(25):
            with subprocess.Popen(command, start_new_session=True) as killed:
                time.sleep(0.001 * round_)
                os.killpg(killed.pid, signal.SIGKILL)
        out, _err = step.communicate("go\n", timeout=60)
    assert step.returncode == TOO_MUCH, out
    assert node.session(str(node.root / "slice"), "--use", "5000").returncode == TOO_MUCH
    done = node.session(str(node.root / "slice"), "--use", "500")
    assert done.returncode == 0, done.stdout + done.stderr
