# SPDX-License-Identifier: Apache-2.0
"""Every hami-hpc command in docs/accounting.md runs, and so do the scripts of accounting/."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from node_testbed import Node

from hami_hpc.cli import main
from hami_hpc.cli.options import note_old

from .samples import HOUR, ONE_H200, VGPU_HALF, Job, export_text
from .test_efficiency import _record, _spool

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
COLLECTED = "/var/lib/hami-hpc/collected"
T0 = 1_792_396_800  # 2026-10-19T08:00:00Z
RATES = """version = 1
issuer = ["Computing Centre"]
[[rates]]
model = "h200"
per_gpu_hour = 2.50
[[credits]]
id = "grant-4711"
account = "physics"
amount = 1200
note = "Grant 4711"
"""
# Values for what an inline command leaves open.
PLACEHOLDERS = {"ACCOUNT": "physics", "DIR": "/", "FILE": "file", "JOB": "4711"}


def _examples() -> list[list[str]]:
    """The words of each command line in the document's blocks of shell."""
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCUMENT, flags=re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("hami-hpc ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def _inline() -> list[str]:
    """The commands within the document's sentences and tables."""
    return sorted(set(re.findall(r"`hami-hpc ([a-z][^`]*)`", DOCUMENT)))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node and login node in one, with job 4711 and Slurm's commands: the directory that commands run in."""
    node = Node.make(tmp_path / "node")
    assert node.prolog(4711) == 0
    (node.root / "rates.toml").write_text(RATES, encoding="utf-8")
    jobs = [
        Job(4711, T0, T0, T0 + 2 * HOUR, VGPU_HALF, "physics", "games"),
        Job(4712, T0, T0, T0 + HOUR, ONE_H200, "vision", "news"),
    ]
    (tmp_path / "slurmdbd").write_text(export_text(jobs), encoding="utf-8")
    (tmp_path / "export.txt").write_text(export_text(jobs), encoding="utf-8")
    _spool(tmp_path / "collected", _record(4711, T0 + 1, T0 + 2 * HOUR))
    programs = {
        "sacct": f"cat {tmp_path}/slurmdbd",
        "sreport": "echo 'c1|physics|games|gres/vgpu|7200'; echo 'c1|vision|news|gres/gpu|3600'",
        "sinfo": "echo node1",
        "sacctmgr": "printf 'c1|root||\nc1|physics|root|\nc1|physics||games\n'",
        "rsync": f'for target; do :; done; mkdir -p "$target"; cp {tmp_path}/collected/*.json "$target"',
        "hami-hpc": f'exec {sys.executable} -m hami_hpc.cli "$@"',
    }
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(node.config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_of_the_document_run_one_after_the_other(machine: Path) -> None:
    examples = _examples()
    assert len(_inline()) > 10
    assert {words[0] for words in examples} == {
        *(
            "ingest",
            "store",
            "collect-usage",
            "bill",
            "check-bill",
            "invoice",
            "balances",
            "ledger",
            "balance",
            "efficiency",
            "report",
            "usage",
        )
    }
    printed = {}
    for words in examples:
        given = [word.replace(COLLECTED, str(machine / "collected")) for word in words]
        result = CliRunner().invoke(main, given)
        assert result.exit_code == 0, f"{words}: {result.output}"
        assert "note: " not in result.stderr
        printed[" ".join(words)] = result.stdout
    assert (
        "physics,h200,vgpu,1,1.0000,2.50"
        in printed["bill --start 2026-10-19 --end 2026-10-26 --by account,model,mode --format csv"]
    )
    assert "2 agree to the second" in printed["check-bill --month 2026-10"]
    assert "would have sufficed" in printed["efficiency 4711"]
    assert "Job 4711, running for" in printed["usage 4711"]
    assert not list((machine / "collected").iterdir())
    assert {path.suffix for path in (machine / "invoices").iterdir()} == {".html", ".pdf", ".csv"}
    assert (machine / "report.html").exists()


@pytest.mark.parametrize("text", _inline())
def test_a_command_within_a_sentence_is_one_that_hami_hpc_understands(text: str) -> None:
    name, *words = (PLACEHOLDERS.get(word, word) for word in shlex.split(text))
    context = click.Context(main, **main.context_settings)
    command = main.get_command(context, name)
    assert command is not None, name
    if words:
        command.make_context(name, words, context)


def test_the_scripts_for_timers_run_and_use_todays_spelling(machine: Path) -> None:
    environment = {**os.environ, "HAMI_HPC_COLLECTED": str(machine / "nodes"), "HAMI_HPC_REPORTS": str(machine / "out")}
    environment["HAMI_HPC_RATES"] = str(machine / "node" / "rates.toml")
    for script in (("ingest", "--since", "2026-10-01"), ("ingest",), ("month", "2026-10")):
        done = subprocess.run(
            ["sh", str(ROOT / "accounting" / script[0]), *script[1:]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "note: " not in done.stderr
    assert not list((machine / "nodes").rglob("*.json"))
    made = {path.name: path.read_text(encoding="utf-8") for path in (machine / "out" / "2026-10").iterdir()}
    assert sorted(made) == ["bill.csv", "check.txt", "invoices-draft.txt", "report.html"]
    assert "physics,games,h200,vgpu,std,1,1.0000,2.50" in made["bill.csv"]
    assert "2 agree to the second" in made["check.txt"]
    assert "No usage records were collected" not in made["report.html"]


def test_a_note_on_an_old_spelling_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    note_old("bill --check", "check-bill")
    assert capsys.readouterr() == ("", "note: bill --check is now called check-bill\n")
