# SPDX-License-Identifier: Apache-2.0
"""Runs Slurm's commands and parses their output. Not for prolog and epilog, whose PATH may have none."""

from __future__ import annotations

import functools
import os
import re
import shlex
import socket
from collections.abc import Sequence

from hami_hpc.core.hostlist import expand, fold
from hami_hpc.errors import NodeError
from hami_hpc.slurm.files import find_slurm_conf
from hami_hpc.slurm.run import completed, not_understood, output

# Every state in which a job still holds its resources on the node.
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,SIGNALING,STAGE_OUT,STOPPED"


def _output(*command: str, time_format: str = "") -> str:
    """Returns a command's standard output. Raises NodeError with the command and its error message when it fails."""
    return output(command, {**os.environ, "SLURM_TIME_FORMAT": time_format} if time_format else None)


def node_name() -> str:
    """Returns this host's NodeName, which may differ from its host name. Raises NodeError for no or several names.

    As slurmd does, it looks for the whole host name first, then for what is before the first dot.
    """
    names = _names_here()
    if len(names) != 1:
        listed, host = ", ".join(names) or "no NodeName", socket.gethostname()
        raise NodeError(f"slurm.conf has {listed} for host {host}; name this node with --node NAME or $HAMI_HPC_NODE")
    return names[0]


def _names_here() -> list[str]:
    host = socket.gethostname()
    names: list[str] = []
    for name in dict.fromkeys((host, host.partition(".")[0])):
        names = names or _output("scontrol", "show", "aliases", name).split()
    return names


def this_node(given: str | None) -> str:
    """Returns the NodeName of this host for a command that changes something here: `given`, else node_name().

    Raises NodeError as node_name does, and for a name that slurm.conf has for another host: jobs of that node would be
    taken for those of this one.
    """
    if not given:
        return node_name()
    try:
        find_slurm_conf(os.environ)
        names = _names_here()
    except NodeError:
        names = []
    if names and given not in names:
        raise NodeError(
            f"slurm.conf has {', '.join(names)} for this host, and {given} is another node: run this on {given}, or "
            "leave --node and $HAMI_HPC_NODE out"
        )
    return given


def node_name_or_host() -> str:
    """Returns this host's NodeName; where there is no slurm.conf, or not one name in it, the short host name."""
    try:
        find_slurm_conf(os.environ)  # without one scontrol would ask the name server for the controller
        return node_name()
    except NodeError:
        return socket.gethostname().partition(".")[0]


_looked_up = functools.cache(node_name_or_host)  # a name does not change while a command runs


def shown_name() -> str:
    """Returns what Slurm calls the node that a command runs on, for people: by a step's environment, $HAMI_HPC_NODE, or
    slurm.conf, in this order; else the short host name. Decides nothing, as users write their environment."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("HAMI_HPC_NODE") or _looked_up()


def hostnames(hostlist: str) -> list[str]:
    """Returns the names in a hostlist such as gpu[1-8,11]. Raises NodeError when scontrol cannot be run."""
    return _output("scontrol", "show", "hostnames", hostlist).split()


def holding_options(node: str) -> tuple[str, ...]:
    """Returns squeue's options for the jobs that hold resources on `node`."""
    # --all: jobs of hidden partitions hold GPUs too. --local: job ids of another cluster mean other jobs.
    return ("--all", "--local", "--noheader", f"--nodelist={node}", f"--states={HOLDING}")


def running_jobs(node: str) -> frozenset[int]:
    """Returns the ids of the jobs that hold resources on `node`. Raises NodeError when slurmctld does not answer."""
    return _job_ids(holding_rows(node, "%A"))


def suspended_jobs(node: str) -> frozenset[int]:
    """Returns the ids of the jobs on `node` that Slurm suspends. Raises NodeError when slurmctld does not answer."""
    options = ("--all", "--local", "--noheader", f"--nodelist={node}", "--states=SUSPENDED")
    return _job_ids(_output("squeue", *options, "--format=%A"))


def _job_ids(text: str) -> frozenset[int]:
    try:
        return frozenset(map(int, text.split()))
    except ValueError as error:
        raise not_understood("squeue --format=%A", text) from error


def is_suspended(job_id: int) -> bool:
    """Returns whether Slurm suspends a job now. Raises NodeError when slurmctld does not answer, or has no such job."""
    options = ("--all", "--local", "--noheader", f"--jobs={job_id}", "--states=SUSPENDED", "--format=%A")
    return str(job_id) in _output("squeue", *options).split()


def pending_rows(form: str) -> str:
    """Returns squeue's lines of the jobs that wait, a line for each task of an array, the highest priority first.

    Raises NodeError when slurmctld does not answer.
    """
    options = ("--all", "--local", "--noheader", "--array", "--states=PENDING", "--sort=-p,i")
    return _output("squeue", *options, f"--format={form}")


def holding_rows(node: str, form: str) -> str:
    """Returns squeue's lines of the jobs that hold resources on `node`, times in s since 1970. Raises NodeError."""
    return _output("squeue", *holding_options(node), f"--format={form}", time_format="%s")


def show_node(node: str) -> str:
    """Returns what slurmctld shows of one node. Raises NodeError when it does not answer, or does not know the node."""
    return _output("scontrol", "--local", "--oneliner", "--details", "show", "node", node)


def resume_node(node: str) -> None:
    """Returns a drained node to service. Raises NodeError when slurmctld does not do it."""
    _output("scontrol", "--local", "update", f"nodename={node}", "state=resume")


def show_nodes() -> str:
    """Returns what slurmctld shows of all nodes to this user. Raises NodeError when it does not answer."""
    return _output("scontrol", "--local", "--oneliner", "--details", "show", "nodes")


def absent_nodes(partitions: Sequence[str]) -> tuple[str, str]:
    """Returns the nodes of partitions that are powered down in the cloud and so not shown, and those that are not there
    yet (State=FUTURE), each as a host list. Raises NodeError when slurmctld does not answer."""
    show = ("scontrol", "--local", "--all", "--oneliner", "show")
    states = dict(re.findall(r"(?m)^NodeName=(\S+).*? State=(\S+)", _output(*show, "nodes", "--future")))
    named: set[str] = set()
    for name in partitions:
        match = re.search(r" Nodes=(\S+)", _output(*show, "partition", name))
        named |= set(expand(match[1]) if match and match[1] != "(null)" else ())
    return fold(named - states.keys()), fold(name for name in named if "FUTURE" in states.get(name, "").split("+"))


def reservation_nodes(name: str) -> str:
    """Returns a reservation's nodes as a host list, "" if it has none. Raises NodeError when this user sees none."""
    match = re.search(r" Nodes=(\S+)", _output("scontrol", "--oneliner", "show", f"reservation={name}"))
    return match[1] if match else ""


def show_jobs(job: str = "", time_format: str = "") -> str:
    """Returns what slurmctld shows of all jobs, or of one, to this user. Raises NodeError when it does not answer.

    `time_format`: of times, as for strftime, "%s" for seconds since 1970.
    """
    # --all: jobs of hidden partitions hold GPUs too, as squeue --all shows.
    return _output(
        "scontrol", "--all", "--local", "--details", "show", "job", *([job] if job else []), time_format=time_format
    )


def queue_rows(job: str, form: str) -> str:
    """Returns squeue's lines of a job (4711, 4711_3, 4711+1), also of one that just ended; "" for an unknown job.

    Raises NodeError when slurmctld does not answer.
    """
    try:
        return _output("squeue", "--local", "--all", "--noheader", "--states=all", f"--jobs={job}", f"--format={form}")
    except NodeError as error:
        if "Invalid job id" in str(error):
            return ""
        raise


def configuration() -> dict[str, str]:
    """Returns slurm.conf as slurmctld has it (`scontrol show config`). Raises NodeError when it does not answer."""
    text = _output("scontrol", "show", "config")
    pairs = (line.partition("=") for line in text.splitlines())
    values = {key.strip(): value.strip() for key, separator, value in pairs if separator}
    if "ClusterName" not in values:
        raise not_understood("scontrol show config", text)
    return values


def version() -> int:
    """Returns SLURM_VERSION_NUMBER of Slurm's commands here. Raises NodeError when there are none."""
    return version_of(_output("scontrol", "--version").strip().rpartition(" ")[2])


def known_version() -> int | None:
    """Returns the same; None where this machine has none of Slurm's commands."""
    try:
        return version()
    except NodeError:
        return None


def version_of(text: str) -> int:
    """Returns the SLURM_VERSION_NUMBER of `22.05.8`. Raises NodeError for text of another form."""
    parts = text.split("-")[0].split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise NodeError(f"Slurm's version {text[:80]!r} is not understood; run scontrol --version to see why")
    major, minor, micro = (int(part) for part in parts)
    return major << 16 | minor << 8 | micro


def version_text(number: int) -> str:
    """Returns a SLURM_VERSION_NUMBER as text: `22.05.8`."""
    return f"{number >> 16}.{number >> 8 & 0xFF:02d}.{number & 0xFF}"


def gpus_by_type(node: str) -> dict[str, int]:
    """Returns a node's GPUs by gres type ("" for no type). Raises NodeError for a node that Slurm does not know."""
    return gres_by_type(node, "gpu")


def gres_by_type(node: str, name: str) -> dict[str, int]:
    """Returns a node's counts of one gres by type, as gpus_by_type does."""
    text = _output("scontrol", "--oneliner", "show", "node", node)
    gres = re.search(r" Gres=(\S+)", text)
    # The commas in (S:0,2) separate sockets, not gres.
    parts = re.sub(r"\([^)]*\)", "", gres[1]).split(",") if gres else []
    counts: dict[str, int] = {}
    for part in parts:
        match = re.fullmatch(rf"{name}(?::([^:]+))?:(\d+)", part)
        if match is not None:
            counts[match[1] or ""] = counts.get(match[1] or "", 0) + int(match[2])
    return counts


def records_for_slurmdbd() -> int:
    """Returns how many records of jobs slurmctld has not sent to slurmdbd yet. Raises NodeError when it does not
    answer."""
    found = re.search(r"^DBD Agent queue size:\s*(\d+)", _output("sdiag"), re.MULTILINE)
    return int(found[1]) if found else 0


def qos_names() -> frozenset[str]:
    """Returns the names of slurmdbd's QoS. Raises NodeError when it does not answer."""
    text = _output("sacctmgr", "--noheader", "--parsable2", "--readonly", "list", "qos", "format=name")
    return frozenset(text.split())


def qos_rows(columns: Sequence[str]) -> list[dict[str, str]]:
    """Returns each QoS that slurmdbd has, by column. Raises NodeError when it does not answer."""
    return _sacctmgr_rows(columns, "qos")


def association_rows(cluster: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Returns the accounts of a cluster and their users, without those of one partition. Raises NodeError likewise."""
    rows = _sacctmgr_rows([*columns, "Partition"], "associations", f"cluster={cluster}")
    return [row for row in rows if not row.pop("Partition")]


def _sacctmgr_rows(columns: Sequence[str], *what: str) -> list[dict[str, str]]:
    text = _sacctmgr("--noheader", "--parsable2", "--readonly", "list", *what, f"format={','.join(columns)}")
    rows = [line.split("|") for line in text.splitlines()]
    wrong = next((row for row in rows if len(row) != len(columns)), None)
    if wrong is not None:
        raise not_understood(f"sacctmgr list {what[0]}", "|".join(wrong))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def show_limits() -> str:
    """Returns the accounts, users and QoS with what they use of each limit. Raises NodeError without slurmctld."""
    return _output("scontrol", "--local", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")


def change_accounting(words: Sequence[str]) -> None:
    """Runs one sacctmgr command that changes something, unasked. Raises NodeError when slurmdbd refuses it."""
    _sacctmgr("--immediate", "--quiet", *words)


NO_WORD = "it says nothing"
# Parts of sacctmgr's messages -> what to do.
_SACCTMGR_ADVICE = (
    (
        ("privilege", "Access/permission denied"),
        "Run it as root, or as a user with AdminLevel=Administrator in slurmdbd",
    ),
    (
        ("Preemption loop",),
        "slurmdbd before 24.05 says so, too, of a QoS whose Preempt list was emptied: restart slurmdbd, run this again",
    ),
    (("no TRES known",), "AccountingStorageTRES must have it, and slurmctld must have run with that"),
    (("refused", "Problem talking", "Unable to contact", "timed out", "Connection", NO_WORD), "Is slurmdbd up?"),
)


def _sacctmgr(*words: str) -> str:
    """Returns what sacctmgr prints. Raises NodeError with its message, and what to do."""
    command = ("sacctmgr", *words)
    done = completed(command, daemon="slurmdbd")
    if done.returncode != 0:
        lines = [line.strip().removeprefix("sacctmgr: error: ") for line in (done.stderr + done.stdout).splitlines()]
        complaint = "; ".join(line for line in dict.fromkeys(lines) if line) or NO_WORD
        advice = next((text for marks, text in _SACCTMGR_ADVICE if any(mark in complaint for mark in marks)), "")
        raise NodeError(f"{shlex.join(command)} failed: {complaint}. {advice}".rstrip())
    return done.stdout
