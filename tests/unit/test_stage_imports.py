# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog use in place of slow imports, in whole runs: they work with it and import nothing slow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.mounting import can_mount
from mig_testbed import MigNode, mig_environment
from mps_testbed import MpsNode
from node_testbed import ROOT, Node, job_environment
from sim_testbed import SIM

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
# Where nothing stands in for functools while the C module is imported.
GENUINE = {
    "functools was imported": "import functools",
    "a Python that was not tried": "sys.version_info = (3, 99, 0)",
    "no class of lru_cache": "import _functools; del _functools._lru_cache_wrapper",
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


@pytest.mark.parametrize("reason", ["", *GENUINE])
def test_the_ledger_works_with_what_stands_in_for_functools_and_without(node: Node, reason: str) -> None:
    code = (
        f"import sys\n{GENUINE.get(reason, '')}\nsys.path.append(sys.argv[1])\n"
        "from hami_hpc.stages import epilog, prolog\n"
        "assert [stage.main(sys.argv[2:]) for stage in (prolog, epilog, prolog, epilog)] == [0] * 4\n"
        "print('functools' in sys.modules)\n"
        "import functools\n"
        "assert functools.lru_cache(2)(len)('abc') == 3 and functools.partial(len, 'ab')() == 2\n"
        "from hami_hpc.node.sqlite import sqlite3\n"
        "connection = sqlite3.connect(':memory:', cached_statements=3)\n"
        "for number in range(20): assert connection.execute(f'SELECT {number}, ?', (1,)).fetchone() == (number, 1)\n"
        "connection.execute('CREATE TABLE t (x)'); connection.execute('INSERT INTO t VALUES (1)')\n"
        "assert connection.execute('SELECT x FROM t').fetchall() == connection.execute('SELECT x FROM t').fetchall()\n"
        "connection.close()"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), *node.arguments]
    done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(bool(reason))]
    assert len(node.spooled()) == 2


SLOW = (
    "typing re enum dataclasses inspect ast tomllib json datetime sqlite3 pathlib argparse glob subprocess shutil "
    "signal asyncio click jinja2 pandas numpy ctypes pynvml "
    "collections contextlib functools operator itertools types keyword reprlib"
)


def imported(arguments: list[str], environment: dict[str, str], slow: str) -> str:
    """Returns which of these modules are imported by two whole runs, the second of a job id that has a record."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); from hami_hpc.stages import epilog, prolog\n"
        "assert [stage.main(sys.argv[3:]) for stage in (prolog, epilog, prolog, epilog)] == [0] * 4\n"
        "print(' '.join(name for name in sys.argv[2].split() if name in sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), slow, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_prolog_and_an_epilog_import_no_slow_module(node: Node) -> None:
    slow = SLOW + (" syslog" if can_mount() else "")  # a node that cannot bound usage files warns at each job
    assert imported(node.arguments, job_environment(7), slow) == ""
    assert len(node.spooled()) == 2


@pytest.mark.parametrize("has_partitions", [False, True])
def test_those_of_a_job_with_mps_import_none_either(mps_node: MpsNode, has_partitions: bool) -> None:
    if has_partitions:
        mps_node.set_driver()
    assert imported(mps_node.arguments, mps_node.environment(7), SLOW) == ""
    mps_node.assert_no_mps()
    assert len(mps_node.spooled()) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
def test_those_of_a_job_with_mig_import_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = MigNode.make(tmp_path, monkeypatch)
    simulation = {"HAMI_SIM": str(bed.machine.directory), "LD_LIBRARY_PATH": str(SIM)}
    assert imported(bed.node.arguments, mig_environment(7) | simulation, SLOW) == ""
    assert bed.instances() == ()
    assert len(bed.node.spooled()) == 2


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")
