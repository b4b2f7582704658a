# SPDX-License-Identifier: Apache-2.0
"""tests/versions/matrix.py: what ran on which release, also where a test fails, hangs or is for another release."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from node_testbed import ROOT


@pytest.fixture
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "tests/versions/matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_are_run_one_by_one_and_counted(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "test_good.py": "def test_a(): pass\ndef test_b(): pass\n",
        "test_bad.py": "def test_a(): pass\ndef test_b(): assert False\n",
        "test_broken.py": "import no_such_module\n",
        "test_empty.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    results = tmp_path / "results" / "24.11.tsv"
    monkeypatch.chdir(tmp_path)
    assert matrix.main(["run", str(results), *texts]) == 1
    release = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    head, *lines = results.read_text().splitlines()
    assert head == f"slurm\t{release}"
    assert [line.rsplit("\t", 1)[0] for line in lines] == [
        "test_good.py\t2\t0",
        "test_bad.py\t1\t1",
        "test_broken.py\t0\t1",
        "test_empty.py\t0\t0",
    ]
    assert "=== test_bad.py" in (tmp_path / "results" / "24.11.log").read_text()
    (tmp_path / "test_hangs.py").write_text("import time\ndef test_a(): time.sleep(60)\n")
    monkeypatch.setattr(matrix, "LIMIT_S", 2)
    assert matrix.main(["run", str(results), "test_hangs.py"]) == 1
    assert results.read_text().splitlines()[1:] == ["test_hangs.py\t0\t1\t2"], "those of this run alone"
    capsys.readouterr()


def test_one_table_has_all_releases(matrix: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first.write_text("slurm\t22.05.8\ntests/cluster/test_b.py\t3\t0\t9\ntests/cluster/test_a.py\t2\t1\t9\n")
    second.write_text("slurm\t26.05.5\ntests/cluster/test_b.py\t3\t0\t9\ntests/cluster/test_c.py\t0\t0\t0\n")
    assert matrix.main(["table", str(first), str(second)]) == 0
    assert capsys.readouterr().out == (
        "| tests | 22.05.8 | 26.05.5 |\n|---|---|---|\n| a | 2, 1 failed | - |\n| b | 3 | 3 |\n| c | - | none |\n"
    )
    assert matrix.main(["table"]) == 2
