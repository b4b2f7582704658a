# SPDX-License-Identifier: Apache-2.0
"""A job's tmpfs by the system calls, and by mount(8) where they are not to be called: the same mount."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.mounting import can_mount, unmount_below
from node_testbed import ROOT, Node, job_environment

from hami_hpc.node import mount_calls, mounts

needs_mounts = pytest.mark.skipif(not can_mount(), reason="mounting needs CAP_SYS_ADMIN")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "ünusual,name=x"
    path.mkdir()
    yield path
    unmount_below(tmp_path)


def mount_line(folder: Path) -> list[str]:
    """File system, options of the mount and of the file system, without what differs between two mounts."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[4] == str(folder):
            return [fields[5], *fields[fields.index("-") + 1 :]]
    return []


def test_the_calls_are_made_in_the_releases_of_python_that_were_tried() -> None:
    assert mount_calls.are_usable == (sys.version_info < mount_calls.TRIED_BEFORE)


@needs_mounts
@pytest.mark.parametrize("are_usable", [True, False])
def test_a_mount_is_bounded_and_lets_nobody_start_programs_by_either_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch, are_usable: bool
) -> None:
    started: list[str] = []
    run = mounts._run

    def noted(*command: str) -> None:
        started.append(command[0])
        run(*command)

    monkeypatch.setattr(mount_calls, "are_usable", are_usable)
    monkeypatch.setattr(mounts, "_run", noted)
    assert mounts.mount_bounded(str(folder), 331776, 2)
    options, kind, source, own = mount_line(folder)
    assert (kind, source) == ("tmpfs", "hami-hpc")
    assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))
    assert {"size=324k", "nr_inodes=2", "mode=755"} <= set(own.split(","))
    assert (folder.stat().st_mode & 0o7777, folder.stat().st_uid) == (0o755, 0)
    (folder / "usage").write_text("x")
    with pytest.raises(OSError, match="No space left"):
        (folder / "second").write_text("x")
    with (folder / "usage").open():  # in use: it is detached all the same
        assert mounts.detach(str(folder))
    assert mount_line(folder) == []
    assert started == ([] if are_usable else [mounts.MOUNT, mounts.UMOUNT])


@needs_mounts
def test_all_that_is_stacked_on_a_directory_is_detached(folder: Path) -> None:
    for _ in range(3):
        mount_calls.mount_tmpfs(str(folder), "size=4096")
    assert mounts.detach(str(folder))
    assert mount_line(folder) == []


@needs_mounts
def test_a_link_is_not_followed_to_what_it_names(folder: Path, tmp_path: Path) -> None:
    assert mounts.mount_bounded(str(folder), 4096, 2)
    (tmp_path / "link").symlink_to(folder)
    mount_calls.detach(str(tmp_path / "link"))
    assert mount_line(folder) != []


@needs_mounts
@pytest.mark.parametrize("options", ["size=nothing", "mode=0999"])
def test_a_call_that_fails_raises_nothing_and_the_mounts_say_so(folder: Path, options: str) -> None:
    mount_calls.mount_tmpfs(str(folder), options)
    mount_calls.mount_tmpfs(str(folder / "missing"), "size=4096")
    assert not mounts.has_file_system(str(folder))
    mount_calls.detach(str(folder))
    mount_calls.detach(str(folder / "missing"))
    assert mounts.detach(str(folder))


SABOTAGE = {
    "no C module of ctypes": "sys.modules['_ctypes'] = None",
    "one without a name": "import _ctypes; del _ctypes.CFuncPtr",
    "a Python that was not tried": "sys.version_info = (3, 99, 0)",
}


@needs_mounts
@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_prolog_and_epilog_mount_by_the_program_where_the_calls_are_not_to_be_made(
    tmp_path: Path, sabotage: str
) -> None:
    node = Node.make(tmp_path / "node")
    code = (
        f"import sys\n{SABOTAGE[sabotage]}\nsys.path.append(sys.argv[1])\n"
        "from hami_hpc.node import mount_calls, mounts\n"
        "started, run = [], mounts._run\n"
        "mounts._run = lambda *command: (started.append(command[0]), run(*command))\n"
        "from hami_hpc.stages import epilog, prolog\n"
        "assert prolog.main(sys.argv[2:]) == 0\n"
        "assert mounts.has_file_system(sys.argv[3].rpartition('/')[0] + '/run/jobs/7/shared')\n"
        "assert epilog.main(sys.argv[2:]) == 0\n"
        "print(mount_calls.are_usable, *started[-2:])"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), *node.arguments]
    done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["False", mounts.MOUNT, mounts.UMOUNT]
    node.assert_nothing_is_held()
    assert not os.path.ismount(node.root)
