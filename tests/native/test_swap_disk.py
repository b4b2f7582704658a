# SPDX-License-Identifier: Apache-2.0
"""Disks that fail under device memory that goes to a file (HAMI_HPC_SWAP_DIR), on the simulation.

What can stay on the GPU stays there, and what is lost is said: no signal ends the program unsaid.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from conformance import REAL_GPU, compiled, sanitizer
from swapped import POOLS, WORDS, Program, Swapped
from test_compute import machine
from test_swap import HOLDER, START, Machine, used_mib
from test_swap_file import ON_A_DISK
from test_swap_host import FAKE

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="the same code on a GPU")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts, or another process's mappings")

# A kernel and a disk that answer as the environment says, as a library that is loaded before the interposer.
FAILS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Tests may run where everything is in memory. */
int statfs(const char *path, struct statfs *of)
{
	const int failed = ((int (*)(const char *, struct statfs *))dlsym(RTLD_NEXT, "statfs"))(path, of);
	if (!failed && getenv("IS_A_DISK"))
		of->f_type = EXT4_SUPER_MAGIC;
	return failed;
}

/* Promises blocks, and lets somebody else have them. */
int fallocate(int fd, int mode, off_t at, off_t length)
{
	static char some[1 << 16];
	const char *fill = getenv("FILL");
	if (!fill)
		return ((int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate"))(fd, mode, at, length);
	const int other = open(fill, O_WRONLY | O_CREAT, 0600);
	while (write(other, some, sizeof some) > 0)
		;
	close(other);
	return ftruncate(fd, at + length);
}

int msync(void *memory, size_t size, int flags)
{
	if (getenv("LATE_ERROR")) {
		errno = EIO;
		return -1;
	}
	return ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync"))(memory, size, flags);
}
"""
SAYS = "holds no device memory"


def make(tmp_path: Path, machine: Machine, **fails: str) -> tuple[Swapped, Path]:
    disk = tmp_path / "disk"
    disk.mkdir(exist_ok=True)
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra.update({c.ENV_SWAP_DIR: str(disk)} | fails)
    return job, disk


def environment(job: Swapped, tmp_path: Path) -> dict[str, str]:
    library = compiled(FAILS, tmp_path / "libfails.so", "-ldl")
    out = job.made.environment()
    ours = out["LD_PRELOAD"].split()
    at = len(sanitizer())
    return out | {"LD_PRELOAD": " ".join([*ours[:at], str(library), *ours[at:]])}


def cut(program: Program, folder: Path, length: int) -> None:
    """Takes pages from the file without a name: what the program reads there is a read error to it."""
    maps = Path(f"/proc/{program.process.pid}/maps").read_text()
    found = re.search(rf"^([0-9a-f]+-[0-9a-f]+) rw-s .* {re.escape(str(folder))}/\S+ \(deleted\)$", maps, re.MULTILINE)
    assert found
    os.truncate(f"/proc/{program.process.pid}/map_files/{found[1]}", length)


def stays(job: Swapped) -> str:
    """Orders a move that is refused, and returns why, once it has been tried more than once."""
    job.order(c.SWAP_OUT)
    end = time.monotonic() + 30
    while (why := WORDS[job.slot()["swap_state"]]) in ("gpu", "leaving") and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(1)
    return why


@root_only
@pytest.mark.parametrize("checksums", ["0", "1"])
@pytest.mark.parametrize("length", [0, 40 << 20])
def test_what_cannot_be_read_again_ends_the_program_with_a_line(
    checksums: str, length: int, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    job, disk = make(tmp_path, machine, **{c.ENV_CHECKSUMS: checksums})
    with job.start(HOLDER, "256") as program:
        assert job.move(out=True)[1] == "host"
        cut(program, disk, length)
        job.order(c.SWAP_IN)
        assert program.process.wait(30) == -signal.SIGABRT, "no SIGBUS"
    assert "cannot be brought back (the disk of HAMI_HPC_SWAP_DIR failed); the program ends" in capfd.readouterr().err
    assert used_mib(machine) == 0


def test_what_the_disk_did_not_take_later_ends_the_program_with_a_line(
    tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may read as something else."""
    job, _ = make(tmp_path, machine, LATE_ERROR="1")
    with Program([sys.executable, "-u", "-c", HOLDER, "256"], environment(job, tmp_path)) as program:
        assert job.move(out=True)[1] == "host"
        job.order(c.SWAP_IN)
        assert program.process.wait(30) == -signal.SIGABRT
    assert "the disk of HAMI_HPC_SWAP_DIR failed" in capfd.readouterr().err


@root_only
@pytest.mark.parametrize("checksums", ["0", "1"])
def test_a_disk_that_is_full_though_it_promised_room_leaves_memory_on_the_gpu(
    checksums: str, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    job, disk = make(tmp_path, machine, FILL=str(disk / "fill"), **{c.ENV_CHECKSUMS: checksums})
    words = ["unshare", "--mount", "sh", "-c", ON_A_DISK, "sh", "400", str(disk)]
    command = [*words, sys.executable, "-u", "-c", HOLDER, "256"]
    with Program(command, environment(job, tmp_path)) as program:
        assert stays(job) == "room"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()
    assert capfd.readouterr().err.count(f"{disk} {SAYS} (Input/output error)") == 1


@pytest.mark.parametrize(
    ("fails", "before", "reason"),
    [
        ({}, "ulimit -f 1000", "File too large"),
        ({}, "ulimit -v 5000000", "Cannot allocate memory"),
        ({c.ENV_SWAP_DIR: "disk"}, "", "not an absolute path"),
    ],
    ids=["RLIMIT_FSIZE", "RLIMIT_AS", "relative"],
)
def test_what_forbids_a_file_leaves_memory_on_the_gpu(
    fails: dict[str, str],
    before: str,
    reason: str,
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "ulimit -v" in before and sanitizer():
        pytest.skip("a sanitizer takes address space as it likes")
    job, _ = make(tmp_path, machine, **fails)
    monkeypatch.chdir(tmp_path)  # where the relative path is right, until the program changes its directory
    words = ["sh", "-c", f'{before or ":"} && exec "$@"', "sh", sys.executable, "-u", "-c", HOLDER, "2560"]
    with Program(words, environment(job, tmp_path)) as program:
        assert stays(job) == "room"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()
    assert capfd.readouterr().err.count(f"{SAYS} ({reason}); it stays on the GPU") == 1


FULL = (
    START
    + """
import os, resource
held = [alloc(256)]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print("ready")
taken = []
for line in sys.stdin:
    if line.strip() == "take":
        try:
            while True:
                taken.append(os.open("/dev/null", 0))
        except OSError:
            pass
    else:
        while taken:
            os.close(taken.pop())
    print("done")
"""
)


@pytest.mark.parametrize("to_disk", [True, False])
def test_a_program_without_a_descriptor_left_moves_when_it_has_one(
    to_disk: bool, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    """What room the host has cannot be asked for either."""
    job, disk = make(tmp_path, machine, IS_A_DISK="1")
    job.made.extra[c.ENV_SWAP_DIR] = str(disk) if to_disk else ""
    with Program([sys.executable, "-u", "-c", FULL], environment(job, tmp_path)) as program:
        assert program.ask("take") == "done"
        assert stays(job) == "room"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("give") == "done"
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("give") == "done"
        program.end()
    assert capfd.readouterr().err.count(f"{SAYS} (Too many open files)") == int(to_disk)


def hundred_mib_left(tmp_path: Path) -> list[str]:
    """Returns the words before a command whose job has 100 MiB left of its --mem."""
    (tmp_path / "cgroup").write_text("4:memory:/job\n")
    (tmp_path / "memory.limit_in_bytes").write_text(f"{1 << 30}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{(1 << 30) - (100 << 20)}\n")
    (tmp_path / "memory.stat").write_text("anon 5\ntotal_inactive_file 0\ntotal_active_file 0\n")
    return ["unshare", "--mount", "sh", "-c", FAKE, "sh", "memory/job", str(tmp_path)]


@root_only
@pytest.mark.parametrize(("to_disk", "state"), [(False, "room"), (True, "host")])
def test_the_jobs_memory_is_no_limit_to_a_disk(to_disk: bool, state: str, tmp_path: Path, machine: Machine) -> None:
    """Pages of a file are the kernel's to take back."""
    job, disk = make(tmp_path, machine, IS_A_DISK="1")
    job.made.extra[c.ENV_SWAP_DIR] = str(disk) if to_disk else ""
    command = [*hundred_mib_left(tmp_path), sys.executable, "-u", "-c", HOLDER, "256"]
    with Program(command, environment(job, tmp_path)) as program:
        assert job.move(out=True, patience_s=20 if to_disk else 2)[1] == state
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()


@root_only
def test_a_tmpfs_is_the_hosts_memory(tmp_path: Path, machine: Machine) -> None:
    """Where more than is left would end the job by the kernel's hand."""
    job, disk = make(tmp_path, machine)
    outer = hundred_mib_left(tmp_path)
    inner = ["sh", "-c", ON_A_DISK, "sh", "2000", str(disk)]
    command = [*outer, *inner, sys.executable, "-u", "-c", HOLDER, "256"]
    with Program(command, job.made.environment()) as program:
        assert stays(job) == "room"
        assert program.ask() == "freed"
        program.end()


@root_only
def test_a_removed_directory_keeps_no_memory_away(tmp_path: Path, machine: Machine) -> None:
    job, disk = make(tmp_path, machine)
    with job.start(POOLS) as program:
        assert job.move(out=True)[1] == "host"
        disk.rmdir()
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        assert stays(job) == "room"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 2"
        program.end()
