# SPDX-License-Identifier: Apache-2.0
"""Reads what jobs hold of this node's GPUs, and submits and cancels placeholder jobs. Not for prologs themselves."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.out_of_service import PLACEHOLDER_NAME, Holding, holdings, node_lines
from hami_hpc.errors import NodeError
from hami_hpc.slurm.run import not_understood, output

REQUEUE_TIMEOUT_S = 5  # a prolog waits for it
PRIORITY = 4_294_967_200  # of the first job; users' jobs are below it. Slurm's own highest is 0xfffffffd
# A placeholder has no time limit once it runs. With none at the start it would wait for the end of every reservation.
FIRST_LIMIT_MINUTES = "1"
_NAMES = ("SLURM_CONF", "LD_LIBRARY_PATH", "HAMI_SIM")  # HAMI_SIM: the simulated driver's directory, in tests
_ANSWERED = re.compile(r"(?:Granted|Pending) job allocation (\d+)")


def environment(of: Mapping[str, str], folder: str = "") -> dict[str, str]:
    """Returns the environment of Slurm's commands: nothing of a job's, and no SALLOC_ or SQUEUE_ of a person's."""
    kept = {name: of[name] for name in _NAMES if name in of}
    path = of.get("PATH") or "/usr/bin:/bin"
    return kept | {"PATH": f"{folder}:{path}" if folder else path, "LC_ALL": "C"}


# A partition that gives each job whole nodes: before Slurm 26.05, and since.
WHOLE_NODES = re.compile(r" OverSubscribe=EXCLUSIVE\b| Exclusive=(NODE|TOPO)\b")


class Node:
    """One node, as slurmctld shows it. `env` is the environment of the commands."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name, self.env = name, dict(env)
        self._lists: dict[str, bool] = {name: True}
        self._clients: list[subprocess.Popen[str]] = []

    def holdings(self) -> tuple[Holding, ...]:
        """Returns what jobs hold of the node's GPUs. Raises NodeError when slurmctld does not answer."""
        here = f"--nodelist={self.name}"
        ours = {job for (job,) in self._rows("%A", here, f"--name={PLACEHOLDER_NAME}", "--user=root")}
        found: list[Holding] = []
        for job, state, array, task in self._rows("%A|%T|%F|%K", here):
            name = f"{array}_{task}" if task.isdecimal() else job  # an array's id shows all of its tasks
            try:
                text = self._run("scontrol", "--oneliner", "show", "job", "-d", name)
            except NodeError as error:
                if "Invalid job id" in str(error):  # it has ended since
                    continue
                raise
            is_here = {nodes: self._is_in(nodes) for nodes, _ in node_lines(text)}
            found.extend(holdings(int(job), state, job in ours, text, is_here))
        return tuple(dict.fromkeys(found))

    def pending(self, name: str = c.GRES_SHARD) -> dict[int, int]:
        """Returns what placeholders of this node wait for of one gres, shards or those that are never moved, by job
        id."""
        rows = self._rows("%A|%n|%b", f"--name={PLACEHOLDER_NAME}", "--user=root", "--states=PENDING")
        asked = ((job, gres.rpartition(":")) for job, nodes, gres in rows if nodes == self.name)
        return {int(job): int(count) for job, (gres, _, count) in asked if re.split("[:/]", gres)[-1] == name}

    def partition(self) -> str:
        """Returns the partition for placeholders: of those that share nodes, the one with the highest tier."""
        text = self._run("scontrol", "--oneliner", "show", "node", self.name)
        match = re.search(r" Partitions=(\S+)", text)
        best: tuple[int, str] | None = None
        for name in match[1].split(",") if match else []:
            shown = self._run("scontrol", "--oneliner", "show", "partition", name)
            tier = re.search(r" PriorityTier=(\d+)", shown)
            if WHOLE_NODES.search(shown) or " State=UP" not in shown or tier is None:
                continue
            if best is None or int(tier[1]) > best[0]:
                best = (int(tier[1]), name)
        if best is None:
            raise NodeError(f"node {self.name} is in no partition that is UP and shares nodes, so it starts no slices")
        return best[1]

    def reservation(self) -> str:
        """Returns the name of a reservation that has the node now, or of some of its CPUs, else ""."""
        for line in self._run("scontrol", "--oneliner", "show", "reservation").splitlines():
            name, nodes = re.match(r"ReservationName=(\S+) ", line), re.search(r" Nodes=(\S+)", line)
            if name and nodes and " State=ACTIVE " in line and self._is_in(nodes[1]):
                return name[1]
        return ""

    def submit(self, sizes: Sequence[int], partition: str, name: str = c.GRES_SHARD) -> None:
        """Submits one job for each size, in this order of priority. Returns as soon as slurmctld knows all of them.

        On a node in a reservation they are of the reservation, unless root may not use it: then they wait for its end.
        Raises NodeError when it refuses one.
        """
        inside = self.reservation()
        if inside and not self._refused(sizes, partition, name, inside):
            return
        refused = self._refused(sizes, partition, name)
        if refused:
            raise NodeError(f"a placeholder job for GPUs out of service was refused: {refused}")

    def _refused(self, sizes: Sequence[int], partition: str, name: str, reservation: str = "") -> str:
        """Submits the jobs. Returns "", or why the first one that slurmctld refuses is refused."""
        clients = [
            self._start(f"{name}:{size}", partition, PRIORITY - rank, reservation) for rank, size in enumerate(sizes)
        ]
        self._clients += clients
        return next(filter(None, [_wait_until_known(client) for client in clients]), "")

    def _start(self, gres: str, partition: str, priority: int, reservation: str) -> subprocess.Popen[str]:
        command = (
            *("salloc", "--no-shell", f"--job-name={PLACEHOLDER_NAME}", f"--partition={partition}", "--nodes=1"),
            *(f"--nodelist={self.name}", f"--gres={gres}", "--ntasks=1", "--mem=1M", f"--priority={priority}"),
            *(f"--time={FIRST_LIMIT_MINUTES}", "--comment=a GPU is out of service, see hami-hpc gpu list"),
            *((f"--reservation={reservation}",) if reservation else ()),
        )
        try:
            return subprocess.Popen(
                command,
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise NodeError(f"salloc cannot be run ({error}). Is Slurm installed here?") from error

    def keep(self, job_id: int) -> None:
        """Takes the time limit of a running placeholder away."""
        self._run("scontrol", "update", f"jobid={job_id}", "timelimit=UNLIMITED")

    def cancel(self, job_ids: Sequence[int]) -> None:
        if job_ids:
            self._run("scancel", *map(str, job_ids))

    def close(self) -> None:
        """Ends the salloc processes, which have nothing left to do: their jobs run without them, or are cancelled."""
        for client in self._clients:
            client.kill()
            client.communicate()
        self._clients.clear()

    def _is_in(self, nodes: str) -> bool:
        if nodes not in self._lists:
            names: list[str] = []
            if re.search(r"[\[,]", nodes) and len(nodes) < 1000 and nodes[0].isalnum():  # a user's text can be here
                with suppress(NodeError):
                    names = self._run("scontrol", "show", "hostnames", nodes).split()
            self._lists[nodes] = self.name in names
        return self._lists[nodes]

    def _rows(self, columns: str, *which: str) -> list[list[str]]:
        """Returns what squeue shows of jobs: the number of each, and what other columns there are."""
        text = self._run("squeue", "--all", "--local", "--noheader", *which, f"--format={columns}")
        rows = [line.split("|") for line in text.splitlines()]
        if any(len(row) != len(columns.split("|")) or not row[0].isdecimal() for row in rows):
            raise not_understood(f"squeue --format={columns}", text)
        return rows

    def _run(self, *command: str) -> str:
        return output(command, self.env)


def requeue(name: str, scontrol: str, env: Mapping[str, str]) -> bool:
    """Puts a batch job back into the queue; returns False for a job that Slurm does not requeue. `name` names exactly
    this job (job_shards.exact_name).

    A job that has ended is left alone, or it would run again: on several nodes a short one may end while a prolog runs.
    """
    try:
        done = subprocess.run(
            (scontrol, "requeue", "incomplete", name),
            env=dict(env),
            capture_output=True,
            timeout=REQUEUE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _wait_until_known(client: subprocess.Popen[str]) -> str:
    """Returns "" when slurmctld has the job of this salloc, else salloc's message. salloc goes on by itself."""
    assert client.stderr is not None
    lines: list[str] = []
    for line in client.stderr:
        if _ANSWERED.search(line):
            return ""
        lines.append(line.strip())
    client.wait()
    return "; ".join(lines) or f"salloc ended with status {client.returncode} and no message"
