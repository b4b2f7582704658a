# SPDX-License-Identifier: Apache-2.0
"""What tests of a job with two slices on a node share: what slurmctld answers of it, its stages, its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import Node, pair_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.node import drain
from hami_hpc.slurm import job_shards
from hami_hpc.stages import common, several_gpus
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main

SHOWN = (
    "JobId={job} JobName=a\n   TRES=cpu=1\n   JOB_GRES=shard:a:32,shard:b:32\n"
    "     Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}\n"
)
BOTH = "shard:a:32(IDX:0),shard:b:32(IDX:1)"


def replace_controller(monkeypatch: pytest.MonkeyPatch, folder: Path, bound_s: float, silent_s: float) -> Controller:
    """Has stages ask a Controller in `folder`: for `bound_s` one that answers, and for `silent_s` one that does not."""
    made = Controller(folder)
    monkeypatch.setattr(drain, "find_scontrol", lambda: str(made.folder / "scontrol"))
    monkeypatch.setattr(job_shards, "BOUND_S", bound_s)
    monkeypatch.setattr(job_shards, "PAUSE_S", 0.05)
    monkeypatch.setattr(several_gpus, "SILENT_S", silent_s)
    return made


class Controller:
    """A program in the place of scontrol and squeue, whose answer a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o755)
        self.answer = folder / "answer"
        self.asked = folder / "asked"
        self.write('cat "${0%/*}/answer"')
        self.has_here(7)
        self.shows(7, BOTH)

    def write(self, body: str) -> None:
        (self.folder / "scontrol").write_text(f'#!/bin/sh\necho "$*" >>"${{0%/*}}/asked"\n{body}\n')
        (self.folder / "scontrol").chmod(0o755)

    def has_here(self, *jobs: int, row: str = "7 5 2") -> None:
        """The jobs on this node, by squeue; asked for one job it says `row`: job 7 is task 2 of array 5."""
        listed = " ".join(map(str, jobs))
        answer = f'case $* in *--nodelist*) printf "%s\\n" {listed};; *) echo "{row}";; esac'
        (self.folder / "squeue").write_text(f'#!/bin/sh\necho "squeue $*" >>"${{0%/*}}/asked"\n{answer}\n')
        (self.folder / "squeue").chmod(0o755)

    def shows(self, job: int, gres: str) -> None:
        self.answer.write_text(SHOWN.format(job=job, gres=gres))

    def questions(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


def prolog(node: Node, job: int = 7, **more: str) -> int:
    return prolog_main(node.arguments, pair_environment(job, **more))


def epilog(node: Node, job: int = 7) -> int:
    return epilog_main(node.arguments, pair_environment(job))


def rows(node: Node) -> tuple[Grant, ...]:
    ledger = common.open_ledger(node.settings)
    try:
        return ledger.grants()
    finally:
        ledger.close()


def refusal(node: Node, job: int = 7) -> str:
    path = node.jobs / str(job) / c.FILE_REFUSED
    return path.read_text() if path.exists() else ""
