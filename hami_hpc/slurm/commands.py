# SPDX-License-Identifier: Apache-2.0
"""Runs Slurm's commands and parses their output. Not for prolog and epilog, which never ask the controller."""

from __future__ import annotations

import re
import socket
import subprocess

from hami_hpc.errors import NodeError

TIMEOUT_S = 60
# Every state in which a job still holds its resources on the node.
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,SIGNALING,STAGE_OUT,STOPPED"


def _output(*command: str) -> str:
    """Returns a command's standard output. Raises NodeError with the command and its error message when it fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"{command[0]} cannot be run ({error}). Is Slurm installed here and slurmctld up?") from error
    if process.returncode != 0:
        message = (process.stderr or process.stdout).strip().replace("\n", "; ")
        raise NodeError(f"{' '.join(command)} failed: {message}. Is slurmctld up (scontrol ping)?")
    return process.stdout


def node_name() -> str:
    """Returns this host's NodeName, which may differ from its host name. Raises NodeError for no or several names."""
    host = socket.gethostname().partition(".")[0]
    names = _output("scontrol", "show", "aliases", host).split()
    if len(names) != 1:
        listed = ", ".join(names) or "no NodeName"
        raise NodeError(f"slurm.conf has {listed} for host {host}; name this node with --node NAME or $HAMI_HPC_NODE")
    return names[0]


def running_jobs(node: str) -> frozenset[int]:
    """Returns the ids of the jobs that hold resources on `node`. Raises NodeError when slurmctld does not answer."""
    # --all: jobs of hidden partitions hold GPUs too. --local: job ids of another cluster mean other jobs.
    text = _output(
        "squeue", "--all", "--local", "--noheader", f"--nodelist={node}", f"--states={HOLDING}", "--format=%A"
    )
    return frozenset(int(word) for word in text.split())


def configuration() -> dict[str, str]:
    """Returns slurm.conf as slurmctld has it (`scontrol show config`). Raises NodeError when it does not answer."""
    pairs = (line.partition("=") for line in _output("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def version_of(text: str) -> int:
    """Returns the SLURM_VERSION_NUMBER of `22.05.8`. Raises NodeError for text of another form."""
    parts = text.split("-")[0].split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise NodeError(f"Slurm's version '{text}' is not understood")
    major, minor, micro = (int(part) for part in parts)
    return major << 16 | minor << 8 | micro


def version_text(number: int) -> str:
    """Returns a SLURM_VERSION_NUMBER as text: `22.05.8`."""
    return f"{number >> 16}.{number >> 8 & 0xFF:02d}.{number & 0xFF}"


def gpus_by_type(node: str) -> dict[str, int]:
    """Returns a node's GPUs by gres type ("" for no type). Raises NodeError for a node that Slurm does not know."""
    text = _output("scontrol", "--oneliner", "show", "node", node)
    gres = re.search(r" Gres=(\S+)", text)
    # The commas in (S:0,2) separate sockets, not gres.
    parts = re.sub(r"\([^)]*\)", "", gres[1]).split(",") if gres else []
    counts: dict[str, int] = {}
    for part in parts:
        match = re.fullmatch(r"gpu(?::([^:]+))?:(\d+)", part)
        if match is not None:
            counts[match[1] or ""] = counts.get(match[1] or "", 0) + int(match[2])
    return counts


def qos_names() -> frozenset[str]:
    """Returns the names of slurmdbd's QoS. Raises NodeError when it does not answer."""
    text = _output("sacctmgr", "--noheader", "--parsable2", "--readonly", "list", "qos", "format=name")
    return frozenset(text.split())
