# SPDX-License-Identifier: Apache-2.0
"""Divides an installation below DESTDIR into the trees of its parts, and makes their Python packages complete."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

from hami_packages.release import ROOT, PackagingError, Release

PARTS = ("common", "slurm", "node", "accounting")
LEFT_OUT = "-"
GPL = {"slurm": "The plugins that Slurm loads (*.so) are", "node": "pam_hami_hpc.so is"}
# What makes a venv and is not needed in one that no pip will change.
NOT_PACKAGED = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
# They name directories of the machine that builds.
OF_THE_BUILD = ("direct_url.json", "RECORD", "REQUESTED", "INSTALLER")
HAS_ACCOUNTING = "import runpy, sys; sys.path.append(sys.argv.pop(1)); "


def table(release: Release) -> list[tuple[str, str]]:
    """Returns (pattern, part) of parts.tsv."""
    text = (ROOT / "scripts/hami_packages/parts.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return [(release.fill(pattern), part) for part, pattern in rows]


def part_of(path: str, rows: list[tuple[str, str]]) -> str:
    """Returns the part of a file, by its path in the installation. Raises PackagingError when no line has it."""
    for pattern, part in rows:
        if fnmatch.fnmatchcase(path, pattern):
            return part
    raise PackagingError(f"no line of scripts/hami_packages/parts.tsv says which part {path} belongs to")


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


def divide(installed: Path, trees: Path, release: Release) -> None:
    """Copies each file of `installed` into the tree of its part. Settings become an example among the documents."""
    rows = table(release)
    example = release.fill("@SYSCONFDIR@/hami-hpc/hami-hpc.toml.example")
    for path in sorted(installed.rglob("*")):
        name = f"/{path.relative_to(installed)}"
        if path.is_dir() and not path.is_symlink():
            continue
        part = part_of(name, rows)
        if part != LEFT_OUT:
            target = name if name != example else release.fill("@PREFIX@/share/doc/hami-hpc/hami-hpc.toml.example")
            _place(path, trees / part / target.lstrip("/"))


def site_packages(release: Release) -> str:
    return f"lib/python{release.python}/site-packages"


def add_python(installed: Path, trees: Path, release: Release) -> None:
    """Makes LIBDIR/python in the tree of common: a venv of the system's Python, without pip, compiled."""
    venv = installed / f"{release.places['LIBDIR']}/venv".lstrip("/")
    python = trees / "common" / f"{release.places['LIBDIR']}/python".lstrip("/")
    target = python / site_packages(release)
    shutil.copytree(venv / site_packages(release), target, ignore=_not_packaged)
    (python / "bin").mkdir()
    (python / "bin/python3").symlink_to(f"/usr/bin/python{release.python}")
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {release.python}\n"
    (python / "pyvenv.cfg").write_text(settings, encoding="utf-8")


def _not_packaged(folder: str, names: list[str]) -> set[str]:
    if folder.endswith("site-packages"):
        stems = {name: name.partition("-")[0] for name in names}
        return {name for name in names if stems[name] in NOT_PACKAGED or name in NOT_PACKAGED} | {"__pycache__"}
    of_build = OF_THE_BUILD if folder.endswith(".dist-info") else ()
    return {name for name in names if name in of_build or name == "__pycache__"}


def add_accounting(installed: Path, trees: Path, release: Release) -> None:
    """Puts what accounting imports, and nodes do not, into LIBDIR/accounting, and its man pages into their place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    venv = installed / f"{release.places['LIBDIR']}/venv".lstrip("/")
    target = trees / "accounting" / f"{release.places['LIBDIR']}/accounting".lstrip("/")
    pip = (str(venv / "bin/python3"), "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--no-compile")
    options = ("--disable-pip-version-check", "--only-binary=:all:", "--target", str(target))
    subprocess.run((*pip, *options, *project["optional-dependencies"]["accounting"]), check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)
    for info in target.glob("*.dist-info"):
        for name in OF_THE_BUILD:
            (info / name).unlink(missing_ok=True)
    share = trees / "share"
    code = f"{HAS_ACCOUNTING}runpy.run_module('hami_hpc.cli.share_files', run_name='__main__')"
    command = (venv / "bin/python3", "-I", "-c", code, target, share)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    pages = f"{release.places['PREFIX']}/share/man/man1".lstrip("/")
    for page in (share / "man/man1").iterdir():
        if not (trees / "common" / pages / page.name).exists():
            _place(page, trees / "accounting" / pages / page.name)
    shutil.rmtree(share)


def finish(trees: Path, parts: tuple[str, ...], release: Release) -> None:
    """Adds licences and LIBDIR/packaged; sets modes and times, and compiles, so that a commit gives the same bytes."""
    for part in parts:
        document = trees / part / f"{release.places['PREFIX']}/share/doc/hami-hpc-{part}".lstrip("/")
        document.mkdir(parents=True)
        shutil.copyfile(ROOT / "LICENSE", document / "LICENSE")
        notice = "hami_hpc is under Apache-2.0, in LICENSE beside this file.\n"
        if part in GPL:
            shutil.copyfile(ROOT / "slurm-plugins/COPYING", document / "COPYING")
            notice += f"{GPL[part]} under GPL-2.0-or-later, in COPYING.\n"
        (document / "copyright").write_text(notice, encoding="utf-8")
    packaged = trees / "common" / release.packaged.lstrip("/")
    packaged.write_text(release.fill("hami-hpc @VERSION@, plugins for Slurm @SLURM@\n"), encoding="utf-8")
    for part in parts:
        _strip(trees / part, release)
        _same_times(trees / part, release.epoch)  # a compiled file names the time of its source
        _compile(trees / part, release)
        _same_times(trees / part, release.epoch)


def python_folders(tree: Path, release: Release) -> list[Path]:
    """Returns the directories in which a part's tree can have Python packages of others."""
    return [tree / f"{release.places['LIBDIR']}/{name}".lstrip("/") for name in ("python", "accounting")]


def programs(tree: Path, release: Release) -> list[Path]:
    """Returns the part's own programs and libraries; those of Python packages are as their authors made them."""
    others = python_folders(tree, release)
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not {*others} & {*path.parents}]
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def _strip(tree: Path, release: Release) -> None:
    """Removes what debuggers read, which names the build's directories. Symbols and the build's identity stay."""
    for path in programs(tree, release):
        subprocess.run(("strip", "--strip-debug", path), check=True)


def _same_times(tree: Path, epoch: int) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _compile(tree: Path, release: Release) -> None:
    for folder in (folder for folder in python_folders(tree, release) if folder.is_dir()):
        compile_all = (f"/usr/bin/python{release.python}", "-m", "compileall", "-q", "-j", "2")
        paths = ("--invalidation-mode", "timestamp", "-s", str(tree), "-p", "/", str(folder))
        # Some packages have files of other Pythons, which do not compile.
        subprocess.run((*compile_all, *paths), check=False, stdout=subprocess.DEVNULL)


def make_trees(installed: Path, trees: Path, release: Release, with_accounting: bool) -> tuple[str, ...]:
    """Makes the tree of each part anew below `trees`, and returns the parts."""
    parts = tuple(part for part in PARTS if with_accounting or part != "accounting")
    shutil.rmtree(trees, ignore_errors=True)
    divide(installed, trees, release)
    add_python(installed, trees, release)
    if with_accounting:
        add_accounting(installed, trees, release)
    finish(trees, parts, release)
    return parts
