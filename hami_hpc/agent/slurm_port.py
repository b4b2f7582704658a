# SPDX-License-Identifier: Apache-2.0
"""What the agent asks of Slurm and tells it. Nothing here makes a look wait for slurmctld.

Which processes belong to a job the steps' daemons on this node say, at once. Questions and requests to slurmctld go
through one thread; those that it cannot keep up with are left out, and reported.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from hami_hpc.core.shards_shown import name_of_job, whole_gpus_of_node
from hami_hpc.node.drain import plain
from hami_hpc.slurm import step_pids
from hami_hpc.slurm.step_pids import LOCAL_TIMEOUT_S, Run, run_command

TIMEOUT_S = 20.0
LIST_AGAIN_S = 20.0  # at most, after listpids hung
ASK_AGAIN_S = 30.0
WAITING_MAX = 200
INDICES_MAX = 1023  # of a range, whatever is printed
# Groups of nodes with the same devices follow one another.
_NODES = re.compile(r"(?:(?<!\s)\s+Nodes=\S+\s+CPU_IDs=\S*\s+Mem=[0-9]+\s+GRES=\S*)+")
_GRES = re.compile(r"\sGRES=(\S*)")
_DEVICES = re.compile(r"(?:^|,)(gpu|shard|mps)(?::[^,(]*)?\(([^)]*)\)")
_NAMED = re.compile(r"([0-9]+) ([0-9]+(?:[_+][0-9]+)?)", re.ASCII)  # a job's id, and 12_3 of an array or 12+1 of a part
_RANGE = re.compile(r"(?:(?<=^IDX:)|(?<=,))([0-9]{1,5})(?:-([0-9]{1,5}))?(?=,|$)")


@dataclass
class SlurmPort:
    """Slurm's commands on this node. `report` takes lines about what could not be done."""

    node: str
    report: Callable[[str], None]
    run: Run = run_command
    has_places: bool = False  # the types of GPUs are places: a prolog may be told only some of a job's (docs/adr/055)
    _list_after: float = 0.0
    _hangs: int = 0  # of listpids, one after the other
    # by job: when Slurm was asked, and its answer: the GPUs of the job, and those that it holds whole
    _held: dict[int, tuple[float, frozenset[int] | None, frozenset[int]]] = field(default_factory=dict)
    _whole_here: dict[int, frozenset[int]] = field(default_factory=dict)  # by job, where its text is not ambiguous
    _ending: set[int] = field(default_factory=set)
    _waiting: queue.Queue[Callable[[], None]] = field(default_factory=lambda: queue.Queue(WAITING_MAX))
    _thread: threading.Thread | None = None

    def listed_pids(self) -> Mapping[int, int] | None:
        """Returns what step_pids.listed_pids does; None also for a while after it hung."""
        start = time.monotonic()
        if start < self._list_after:
            return None
        pids = step_pids.listed_pids(self.node, self.run, LOCAL_TIMEOUT_S)
        now = time.monotonic()
        # A step that begins or ends may not answer for a moment. Where it always hangs, the looks go on.
        hangs = pids is None and now - start > LOCAL_TIMEOUT_S / 2
        self._hangs = self._hangs + 1 if hangs else 0
        if hangs:
            self._list_after = now + min(LIST_AGAIN_S, 2.0 ** (self._hangs - 2))
        return pids

    def held_by(self, job_id: int) -> frozenset[int] | None:
        """Returns Slurm's indices of the GPUs of a job here, or None as long as slurmctld has not said."""
        asked_at, held, _whole = self._held.get(job_id, (-1e9, None, frozenset()))
        if not held and time.monotonic() - asked_at > ASK_AGAIN_S:  # a job that begins may not have its GPUs yet
            self._held[job_id] = (time.monotonic(), held, frozenset())
            self._later(lambda: self._ask(job_id), f"the GPUs of job {job_id} are not known")
        return held

    def whole_of(self, job_id: int) -> frozenset[int] | None:
        """Returns the GPUs that the job holds whole (parse_whole); None as long as slurmctld has not said."""
        return None if self.held_by(job_id) is None else self._held[job_id][2]

    def whole_here(self, job_id: int) -> frozenset[int]:
        """Returns the GPUs of this node that the job holds whole by slurmctld alone; none where it has not said, or
        where the job's text is ambiguous."""
        return self._whole_here.get(job_id, frozenset()) if self.held_by(job_id) is not None else frozenset()

    def forget_but(self, jobs: frozenset[int]) -> None:
        """Forgets the jobs that are not in `jobs`: their ids may come back."""
        for job_id in self._held.keys() - jobs:
            del self._held[job_id]
            self._whole_here.pop(job_id, None)

    def _ask(self, job_id: int) -> None:
        record = self._record(job_id)
        if record is not None:
            with contextlib.suppress(ValueError):
                self._whole_here[job_id] = whole_gpus_of_node(record, self.node)
            self._held[job_id] = (time.monotonic(), parse_held(record), parse_whole(record))

    def _record(self, job_id: int) -> str | None:
        """Returns all that slurmctld shows of this job, in one line, or None. Several lines are those of other jobs, as
        an array's id shows all of its tasks, or a user's text: asked for the job alone, they are its own."""
        text = self._shown(str(job_id))
        if len(text.splitlines()) > 1:
            command = ("squeue", "--all", "--local", "--noheader", f"--jobs={job_id}", "--format=%A %i")
            rows = (self.run(command, TIMEOUT_S) or "").splitlines()
            names = [match[2] for row in rows if (match := _NAMED.fullmatch(row.strip())) and int(match[1]) == job_id]
            text = self._shown(names[0]) if names else ""
        record = " ".join(text.splitlines())
        return record if record.startswith(f"JobId={job_id} ") else None

    def _shown(self, name: str) -> str:
        return self.run(("scontrol", "--oneliner", "--details", "show", "job", name), TIMEOUT_S) or ""

    def warn(self, job_id: int, text: str) -> threading.Event:
        """Writes a line to the output of a batch job, or of the salloc or srun that the job is run from. Sets the
        event returned when that is done, or cannot be."""
        command = ("scontrol", "notify", str(job_id), plain(text))
        told = threading.Event()

        def tell() -> None:
            try:
                self._tell(command)
            finally:
                told.set()

        if not self._later(tell, f"job {job_id} could not be warned"):
            told.set()
        return told

    def fail(self, job_id: int, text: str) -> None:
        """Ends a job, with a comment for administrators. Does nothing while an earlier request to end it waits."""

        def end() -> None:
            try:
                name = self._name(job_id, "ended")
                if name:
                    self._tell(("scontrol", "update", f"JobId={name}", f"AdminComment=hami_hpc: {plain(text)}"))
                    self._tell(("scancel", name))
            finally:
                self._ending.discard(job_id)

        if job_id not in self._ending:
            self._ending.add(job_id)
            if not self._later(end, f"job {job_id} could not be ended"):
                self._ending.discard(job_id)

    def comment(self, job_id: int, text: str) -> None:
        """Sets a job's AdminComment."""

        def update() -> None:
            name, comment = self._name(job_id, "commented"), f"AdminComment=hami_hpc: {plain(text)}"
            if name:
                self._tell(("scontrol", "update", f"JobId={name}", comment))

        self._later(update, f"job {job_id} could not be commented")

    def requeue(self, job_id: int) -> None:
        """Puts a job back into the queue. Slurm requeues batch jobs that allow it, and no others."""

        def send_back() -> None:
            name = self._name(job_id, "requeued")
            if name:
                self._tell(("scontrol", "requeue", "incomplete", name))

        self._later(send_back, f"job {job_id} could not be requeued")

    def _name(self, job_id: int, done: str) -> str:
        """Returns what names exactly this job in Slurm's commands, as root runs them: 12 may be all tasks of an array.
        From numbers alone, as a job's name or comment can look like the answer of scontrol, with another's id. Returns
        "" where nobody says it, after a report that the job could not be `done`."""
        command = ("squeue", "--all", "--local", "--noheader", f"--jobs={job_id}", "--format=%A %F %K")
        try:
            return name_of_job(self.run(command, TIMEOUT_S) or "", job_id)
        except ValueError as error:
            self.report(f"job {job_id} could not be {done}: {error}: is slurmctld up (scontrol ping)?")
            return ""

    def drain(self, text: str) -> None:
        """Drains this node."""
        command = ("scontrol", "update", f"NodeName={self.node}", "State=DRAIN", f"Reason={plain(text)}")
        self._later(lambda: self._tell(command), "the node could not be drained")

    def _tell(self, command: tuple[str, ...]) -> None:
        if self.run(command, TIMEOUT_S) is None:
            self.report(f"{' '.join(command[:3])} failed: is slurmctld up (scontrol ping)?")

    def _later(self, work: Callable[[], None], otherwise: str) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="slurm", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            self.report(f"{otherwise}: {WAITING_MAX} requests wait for slurmctld")
            return False
        return True

    def _work(self) -> None:
        while True:
            work = self._waiting.get()
            try:
                work()
            except Exception as error:
                self.report(f"unexpected {type(error).__name__}: {error}")
            finally:
                self._waiting.task_done()

    def finish(self) -> None:
        """Waits until everything that was asked for is done."""
        self._waiting.join()


def parse_held(text: str) -> frozenset[int] | None:
    """Returns the indices of a job's GPUs, on whichever node, from `scontrol -o -d show job`; None when it has none.

    Slurm prints gpu:h200:1(IDX:0-1) and shard:279(IDX:0); from 23.02 on shard:279(279/559,0/559), by device. A user can
    write the same into the job's name or comment: what holds is what all such places have in common.
    """
    held: list[frozenset[int]] = []
    places = _NODES.findall(text)
    for place in places:
        gres = [devices for _kind, devices in _gres(place)]
        indices = frozenset(index for devices in gres for index in _indices(devices))
        if indices or not gres:
            held.append(indices)
    if not held:
        return None if places else frozenset()
    return frozenset.intersection(*held)


def parse_whole(text: str) -> frozenset[int]:
    """Returns the indices of the GPUs that a job holds whole (gres/gpu), on whichever node, from the same text.

    What a user writes into name or comment adds to them here, so that nobody hides a job from its usage record; the
    prolog's note has those that the job was really given.
    """
    gres = [one for place in _NODES.findall(text) for one in _gres(place)]
    return frozenset(index for kind, devices in gres if kind == "gpu" for index in _indices(devices))


def _gres(place: str) -> list[tuple[str, str]]:
    """Returns kind and devices of each gres in a text."""
    return [match for listed in _GRES.findall(place) for match in _DEVICES.findall(listed)]


def _indices(devices: str) -> Iterator[int]:
    """Yields the indices in IDX:0-1,3, or those with a part of theirs in 279/559,0/559."""
    if devices.startswith("IDX:"):
        for first, last in _RANGE.findall(devices):
            yield from range(int(first), min(int(last or first), int(first) + INDICES_MAX) + 1)
    elif "/" in devices:
        yield from (index for index, share in enumerate(devices.split(",")) if share.partition("/")[0].strip("0"))
