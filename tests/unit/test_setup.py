# SPDX-License-Identifier: Apache-2.0
"""scripts/setup and scripts/slurm-plugindir on machines with a Slurm of Debian, of SchedMD's packages, from source, or
without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLURMS = {"slurmctld", "slurmd", "slurmdbd", "slurm-client", "slurm-wlm-basic-plugins", "libslurm-dev"}


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def missing(folder: Path, *words: str) -> set[str]:
    """Returns what setup would install where no Debian package is installed, with programs of this folder first."""
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = (str(ROOT / "scripts/setup"), "missing", *words)
    return set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("owner", "has_slurms"),
    [("slurmd", True), ("slurm-smd-slurmd", False), ("", False)],
    ids=["of Debian", "of SchedMD's packages", "from source"],
)
def test_a_slurm_that_is_not_debians_stays_the_only_one(tmp_path: Path, owner: str, has_slurms: bool) -> None:
    program(tmp_path, "slurmd", "")
    answer = f'[ "$1" != --search ] || echo "{owner}: $2"' if owner else "exit 1"
    program(tmp_path, "dpkg-query", answer)
    for words in ((), ("test",)):
        found = missing(tmp_path, *words)
        assert {"gcc", "munge"} <= found
        assert found & SLURMS == (SLURMS if has_slurms else set())
        assert ("slurmrestd" in found) == (has_slurms and words == ("test",))


def test_an_environment_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    """venv makes bin/python first, and pip some seconds later: a Ctrl-C between left a checkout that never built."""
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    program(checkout / "scripts", "setup", (ROOT / "scripts/setup").read_text().partition("\n")[2])
    (checkout / "pyproject.toml").touch()
    program(checkout / ".venv/bin", "python", 'echo "No module named pip" >&2; exit 1')
    program(programs, "dpkg-query", "echo installed")
    program(programs, "python3", f'[ "$1" = -c ] || echo "$@" >>{tmp_path}/calls; cp {tmp_path}/whole $3/bin/python')
    program(tmp_path, "whole", f"echo pip >>{tmp_path}/calls")
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run([checkout / "scripts/setup"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["-m venv .venv", "pip"]


def test_nothing_is_ever_removed() -> None:
    """A package that conflicts with one of the machine's is not worth it: apt would remove the other."""
    (line,) = (line for line in (ROOT / "scripts/setup").read_text().splitlines() if "apt-get install -y" in line)
    assert {"--no-remove", "--no-upgrade"} <= set(line.split())


@pytest.mark.parametrize("place", ["lib64/slurm", "lib/slurm"])
def test_slurms_plugins_are_found_from_its_daemon(tmp_path: Path, place: str) -> None:
    program(tmp_path / "slurm/sbin", "slurmd", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "slurmd").symlink_to(tmp_path / "slurm/sbin/slurmd")
    plugins = tmp_path / "slurm" / place
    plugins.mkdir(parents=True)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def printed() -> str:
        command = (ROOT / "scripts/slurm-plugindir",)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert printed() != str(plugins), "it has no plugins"
    (plugins / "gres_gpu.so").touch()
    assert printed() == str(plugins)
