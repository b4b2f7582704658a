# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog use in place of slow imports, in whole runs: they work with it and import nothing slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.mounting import can_mount
from node_testbed import ROOT, Node, job_environment

from hami_hpc.core import plain_toml
from hami_hpc.errors import NodeError
from hami_hpc.node.config import load_settings


def test_settings_that_are_not_plain_are_read_all_the_same(node: Node) -> None:
    path = node.root / "hami-hpc.toml"
    before = load_settings(str(path))
    path.write_text(path.read_text().replace('gpu_models = ["h200"]', "gpu_models = [\n  'h200',\n]"))
    assert plain_toml.read(path.read_text()) is None
    assert load_settings(str(path)) == before
    assert node.run("prolog", job_environment(7)) == (0, "")
    path.write_text("version = 1\nversion = 2\n")
    with pytest.raises(NodeError, match="is not valid TOML: Cannot overwrite a value"):
        load_settings(str(path))


SABOTAGE = {
    "nothing": "",
    "there is no _sqlite3": "sys.modules['_sqlite3'] = None",
    "_sqlite3 lacks a name": "import _sqlite3, sqlite3; del _sqlite3.SQLITE_NOTADB",
}


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_prolog_and_epilog_work_with_sqlites_c_module_and_with_the_package(
    node: Node, tmp_path: Path, sabotage: str
) -> None:
    """Where the C module is not what it was, the package is imported."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    if "no _sqlite3" in sabotage:  # as if the package of a later Python had it under another name
        (folder / "sqlite3.py").write_text(
            "import sys, importlib\ndel sys.modules['_sqlite3']\nfrom _sqlite3 import *\nimport _sqlite3\n"
            "vars().update({name: value for name, value in vars(_sqlite3).items() if name[:2] != '__'})\n"
        )
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; sys.path.append(sys.argv[2]);"
        f"{SABOTAGE[sabotage]}\n"
        "from hami_hpc.stages import epilog, prolog\n"
        "from hami_hpc.node.sqlite import sqlite3\n"
        "status = prolog.main(sys.argv[3:]) or epilog.main(sys.argv[3:])\n"
        "print(sqlite3.__name__)\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(folder), str(ROOT), *node.arguments]
    done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == ("_sqlite3" if sabotage == "nothing" else "sqlite3")
    assert node.spooled() == ["7.json"]
    node.assert_nothing_is_held()


def test_a_prolog_and_an_epilog_import_no_slow_module(node: Node) -> None:
    """Of a whole run, the second of a job id too: its record of usage is there already."""
    slow = (
        "typing re enum dataclasses inspect ast tomllib json datetime sqlite3 pathlib argparse glob subprocess "
        "asyncio click jinja2 pandas numpy pynvml"
    ) + (" syslog" if can_mount() else "")  # a node that cannot bound usage files warns at each job
    code = (
        "import sys; sys.path.append(sys.argv[1]); from hami_hpc.stages import epilog, prolog\n"
        "assert [stage.main(sys.argv[3:]) for stage in (prolog, epilog, prolog, epilog)] == [0] * 4\n"
        "print(' '.join(name for name in sys.argv[2].split() if name in sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), slow, *node.arguments]
    done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert len(node.spooled()) == 2


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")
