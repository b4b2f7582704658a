# SPDX-License-Identifier: Apache-2.0
"""The packages that make test-packages has built, and those of a next version, which differ in what --version shows."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from hami_packages import debian, release, trees

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "build/packages-base/root"
PACKAGES = ROOT / "build/packages"
NODE = ("common", "slurm", "node")
LIBRARY = "/usr/lib/hami-hpc"
NEXT = "99.0"


@functools.cache
def build_next() -> None:
    """Builds packages of a next version: the same files, but for the build that the commands show."""
    (common,) = PACKAGES.glob("hami-hpc-common_*.deb")
    version = common.name.split("_")[1]
    slurm = version.rpartition("-")[2]
    folder = PACKAGES / "next-trees"
    subprocess.run(("rm", "-rf", folder, PACKAGES / "next"), check=True)
    subprocess.run(("mkdir", folder), check=True)
    for part in NODE:
        subprocess.run(("cp", "-a", PACKAGES / "trees" / part, folder / part), check=True)
    (library,) = folder.glob("common/usr/lib/hami-hpc/python/lib/python3.*")
    names = dict.fromkeys(release.PLACES, "/nowhere")
    places = {**names, "PREFIX": "/usr", "SYSCONFDIR": "/etc", "LIBDIR": LIBRARY, "LIBEXECDIR": "/usr/libexec/hami-hpc"}
    places |= {"TMPFILESDIR": "/usr/lib/tmpfiles.d"}
    this = release.Release(NEXT, slurm, library.name.removeprefix("python"), places, 1_800_000_000)
    installed = library / "site-packages/hami_hpc/installed.py"
    lines = installed.read_text().splitlines()
    changed = [f'BUILD: Final[str] = "{NEXT} (next)"' if line.startswith("BUILD:") else line for line in lines]
    installed.write_text("\n".join(changed) + "\n")
    trees._compile(folder / "common", this)
    debian.build(NODE, folder, PACKAGES / "next", this)


def packages_of(version: str, parts: tuple[str, ...]) -> list[str]:
    """The packages' paths as the machines see them."""
    if version == NEXT:
        build_next()
    folder = PACKAGES / ("next" if version == NEXT else "")
    names = []
    for part in parts:
        (found,) = folder.glob(f"hami-hpc-{part}_*.deb")
        names.append(f"/shared/{found.relative_to(PACKAGES)}")
    return names
