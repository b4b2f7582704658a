# SPDX-License-Identifier: Apache-2.0
"""What `make check-slurm-releases` reads in Slurm's source and in the plugins (tests/versions/releases.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import releases

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "build" / "slurm-plugins"


def test_the_newest_tag_of_each_release_from_22_05_on() -> None:
    names = ["slurm-21-08-8-2", "slurm-22-05-2-1", "slurm-22-05-11-1", "slurm-23-02-0-0rc1", "slurm-23-02-0-1", "other"]
    listed = "".join(f"0123abcd\trefs/tags/{name}\n" for name in names)
    assert releases.newest_tags(listed) == ["slurm-22-05-11-1", "slurm-23-02-0-1"]


def test_the_plugins_have_what_the_installed_slurm_lists() -> None:
    lists = releases.required(Path((PLUGINS / "slurm-tree").read_text().strip()))
    assert lists.keys() == set(releases.KINDS)
    for kind, functions in lists.items():
        plugins = sorted(PLUGINS.glob(f"{kind}_*.so"))
        assert plugins, kind
        for plugin in plugins:
            assert functions <= releases.symbols(plugin, "defined"), plugin.name


def test_a_function_that_a_plugin_lacks_and_one_that_slurm_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, build = tmp_path / "src" / "interfaces", tmp_path / "build"
    source.mkdir(parents=True)
    build.mkdir()
    lists = 'static const char *syms[] = {\n\t"task_p_one",\n\t"task_p_new"\n};\n'
    other = 'static const char *syms[] = { "gres_p_x" };\nstatic const char *syms[] = { "cli_filter_p_x" };\n'
    (source / "task.c").write_text(
        lists + other + "strong_alias(info, slurm_info);\nextern int\nslurm_load_jobs (int x)\n{\n}\n"
    )
    plugin = "void slurm_info(void); void slurm_load_jobs(void); void slurm_gone(void); void task_p_one(void);\n"
    plugin += "void task_p_one(void) { slurm_info(); slurm_load_jobs(); slurm_gone(); }\n"
    (tmp_path / "plugin.c").write_text(plugin)
    command = ["gcc", "-shared", "-fPIC", str(tmp_path / "plugin.c"), "-o", str(build / "task_x.so")]
    subprocess.run(command, check=True)
    made = subprocess.CompletedProcess([], 0, "", "")
    genuine = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **more: made if command[0] == "make" else genuine(command, **more)
    )
    assert list(releases.problems(tmp_path, build)) == ["task_x.so lacks task_p_new", "task_x.so uses slurm_gone"]
