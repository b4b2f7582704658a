# SPDX-License-Identifier: Apache-2.0
"""make install in tests: into a place of the test's own, without what pip would fetch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from node_testbed import ROOT

# The rest of what pip fetches for accounting is not what is tested here.
PIP = f"--no-deps {ROOT}"


def make_install(pip: str = PIP, **places: str) -> str:
    command = ["make", "install", f"PIP_INSTALL={pip}", *(f"{name}={value}" for name, value in places.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def seed_venv(venv: Path, packages: Path | None = None) -> None:
    """The installation's venv beforehand, with this checkout's Python packages, or those given, in reach."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = packages or next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    own = next(venv.glob("lib/python3*/site-packages"))
    (own / "checkout.pth").write_text(f"{packages}\n")


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
