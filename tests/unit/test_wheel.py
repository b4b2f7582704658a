# SPDX-License-Identifier: Apache-2.0
"""make wheel: what pip installs of it in a fresh environment is all of the Python part, and its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from install_testbed import seed_venv
from node_testbed import ROOT

from hami_hpc.cli import ACCOUNTING_COMMANDS, NODE_COMMANDS

VERSION = "1.2.3+site.4"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ("make", "wheel", f"VERSION={VERSION}", f"PACKAGES={tmp_path_factory.mktemp('packages')}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())


def test_a_wheel_has_every_file_of_the_package_and_the_version_that_it_was_given(wheel: Path) -> None:
    assert wheel.name == f"hami_hpc-{VERSION}-py3-none-any.whl"
    tracked = subprocess.run(("git", "ls-files", "hami_hpc"), cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"hami_hpc-{VERSION}.dist-info/METADATA").decode()
    assert set(tracked.stdout.split()) - names == set()
    assert {name.partition("/")[0] for name in names} == {"hami_hpc", f"hami_hpc-{VERSION}.dist-info"}
    assert {"accounting", "pdf", "metrics", "top"} <= set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))


def test_its_commands_run_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    seed_venv(venv)  # what hami_hpc needs comes from this checkout's environment, not from an index
    install = ("--python", str(venv / "bin/python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    subprocess.run((sys.executable, "-m", "pip", "--disable-pip-version-check", *install), check=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    hami = str(venv / "bin/hami-hpc")
    listed = run(hami, "--help")
    assert all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in (*NODE_COMMANDS, *ACCOUNTING_COMMANDS))
    assert run(hami, "bill", "--help").startswith("Usage: hami-hpc bill ")
    built = subprocess.run([ROOT / "scripts/build-info"], capture_output=True, text=True, check=True).stdout.strip()
    assert run(hami, "--version") == f"hami-hpc, version {built}\n"
    where = run(str(venv / "bin/python"), "-I", "-c", "import hami_hpc; print(hami_hpc.__file__)")
    assert where.startswith(str(venv)), "and not the checkout"
