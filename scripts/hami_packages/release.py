# SPDX-License-Identifier: Apache-2.0
"""What is being packaged: the places of the Makefile, the version, and the Slurm that the plugins were built for."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    *("PREFIX", "SYSCONFDIR", "LIBDIR", "LIBEXECDIR", "DATADIR", "UNITDIR", "PLUGINDIR", "ZSHDIR"),
    "TMPFILESDIR",
)
VERSION = re.compile(r"[0-9][A-Za-z0-9.+~]*")  # what both dpkg and rpm take


class PackagingError(Exception):
    """What cannot be packaged, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Release:
    """`slurm` is a release such as 22.05.8; `python` the minor version whose /usr/bin/pythonX.Y runs the packages;
    `epoch` seconds since 1970, the time of every file in a package."""

    version: str
    slurm: str
    python: str
    places: dict[str, str]
    epoch: int

    def fill(self, text: str) -> str:
        """Replaces @NAME@ by the place of that name, and @VERSION@, @SLURM@ and @PYTHON@."""
        values = {**self.places, "VERSION": self.version, "SLURM": self.slurm, "PYTHON": self.python}
        return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)

    @property
    def packaged(self) -> str:
        """The file by which `make install` knows that a package or tarball has this place."""
        return f"{self.places['LIBDIR']}/packaged"


def _git(*words: str) -> str:
    command = ("git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def version(wanted: str = "") -> str:
    """Returns `wanted`; else pyproject.toml's version at its tag, and between tags one that grows with each commit.

    Raises PackagingError for a version that packages cannot have.
    """
    if wanted:
        if not VERSION.fullmatch(wanted):
            raise PackagingError(f"VERSION={wanted} begins with a digit and has letters, digits and . + ~ only")
        return wanted
    match = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert match
    number = match[1]
    if not _git("rev-parse", "HEAD") or _git("describe", "--exact-match", "--tags", "--match", f"v{number}"):
        return number
    changed = ".modified" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{number}+git{_git('rev-list', '--count', 'HEAD')}.{_git('rev-parse', '--short=10', 'HEAD')}{changed}"


def slurm_release(plugin_build: Path) -> str:
    """Returns the release of the source that the plugins in this directory were built from."""
    try:
        tree = Path((plugin_build / "slurm-tree").read_text(encoding="utf-8").strip())
        if not tree.is_absolute():
            tree = ROOT / "slurm-plugins" / tree
        found = re.search(r"^\s*Version:\s*(\S+)", (tree / "META").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise PackagingError(f"{error.filename}: {error.strerror}. Run make plugins") from error
    if not found:
        raise PackagingError(f"{tree}/META names no version: it is no source of Slurm")
    return found[1]


def this_release(wanted: str = "") -> Release:
    """Returns the release to package, from the environment that the Makefile sets."""
    places = {name: os.environ[name] for name in PLACES}
    venv = Path(f"{os.environ['DESTDIR']}{places['LIBDIR']}/venv")
    try:
        (library,) = venv.glob("lib/python3.*")
    except ValueError:
        raise PackagingError(f"{venv} is no installation of Python packages: run make packages-tree") from None
    python = library.name.removeprefix("python")
    if not Path(f"/usr/bin/python{python}").exists():
        raise PackagingError(f"/usr/bin/python{python} does not exist: packages are made with the system's Python")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 0)
    slurm = slurm_release(Path(os.environ["PLUGIN_BUILD"]))
    return Release(version(wanted), slurm, python, places, epoch)
