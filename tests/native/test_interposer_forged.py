# SPDX-License-Identifier: Apache-2.0
"""Whose limits are believed: root's for this user and job, also in a user namespace, and nobody else's anywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import REAL_GPU, put
from unprivileged import Place, make_place

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU, reason="forges on the simulation")
USER, OTHER = 54321, 54322
LIMIT_MIB, FORGED_MIB = 2048, 65536
CLOSED, OPEN = "conformance/without_limits_the_gpu_stays_closed", "conformance/memory_ends_at_the_limit"
REFUSED = "the record is not root's own, or not of this job and user"


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="hami-forged-") as text:
        yield make_place(Path(text), USER, LIMIT_MIB, FORGED_MIB)


def closed(result: subprocess.CompletedProcess[str], reason: str = REFUSED) -> None:
    assert result.returncode == 0, result.stderr
    assert reason in result.stderr


def in_namespace(result: subprocess.CompletedProcess[str]) -> bool:
    """Whether the user got the namespace. Where the machine gives none (container, chroot), nobody forges in one."""
    refused = result.returncode == 1 and re.match(r"unshare: .*(not permitted|No space|Permission)", result.stderr)
    return not refused


def test_roots_own_records_are_believed(place: Place) -> None:
    result = place.run(OPEN, records=place.genuine)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "wrapper",
    [
        ("unshare", "-Ur"),
        ("unshare", "-Urm"),
        ("unshare", "-U", f"--map-user={USER}"),
        ("unshare", "-U", "--map-user=1000"),
        ("unshare", "-Ur", "unshare", "-U", "--map-user=1000"),
    ],
    ids=["root", "root with mounts", "same user", "another user", "nested"],
)
def test_they_are_believed_in_a_user_namespace_too(wrapper: tuple[str, ...], place: Place) -> None:
    """As in a container without root: the fence works there as outside."""
    result = place.run(OPEN, *wrapper, records=place.genuine)
    if in_namespace(result):
        assert result.returncode == 0, result.stderr


NODE_IN_A_CONTAINER = """
import ctypes, os, sys
there, done = os.pipe(), os.pipe()
child = os.fork()
if not child:
    if ctypes.CDLL(None).unshare(0x10000000):
        os._exit(77)
    os.write(there[1], b"x")
    os.read(done[0], 1)
    os.setgroups([])
    os.setresgid(1000, 1000, 1000)
    os.setresuid(1000, 1000, 1000)
    os.execvp(sys.argv[1], sys.argv[1:])
os.close(there[1])
if os.read(there[0], 1):
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{name}", "w") as map:
            map.write("0 100000 65536")
    os.write(done[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("owner", ["root", "user"])
def test_a_whole_node_in_a_container_has_a_root_of_its_own(owner: str, place: Place) -> None:
    """Slurm in an unprivileged system container: its root writes the records, uid 0 there and 100000 outside."""
    for name in (".", c.FILE_JOB_LIMITS, "step-0.limits"):
        path = place.genuine / name
        if path.is_file():
            path.write_bytes(put(path.read_bytes(), {"uid": 1000}))
        os.chown(path, *((100000, 100000) if owner == "root" else (101000, 101000)))
    os.chown(place.genuine / c.FILE_USAGE, 101000, 101000)
    environment = place.environment | {c.ENV_LIMITS: str(place.genuine / "step-0.limits")}
    script = f'LD_PRELOAD="$PRELOAD" exec {place.root}/{OPEN if owner == "root" else CLOSED}'
    command = [sys.executable, "-I", "-c", NODE_IN_A_CONTAINER, "sh", "-c", script]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 77:  # nobody can make such a container here
        assert result.returncode == 0, result.stderr
        assert (REFUSED in result.stderr) == (owner == "user")


def test_the_users_own_copy_is_refused(place: Place) -> None:
    closed(place.run(CLOSED))


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o400])
@pytest.mark.parametrize(
    "wrapper",
    [
        ("unshare", "-U"),
        ("unshare", "-Ur"),
        ("unshare", "-U", f"--map-user={USER}"),
        ("unshare", "-U", "--map-user=65534"),
        ("unshare", "-Ur", "unshare", "-U"),
        ("unshare", "-Ur", "unshare", "-U", "--map-user=65534"),
    ],
    ids=["no map", "root", "same user", "overflow user", "nested, no map", "nested, overflow user"],
)
def test_the_users_own_copy_is_refused_in_a_user_namespace(wrapper: tuple[str, ...], mode: int, place: Place) -> None:
    for name in (c.FILE_JOB_LIMITS, "step-0.limits"):
        (place.forged / name).chmod(mode)
    result = place.run(CLOSED, *wrapper)
    if in_namespace(result):
        closed(result)


@pytest.mark.parametrize("what", ["directory", "files"])
def test_a_copy_mounted_over_the_records_is_refused(what: str, place: Place) -> None:
    genuine, forged = place.genuine, place.forged
    files = "\n".join(f"mount --bind {forged}/{name} {genuine}/{name}" for name in ("job.limits", "step-0.limits"))
    script = files if what == "files" else f"mount --bind {forged} {genuine}"
    result = place.run(CLOSED, "unshare", "-Urm", records=genuine, script=script)
    if in_namespace(result):
        closed(result)


def test_a_false_proc_is_not_believed(place: Place) -> None:
    """The map that says who is who is read from the kernel, not from what the user mounted there."""
    fake = place.root / "home/fake"
    (fake / "self").mkdir(parents=True)
    (fake / "self/uid_map").write_text("0 0 4294967295\n")
    result = place.run(CLOSED, "unshare", "-Urm", script=f"mount --rbind {fake} /proc")
    if in_namespace(result):
        closed(result)
    result = place.run(CLOSED, "unshare", "-Urm", script="mount --bind /proc/1/uid_map /proc/self/uid_map")
    if in_namespace(result) and "mount:" not in result.stderr:
        closed(result)


def test_another_accounts_files_are_refused_outside(place: Place) -> None:
    subprocess.run(["chown", "-R", f"{OTHER}:{OTHER}", str(place.forged)], check=True)
    (place.forged / c.FILE_USAGE).chmod(0o666)
    closed(place.run(CLOSED))


def test_roots_records_in_the_users_directory_are_refused(place: Place) -> None:
    """Hard links to an earlier job's, where the kernel lets users make them."""
    for name in (c.FILE_JOB_LIMITS, "step-0.limits"):
        (place.forged / name).unlink()
        os.link(place.genuine / name, place.forged / name)
    closed(place.run(CLOSED))
    result = place.run(CLOSED, "unshare", "-Ur")
    if in_namespace(result):
        closed(result)


def test_links_are_not_followed(place: Place) -> None:
    for name in (c.FILE_JOB_LIMITS, "step-0.limits"):
        (place.forged / name).unlink()
        (place.forged / name).symlink_to(place.genuine / name)
    shutil.chown(place.forged, 0, 0)
    closed(place.run(CLOSED), "Too many levels of symbolic links")


def test_a_directory_that_is_called_otherwise_is_refused(place: Place) -> None:
    """Another job's records by a name of this one's: a link to the directory, or root's own copy elsewhere."""
    link = place.root / "home/1234"
    link.symlink_to(place.genuine)
    closed(place.run(CLOSED, records=link))


def test_another_users_records_are_refused(place: Place) -> None:
    (place.genuine / c.FILE_USAGE).chmod(0o666)
    closed(place.run(CLOSED, records=place.genuine, uid=OTHER))
    result = place.run(CLOSED, "unshare", "-U", f"--map-user={OTHER}", records=place.genuine, uid=OTHER)
    if in_namespace(result):
        closed(result)


def test_steps_of_another_job_are_refused(place: Place) -> None:
    step = place.genuine / "step-0.limits"
    step.write_bytes(put(step.read_bytes(), {"job_id": 99}))
    closed(place.run(CLOSED, records=place.genuine), "damaged or of another version")
