# SPDX-License-Identifier: Apache-2.0
"""Tarballs that install without network, compiler or package manager: for nodes, other machines and accounting."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from hami_packages.release import ROOT, Release

# The machine's role -> the parts in its tarball.
ROLES = {
    "node": ("common", "slurm", "node"),
    "controller": ("common", "slurm"),
    "accounting": ("common", "accounting"),
}


def name_of(role: str, release: Release) -> str:
    return f"hami-hpc-{role}-{release.version}-slurm{release.slurm}-{platform.machine()}"


def _described(role: str, release: Release) -> str:
    """What `install` reads, as a shell reads it. No value has a character that a shell would treat."""
    values = {
        "VERSION": release.version,
        "SLURM": release.slurm,
        "MACHINE": platform.machine(),
        "PYTHON": f"/usr/bin/python{release.python}",
        "PARTS": " ".join(ROLES[role]),
        **{name: release.places[name] for name in ("LIBDIR", "LIBEXECDIR", "TMPFILESDIR")},
    }
    return "".join(f'{name}="{value}"\n' for name, value in values.items())


def build(role: str, trees: Path, target: Path, release: Release) -> Path:
    """Writes the tarball of a role into the directory `target`, and returns its path."""
    target.mkdir(parents=True, exist_ok=True)
    name = name_of(role, release)
    made = target / f"{name}.tar.gz"
    for older in target.glob(f"hami-hpc-{role}-*.tar.gz"):
        older.unlink()
    with tempfile.TemporaryDirectory(dir=trees) as folder:
        top = Path(folder) / name
        top.mkdir(mode=0o755)
        for part in ROLES[role]:
            subprocess.run(("cp", "-al", trees / part, top / part), check=True)
        (top / "release").write_text(_described(role, release), encoding="utf-8")
        (top / "install").write_bytes((ROOT / "scripts/hami_packages/install").read_bytes())
        (top / "install").chmod(0o755)
        files = [path for path in sorted(top.rglob("*")) if path.is_file() and not path.is_symlink()]
        sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(top)}\n" for path in files)
        (top / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
        for path in (top, top / "release", top / "install", top / "SHA256SUMS"):
            os.utime(path, (release.epoch, release.epoch))
        whole = made.with_name(f".{made.name}.new")
        options = ("--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--use-compress-program=gzip -n")
        subprocess.run(("tar", *options, "-C", folder, "-cf", whole, name), check=True)
        whole.replace(made)
    return made
