# SPDX-License-Identifier: Apache-2.0
"""hami-hpc as a plain user whose disk is full, whose streams are closed and whose locale has no letters."""

from __future__ import annotations

import functools
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_testbed import ROOT, TOML

COMMANDS = ["doctor", "doctor --format json", "jobs", "usage 7", "reconcile --dry-run"]
COMMANDS += ["render --dry-run -o ETC --gpus h200:2", "--help", "--version"]


@pytest.fixture
def site() -> Iterator[Path]:
    """A directory that all users can enter, with settings and a slurm.conf in it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "etc").mkdir()
        (root / "etc" / "slurm.conf").write_bytes(b"ClusterName=x\nGresTypes=\xff\n")
        (root / "hami-hpc.toml").write_text(TOML.format(run=root / "run", state=root / "state"))
        yield root


INTERPRETER = [sys.executable, "-B"]
AS_A_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *INTERPRETER]
PACKAGES = [str(ROOT), sysconfig.get_path("purelib")]


@functools.cache
def python() -> list[str]:
    """Python as uid 65534, or as the tests' own user where others cannot read the checkout or the interpreter."""
    tried = shell(Path("/"), [*AS_A_USER, "-c", "import hami_hpc.cli"], "")
    return INTERPRETER if tried.stderr else AS_A_USER


def shell(site: Path, command: list[str], stream: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(PACKAGES), "HAMI_HPC_CONFIG": str(site / "hami-hpc.toml")}
    full = ["sh", "-c", f'"$@" {stream}', "sh", *command]
    return subprocess.run(full, env=given | environment, cwd="/", capture_output=True, text=True, check=False)


def run(site: Path, command: str, stream: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as uid 65534 without a home or a terminal; `stream` is the shell's redirection."""
    words = command.replace("ETC", str(site / "etc")).split()
    return shell(site, [*python(), "-m", "hami_hpc.cli", *words], stream, **environment)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stream", [">/dev/full", ">&-", "<&-", "| head -c 1", "2>/dev/full", ">/dev/full 2>&1"])
def test_no_stream_ends_in_a_traceback_or_makes_a_file(site: Path, command: str, stream: str) -> None:
    before = sorted(site.rglob("*"))
    done = run(site, command, stream)
    assert done.returncode in (0, 1, 3)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("\n") <= 1
    assert sorted(site.rglob("*")) == before


def test_a_full_disk_is_named(site: Path) -> None:
    done = run(site, "--help", ">/dev/full")
    assert done.stderr == "Error: No space left on device\n"
    assert done.returncode == 1


def test_letters_that_the_locale_lacks_are_written_as_escapes(site: Path) -> None:
    done = run(site, "render --dry-run -o ETC --gpus h200:2", "", PYTHONIOENCODING="latin-1", COLUMNS="20")
    assert done.returncode == 0, done.stderr
    assert "instead of GresTypes=\\ufffd write:" in done.stdout
