# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands that print what nobody asked for: bytes that are no UTF-8, other forms, nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hami_hpc.errors import NodeError
from hami_hpc.slurm import commands, job_runs, placeholders
from hami_hpc.slurm.run import output

# As of a job that was submitted with --job-name=$'caf\xe9' or from a folder of such a name.
JOB = r"JobId=7 JobName=caf\351 TimeLimit=UNLIMITED    Nodes=n1 CPU_IDs=0 Mem=1 GRES=shard:5(IDX:1)\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script in place of one of Slurm's commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_a_job_may_have_a_name_of_any_bytes(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    program("scontrol", f"printf '{JOB}'")
    assert "JobName=caf\ufffd " in commands.show_jobs("7")
    program("squeue", """case "$*" in *%K) echo '7|RUNNING|7|N/A' ;; esac""")
    (held,) = placeholders.Node("n1", {"PATH": f"{tmp_path}:/usr/bin:/bin"}).holdings()
    assert (held.job_id, held.slurm_index, held.shards) == (7, 1, 5)


def test_an_error_message_may_have_any_bytes(program: Callable[[str, str], None]) -> None:
    program("scontrol", r"printf 'no such node n\351\n' >&2; exit 1")
    with pytest.raises(NodeError, match=r"scontrol ping failed: no such node n\ufffd\. Is slurmctld up"):
        output(("scontrol", "ping"))
    program("sacctmgr", r"printf 'refused \351' >&2; exit 1")
    with pytest.raises(NodeError, match="Is slurmdbd up"):
        commands.change_accounting(["add", "qos", "x"])


@pytest.mark.parametrize("printed", ["garbage", "-", "7 8x", "²", "9" * 5000])
def test_lists_of_jobs_of_another_form_are_no_jobs_that_ended(
    program: Callable[[str, str], None], printed: str
) -> None:
    program("squeue", f"echo '{printed}'")
    for ask in (commands.running_jobs, commands.suspended_jobs):
        with pytest.raises(NodeError, match=r"squeue --format=%A printed '.{1,80}', which is not understood; run it"):
            ask("n1")


@pytest.mark.parametrize("printed", ["garbage", "7|RUNNING", "x|RUNNING|7|1", "7|RUNNING|7|1|x", "7 RUNNING"])
def test_what_jobs_hold_is_not_known_from_lines_of_another_form(
    tmp_path: Path, program: Callable[[str, str], None], printed: str
) -> None:
    program("squeue", f"""case "$*" in *%K) echo '{printed}' ;; esac""")
    with pytest.raises(NodeError, match="which is not understood"):
        placeholders.Node("n1", {"PATH": f"{tmp_path}:/usr/bin:/bin"}).holdings()


def test_a_node_name_that_is_no_word_of_a_command_line_is_refused(program: Callable[[str, str], None]) -> None:
    program("scontrol", "exit 0")
    with pytest.raises(NodeError, match="scontrol cannot be run"):
        commands.show_node("n\0")


@pytest.mark.parametrize("printed", ["", "slurm", "slurm 22.05", "slurm 22.²5.1", "a\nb"])
def test_a_version_of_another_form_is_refused(program: Callable[[str, str], None], printed: str) -> None:
    program("scontrol", f"echo '{printed}'")
    with pytest.raises(NodeError, match=r"^Slurm's version '.*' is not understood; run scontrol --version to see why$"):
        commands.version()


@pytest.mark.parametrize("printed", ["", "garbage", "Configuration data as of now", "A = b"])
def test_a_configuration_without_a_cluster_is_refused(program: Callable[[str, str], None], printed: str) -> None:
    program("scontrol", f"echo '{printed}'")
    with pytest.raises(NodeError, match=f"scontrol show config printed '{printed}', which is not understood"):
        commands.configuration()


def test_a_sacct_that_says_nothing_is_said_to(program: Callable[[str, str], None]) -> None:
    program("sacct", "kill -9 $$")
    program("squeue", "exit 1")
    with pytest.raises(NodeError, match=r"sacct --jobs=7 failed: it said nothing\. Is slurmdbd up"):
        job_runs.read_runs("7")
