# SPDX-License-Identifier: Apache-2.0
"""slurm-plugins/Makefile compiles again what was compiled from the headers of another Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Takes the place of the compiler: notes what it would have compiled, and makes the output newer than all sources.
COMPILER = """\
#!/bin/sh
for word; do
	[ "$last" = -o ] && output=$word
	[ "$last" = -c ] && echo "${word##*/}" >>"$NOTES"
	last=$word
done
touch "$output"
"""


class Build:
    """A build folder of the plugins, and trees that pass for the source of the installed Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "cc").write_text(COMPILER)
        (folder / "cc").chmod(0o755)

    def tree(self, name: str) -> Path:
        version = subprocess.run(("slurmd", "-V"), capture_output=True, text=True, check=True).stdout.split()[-1]
        tree = self.folder / name
        tree.mkdir()
        (tree / "META").write_text(f"  Version:\t{version}\n")
        (tree / "config.h").touch()
        return tree

    def compiled(self, tree: Path) -> list[str]:
        notes = self.folder / "notes"
        notes.write_text("")
        command = ("make", "-s", "-C", str(ROOT / "slurm-plugins"), f"BUILD={self.folder}/out", f"CC={self.folder}/cc")
        environment = os.environ | {"NOTES": str(notes), "SLURM_SRC": str(tree)}
        subprocess.run(command, env=environment, check=True)
        without_slurm = ("build_info.c", "program.c")
        return sorted(name for name in notes.read_text().split() if name not in without_slurm)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_plugins_are_compiled_again_for_another_slurm_and_only_then(build: Build) -> None:
    first, second = build.tree("first"), build.tree("second")
    everything = build.compiled(first)
    assert everything.count("gres_counted.c") == 4
    assert {"spank_hami_hpc.c", "task_hami_hpc.c", "cli_filter_hami_hpc.c"} <= set(everything)
    assert build.compiled(first) == []
    assert build.compiled(second) == everything
    newer = (build.folder / "out" / "gres_vgpu.o").stat().st_mtime + 5
    os.utime(second / "config.h", (newer, newer))
    assert build.compiled(second) == everything
