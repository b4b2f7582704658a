# SPDX-License-Identifier: Apache-2.0
"""What Slurm's commands say. For a person's commands and timers: prolog and epilog never ask the controller."""

from __future__ import annotations

import re
import socket
import subprocess

from hami_hpc.errors import NodeError

TIMEOUT_S = 60
# Every state in which a job still holds what it was given on the node.
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,SIGNALING,STAGE_OUT,STOPPED"


def _output(*command: str) -> str:
    """Standard output. NodeError with the command and its complaint when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"{command[0]} cannot be run ({error}). Is Slurm installed here and slurmctld up?") from error
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise NodeError(f"{' '.join(command)} failed: {complaint}. Is slurmctld up (scontrol ping)?")
    return done.stdout


def node_name() -> str:
    """This host's NodeName, which need not be its host name. NodeError when slurm.conf has none for it, or several."""
    host = socket.gethostname().partition(".")[0]
    names = _output("scontrol", "show", "aliases", host).split()
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise NodeError(
            f"slurm.conf has {found} for host {host}; say which node this is with --node NAME or $HAMI_HPC_NODE"
        )
    return names[0]


def running_jobs(node: str) -> frozenset[int]:
    """Ids of the jobs that hold something on `node`. NodeError when the controller does not answer."""
    # --all: jobs of hidden partitions hold GPUs too. --local: job ids of another cluster say nothing here.
    text = _output(
        "squeue", "--all", "--local", "--noheader", f"--nodelist={node}", f"--states={HOLDING}", "--format=%A"
    )
    return frozenset(int(word) for word in text.split())


def configuration() -> dict[str, str]:
    """slurm.conf as the controller has it (`scontrol show config`). NodeError when it does not answer."""
    pairs = (line.partition("=") for line in _output("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def version_of(text: str) -> int:
    """SLURM_VERSION_NUMBER of `22.05.8`. NodeError for text of another form."""
    parts = text.split("-")[0].split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise NodeError(f"Slurm's version '{text}' is not understood")
    major, minor, micro = (int(part) for part in parts)
    return major << 16 | minor << 8 | micro


def version_text(number: int) -> str:
    """`22.05.8` of a SLURM_VERSION_NUMBER."""
    return f"{number >> 16}.{number >> 8 & 0xFF:02d}.{number & 0xFF}"


def gpus_by_type(node: str) -> dict[str, int]:
    """gres/gpu of a node by type, those without one under the empty text. NodeError for a node Slurm does not know."""
    text = _output("scontrol", "--oneliner", "show", "node", node)
    gres = re.search(r" Gres=(\S+)", text)
    # The commas inside of (S:0,2) separate sockets, not gres.
    parts = re.sub(r"\([^)]*\)", "", gres[1]).split(",") if gres else []
    found: dict[str, int] = {}
    for part in parts:
        match = re.fullmatch(r"gpu(?::([^:]+))?:(\d+)", part)
        if match is not None:
            found[match[1] or ""] = found.get(match[1] or "", 0) + int(match[2])
    return found


def qos_names() -> frozenset[str]:
    """The QoS that slurmdbd knows. NodeError when it does not answer."""
    text = _output("sacctmgr", "--noheader", "--parsable2", "--readonly", "list", "qos", "format=name")
    return frozenset(text.split())
