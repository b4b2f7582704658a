# SPDX-License-Identifier: Apache-2.0
"""An RPM spec of the parts, and the RPMs where rpmbuild is there. Scriptlets are the Debian packages' scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hami_packages.debian import TEXTS
from hami_packages.release import ROOT, Release

# Scriptlet -> the Debian script with its text, and its $1 there, from rpm's count of installed versions.
SCRIPTLETS = {
    "pre": ("preinst", "set -- install"),
    "post": ("postinst", 'if [ "$1" -gt 1 ]; then set -- configure before; else set -- configure ""; fi'),
    "preun": ("prerm", 'if [ "$1" -gt 0 ]; then set -- upgrade; else set -- remove; fi'),
    "postun": ("postrm", 'if [ "$1" -gt 0 ]; then set -- upgrade; else set -- remove; fi'),
}
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Written by make rpm. The files are complete: nothing is compiled, stripped or compressed here.
%global debug_package %{nil}
%global __os_install_post %{nil}
%global _build_id_links none
%global _python_bytecompile_extra 0

Name: hami-hpc
Version: @VERSION@
Release: slurm@SLURM@
Summary: Slices of GPUs for Slurm
License: Apache-2.0 AND GPL-2.0-or-later
AutoReqProv: no

%description
Slices of GPUs for Slurm, built for Slurm @SLURM@.
"""


def requirements(part: str, release: Release) -> list[str]:
    """Returns what a package requires. SchedMD's own packages are slurm, with the plugins, and slurm-slurmd."""
    same = "%{version}-%{release}"
    return {
        "common": [f"/usr/bin/python{release.python}"],
        "slurm": [f"hami-hpc-common = {same}", f"slurm = {release.slurm}"],
        "node": [f"hami-hpc-common = {same}", f"hami-hpc-slurm = {same}", f"slurm-slurmd = {release.slurm}"],
        "accounting": [f"hami-hpc-common = {same}"],
    }[part]


def _scriptlets(part: str, release: Release) -> str:
    text = ""
    for name, (script, arguments) in SCRIPTLETS.items():
        source = ROOT / "scripts/hami_packages/maintainer" / f"{part}.{script}"
        if source.exists():
            body = release.fill(source.read_text(encoding="utf-8")).replace("%", "%%")
            text += f"\n%{name} {part}\n{arguments}\n{body.partition(chr(10))[2]}"
    return text


def _files(part: str, trees: Path) -> str:
    names = []
    for path in sorted((trees / part).rglob("*")):
        name = f"/{path.relative_to(trees / part)}".replace(" ", "?")  # a pattern: to rpm a blank ends a name
        if path.is_dir() and not path.is_symlink():
            names += [f"%dir {name}"] if "/hami-hpc" in name else []
        else:
            names.append(name)
    lines = "".join(f"{name}\n" for name in names)
    return f"\n%files {part}\n%defattr(-,root,root,-)\n{lines}"


def spec(parts: tuple[str, ...], trees: Path, release: Release) -> str:
    """Returns the spec of these parts, whose files are in `trees`."""
    text = release.fill(HEAD)
    for part in parts:
        needs = "".join(f"Requires: {name}\n" for name in requirements(part, release))
        summary = f"Slices of GPUs for Slurm: {TEXTS[part]}"
        text += f"\n%package {part}\nSummary: {summary}\n{needs}\n%description {part}\n{summary}.\n"
    text += "\n%install\n" + "".join(f"cp -a '{trees / part}/.' %{{buildroot}}\n" for part in parts)
    return text + "".join(_scriptlets(part, release) + _files(part, trees) for part in parts)


def build(parts: tuple[str, ...], trees: Path, target: Path, release: Release) -> list[Path]:
    """Writes the spec into `target`, and the RPMs where rpmbuild is installed. Returns their paths."""
    target.mkdir(parents=True, exist_ok=True)
    path = target / "hami-hpc.spec"
    path.write_text(spec(parts, trees.absolute(), release), encoding="utf-8")
    if shutil.which("rpmbuild") is None:
        print("packages: rpmbuild is not installed (Debian's package rpm), so there is the spec alone")
        return [path]
    with tempfile.TemporaryDirectory(dir=trees) as folder:
        command = ("rpmbuild", "--quiet", "--nodeps", "-bb", "--define", f"_topdir {folder}", str(path))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
        subprocess.run(command, check=True, env=environment)
        made = sorted((Path(folder) / "RPMS").rglob("*.rpm"))
        return [path, *(Path(shutil.copy2(file, target)) for file in made)]
