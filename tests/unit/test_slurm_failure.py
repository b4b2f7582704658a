# SPDX-License-Identifier: Apache-2.0
"""What is said of a command of Slurm's that failed."""

from __future__ import annotations

from hami_hpc.slurm.failure import failed

TRY = "scontrol: error: get_addr_info: getaddrinfo() failed: Name or service not known: attempt number {}\n"
LAST = "scontrol: error: Unable to establish control machine address\n"


def test_a_few_lines_are_all_kept_each_once() -> None:
    printed = "squeue: error: a.\nsqueue: error: a.\n\n  slurm_load_jobs error: b\n"
    said = "squeue -h failed: squeue: error: a; slurm_load_jobs error: b. Is slurmctld up (scontrol ping)?"
    assert str(failed(("squeue", "-h"), printed)) == said


def test_of_one_that_tries_again_and_again_the_first_and_the_last_line_are_kept() -> None:
    text = str(failed(("scontrol", "ping"), "".join(TRY.format(n) for n in range(11)) + LAST))
    assert text.count("attempt number") == 1
    assert text.endswith(
        "; ...; scontrol: error: Unable to establish control machine address. Is slurmctld up (scontrol ping)?"
    )


def test_a_cluster_without_slurmdbd_is_not_told_to_look_at_slurmctld() -> None:
    printed = (
        "You are not running a supported accounting_storage plugin\nOnly 'accounting_storage/slurmdbd' is supported.\n"
    )
    text = str(failed(("sacctmgr", "list", "qos"), printed))
    assert text == "sacctmgr list qos failed: this cluster has no slurmdbd (AccountingStorageType of slurm.conf)"


def test_a_node_that_is_not_there_is_no_reason_to_look_at_slurmctld() -> None:
    for said in ("Node gpu7 not found\n", "scontrol: error: Invalid node name specified\n"):
        assert str(failed(("scontrol", "show", "node", "gpu7"), said)).endswith(
            ". sinfo -N lists the nodes by their names in slurm.conf"
        )


def test_a_machine_without_slurm_conf_is_told_so_and_no_more() -> None:
    said = "scontrol: error: DNS SRV lookup failed\nscontrol: fatal: Could not establish a configuration source\n"
    assert str(failed(("scontrol",), said)) == (
        "scontrol failed: there is no slurm.conf here, nor does a name server know one. Set SLURM_CONF"
    )


def test_a_command_that_said_nothing() -> None:
    assert str(failed(("scontrol",), " \n")) == "scontrol failed: it said nothing. Is slurmctld up (scontrol ping)?"
