# SPDX-License-Identifier: Apache-2.0
"""The agent against hostile users and unlucky administrators: whom it must not blame, and what must not stop it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hami_hpc.agent.processes import ASK, Processes
from hami_hpc.agent.slurm_port import parse_listpids, run_command


def test_a_process_of_which_slurm_does_not_say_the_job_is_not_of_no_job() -> None:
    """Else a missing scontrol, or a step that does not answer, makes each process of a job one of no job."""
    answers: list[dict[int, int] | None] = [None] * (3 * ASK)
    with subprocess.Popen(["sleep", "100"]) as process:
        processes = Processes(lambda: answers.pop(0))
        try:
            jobs = [processes.look([process.pid])[process.pid][1].job_id for _ in range(3 * ASK)]
            assert set(jobs) == {-1}
            answers.append({process.pid: 7})
            assert processes.look([process.pid])[process.pid][1].job_id == 7
        finally:
            process.kill()


@pytest.mark.parametrize("text", ["", "scontrol: error: nothing\n", "12 7\n13 8\n", "\0\xff"])
def test_rubbish_is_no_list_of_processes(text: str) -> None:
    assert parse_listpids(text) is None


def test_the_list_of_a_node_without_steps_is_empty_and_that_of_a_step_that_does_not_answer_unknown(
    tmp_path: Path,
) -> None:
    program = tmp_path / "scontrol"
    head = "#!/bin/sh\nprintf 'PID JOBID STEPID LOCALID GLOBALID\\n'; "
    for said, expected in (("No job steps exist on this node.", {}), ("Unable to connect to StepId=7.0", None)):
        program.write_text(f"{head}echo '{said}' >&2; exit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        assert parse_listpids(run_command((str(program), "listpids"), 5) or "") == expected
