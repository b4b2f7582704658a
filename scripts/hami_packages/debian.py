# SPDX-License-Identifier: Apache-2.0
"""Debian packages of the parts, by dpkg-deb. Why without debhelper: docs/adr/070-packages.md."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hami_packages.release import ROOT, PackagingError, Release
from hami_packages.trees import programs

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
MAINTAINER = "hami_hpc <root@localhost>"
TEXTS = {
    "common": "commands, stages and templates of all machines",
    "slurm": "plugins and filters for the Slurm that they were built for",
    "node": "what nodes with GPUs need besides",
    "accounting": "bills, invoices and reports from Slurm's records",
}


@dataclass(frozen=True, slots=True)
class SlurmPackages:
    """The packages that Slurm's plugins and slurmd are in on this machine, and the epoch of their version."""

    plugins: str
    slurmd: str
    epoch: str


def _dpkg_query(*words: str) -> str:
    done = subprocess.run(("dpkg-query", *words), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _owner(path: str) -> str:
    return _dpkg_query("--search", path).partition(":")[0]


def slurm_packages(release: Release) -> SlurmPackages:
    """Finds Slurm's packages. Raises PackagingError where Slurm came from elsewhere, or is another release."""
    slurmd = shutil.which("slurmd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    plugins, daemon = _owner("*/gres_gpu.so"), _owner(os.path.realpath(slurmd)) if slurmd else ""
    if not plugins or not daemon:
        raise PackagingError(
            "Slurm was not installed from Debian packages here, so a package could not say which Slurm it needs. Make "
            "tarballs instead (make dist), which compare the release when they are installed"
        )
    version = _dpkg_query("--show", "--showformat=${Version}", plugins)
    epoch = version.partition(":")[0] + ":" if ":" in version else ""
    if version.removeprefix(epoch).rpartition("-")[0] != release.slurm:
        raise PackagingError(
            f"the plugins were built for Slurm {release.slurm}, and the package {plugins} has {version}: run make "
            "plugins"
        )
    return SlurmPackages(plugins, daemon, epoch)


def bounds(release: str, epoch: str) -> tuple[str, str]:
    """Returns the first version of a package with this release of Slurm, and the first one that no longer has it."""
    match = re.fullmatch(r"(\d+\.\d+\.)(\d+)", release)
    if not match:
        raise PackagingError(f"Slurm {release} has no number such as 22.05.8, from which the next one would follow")
    return f"{epoch}{release}", f"{epoch}{match[1]}{int(match[2]) + 1}~"


def full_version(release: Release) -> str:
    """Returns the version of the packages: another Slurm is another revision."""
    return f"{release.version}-{release.slurm}"


def relations(part: str, release: Release, slurm: SlurmPackages, libraries: str) -> dict[str, str]:
    """Returns the fields of control that say what else a package needs."""
    same = f"(= {full_version(release)})"
    first, beyond = bounds(release.slurm, slurm.epoch)
    major, minor = release.python.split(".")
    python = f"python3 (>= {release.python}~), python3 (<< {major}.{int(minor) + 1}~)"
    if part == "common":
        return {"Depends": f"{python}, python{release.python}"}
    if part == "slurm":
        return {
            "Depends": f"hami-hpc-common {same}, {slurm.plugins} (>= {first}), {slurm.plugins} (<< {beyond})",
            # Depends alone would let dpkg put a newer Slurm beside this.
            "Breaks": f"{slurm.plugins} (>= {beyond})",
        }
    if part == "node":
        needs = f"hami-hpc-common {same}, hami-hpc-slurm {same}, {slurm.slurmd}"
        return {"Depends": f"{needs}, {libraries}" if libraries else needs}
    return {"Depends": f"hami-hpc-common {same}", "Recommends": "slurm-client, rsync"}


def control(part: str, release: Release, slurm: SlurmPackages, libraries: str, size_kib: int) -> str:
    """Returns DEBIAN/control."""
    architecture = subprocess.run(
        ("dpkg", "--print-architecture"), capture_output=True, text=True, check=True
    ).stdout.strip()
    fields = {
        "Package": f"hami-hpc-{part}",
        "Version": full_version(release),
        "Architecture": architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(size_kib),
        **relations(part, release, slurm, libraries),
        "Section": "admin",
        "Priority": "optional",
        "Description": f"slices of GPUs for Slurm: {TEXTS[part]}\n Built for Slurm {release.slurm}.",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def libraries_of(tree: Path, release: Release) -> str:
    """Returns the packages that the part's programs and libraries are linked with, as dpkg-shlibdeps finds them."""
    found = programs(tree, release)
    if not found:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "debian").mkdir()
        (Path(folder) / "debian/control").write_text("Source: hami-hpc\n\nPackage: hami-hpc\nArchitecture: any\n")
        command = ["dpkg-shlibdeps", "-O", *(f"-e{path}" for path in found)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("shlibs:Depends=")


def add_control(part: str, tree: Path, release: Release, slurm: SlurmPackages) -> None:
    """Writes DEBIAN/ into a tree: control, md5sums and the maintainer scripts that the part has."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    sums = "".join(f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(tree)}\n" for p in files)
    size_kib = sum(-(-path.stat().st_size // 1024) for path in files)
    libraries = libraries_of(tree, release) if part == "node" else ""
    meta = tree / "DEBIAN"
    meta.mkdir()
    (meta / "control").write_text(control(part, release, slurm, libraries, size_kib), encoding="utf-8")
    (meta / "md5sums").write_text(sums, encoding="utf-8")
    for script in SCRIPTS:
        source = ROOT / "scripts/hami_packages/maintainer" / f"{part}.{script}"
        if source.exists():
            (meta / script).write_text(release.fill(source.read_text(encoding="utf-8")), encoding="utf-8")
            (meta / script).chmod(0o755)
    for path in (meta, *meta.iterdir()):
        os.utime(path, (release.epoch, release.epoch))


def build(parts: tuple[str, ...], trees: Path, target: Path, release: Release) -> list[Path]:
    """Builds a package of each part's tree into the directory `target`, and returns their files."""
    slurm = slurm_packages(release)
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for part in parts:
        for older in target.glob(f"hami-hpc-{part}_*.deb"):
            older.unlink()
        with tempfile.TemporaryDirectory(dir=trees) as folder:
            tree = Path(folder) / part
            subprocess.run(("cp", "-al", trees / part, tree), check=True)
            add_control(part, tree, release, slurm)
            # Accounting's 428 MB with xz take minutes.
            compression = "-Zgzip" if part == "accounting" else "-Zxz"
            command = ("dpkg-deb", "--root-owner-group", compression, "--build", tree, target)
            environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        made += sorted(target.glob(f"hami-hpc-{part}_{full_version(release)}_*.deb"))
    return made
