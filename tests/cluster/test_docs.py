# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/researchers.md and docs/upgrade.md run as they are written, one after the other."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from harness import jobs
from harness.config import NODE
from harness.layout import CHECKOUT, Layout

sys.path.insert(0, str(CHECKOUT / "tests" / "docs"))
from command_plan import CLUSTER_DOCUMENTS, runner
from documents import blocks

USER = "games"
# What the scripts in the documents run: a program that uses CUDA.
PROGRAM = "import subprocess\nsubprocess.run(['slice', '--use', '16'], check=True)\n"
# doctor finds fault with a cluster without cgroups, and with nothing else: test_doctor_live.py.
STATUS = {"hami-hpc resize 4712 mem=100G": 1, "hami-hpc doctor": 3}


@dataclass
class Reader:
    """Somebody who follows a document. Job 4711 waits and 4712 runs when a command names them."""

    layout: Layout
    numbers: dict[str, int] = field(default_factory=dict)

    def user(self, command: str) -> jobs.Done:
        return jobs.run_as(self.layout, USER, ("bash", "-c", command), timeout_s=90)

    def job(self, placeholder: str) -> int:
        if placeholder not in self.numbers:
            waits = ("--hold",) if placeholder == "4711" else ()
            number = jobs.submit(self.layout, USER, *waits, "--gres=vgpu:mem=8G,cores=10", script="sleep 120")
            jobs.wait_for_state(self.layout, number, "PENDING" if waits else "RUNNING")
            self.numbers[placeholder] = number
        return self.numbers[placeholder]

    def run(self, command: str) -> str:
        """Runs one command line, as root what is an administrator's, and returns what it printed."""
        given = re.sub(r"\b471[12]\b", lambda match: str(self.job(match[0])), command).replace("gpu01", NODE)
        if command.startswith("hami-hpc") or "nodename=" in command:
            path = f"{CHECKOUT}/.venv/bin:{jobs.user_environment(self.layout, 'root')['PATH']}:/usr/sbin:/sbin"
            extra = {"PATH": path, "HAMI_HPC_CONFIG": str(self.layout.site_config), "HAMI_HPC_NODE": NODE}
            done = jobs.run_as(self.layout, "root", ("bash", "-c", given), extra)
        else:
            done = self.user(given)
        assert done.status == STATUS.get(command, 0), f"{given}: {done.text}"
        for number in re.findall(r"Submitted batch job (\d+)", done.out):
            jobs.wait_for_state(self.layout, number, "COMPLETED")
        return done.text


def scripts(document: str) -> Sequence[tuple[str, str]]:
    """(name, text) of the document's scripts: the second line says the name."""
    texts = [block.text for block in blocks(document) if block.is_script]
    return [(text.splitlines()[1].removeprefix("# "), text) for text in texts]


@pytest.mark.parametrize("document", CLUSTER_DOCUMENTS)
def test_a_documents_commands_run(restored: Layout, document: str) -> None:
    cluster = restored  # a node that a failing command leaves drained is put back
    reader = Reader(cluster)
    for name in ("train.py", "evaluate.py"):
        jobs.write_script(cluster, USER, name, PROGRAM)
    for name, text in scripts(document):
        jobs.write_script(cluster, USER, name, text)
    commands = [command for block in blocks(document) for command in block.commands()]
    mine = [command for command in commands if runner(document, command) == "cluster"]
    assert len(mine) >= 5
    printed = {command: reader.run(command) for command in mine}
    if document == "docs/researchers.md":
        check_what_researchers_read(cluster, reader, printed)


def check_what_researchers_read(cluster: Layout, reader: Reader, printed: dict[str, str]) -> None:
    for command, words in (
        ("srun --gres=vgpu:mem=8G,cores=50 python3 train.py", "8192 MiB in total"),
        ("salloc --gres=vgpu:mem=4G srun python3 train.py", "4096 MiB in total"),
        ("scontrol show job -d 4711", "gres:vgpu_mem:8192"),
        ("hami-hpc usage 4712", "of 8,192 MiB now"),
    ):
        assert words in printed[command]
    facts = jobs.job_facts(cluster, reader.numbers["4711"])
    assert facts["JobState"] == "CANCELLED"
    assert "gres:vgpu_mem:4096" in facts["TresPerNode"]
    (steps,) = re.findall(r"Submitted batch job (\d+)", printed["sbatch steps.sh"])
    seen = re.findall(r"(\d+) MiB in total", jobs.output(cluster, USER, steps))
    assert sorted(seen) == ["3072", "5120"]
