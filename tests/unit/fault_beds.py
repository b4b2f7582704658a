# SPDX-License-Identifier: Apache-2.0
"""A node with one job that runs, for each mode of isolation, and what must be true of it after faults of another job.

`explore` lets each order of what can follow a fault find its way from each state that a fault leaves. Two states with
the same signature, and the same left to follow, are one.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pynvml
from forked import points
from mig_testbed import MigNode, mig_environment
from mps_testbed import PROGRAM, MpsNode
from node_testbed import GPU_MIB, UID, UUIDS, Node, job_environment, names_in, pair_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE
from hami_hpc.node import job_dirs, mig, mig_notes, mounts, mps, mps_partitions
from hami_hpc.node import nvml as nvml_door
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main
from hami_hpc.stages.reconcile import reconcile

JOB, BESIDE = 7, 8  # the job that faults concern, and the one that runs on the same GPU all the time
PEAK = 777
STEPS = ("prolog", "epilog", "reconcile")
WHILE_IT_RUNS = "reconcile while Slurm still has the job"
LONG_AGO = 10**9


@dataclass
class Bed:
    """A node, and a job that runs there. Jobs have mode=share."""

    node: Node
    has_usage = True  # in its record
    baseline: tuple[Any, ...] = ()
    seen: set[object] = field(default_factory=set)  # states, and what was left to follow
    is_ending: bool = False  # a job whose end has begun is not made ready again

    def environment(self, job: int) -> dict[str, str]:
        return job_environment(job)

    def start(self) -> None:
        """Makes the directories that stay, and starts the job beside. What is there then must be there after each
        fault."""
        assert self.prolog(BESIDE) == 0
        assert self.prolog(JOB) == 0
        assert self.epilog(JOB) == 0
        self.baseline = self.signature()

    def prolog(self, job: int = JOB) -> int:
        return prolog_main(self.node.arguments, self.environment(job))

    def epilog(self, job: int = JOB) -> int:
        return epilog_main(self.node.arguments, self.environment(job))

    def run_reconcile(self, *running: int) -> list[str]:
        """Runs reconcile, and returns what it could not do."""
        results = reconcile(self.node.settings, lambda: frozenset(running), dry_run=False)
        return [result.error for result in results if result.error]

    def reconcile(self, *running: int) -> None:
        """Runs reconcile, with what is half made as old as the crash of the day before leaves it."""
        for folder in (self.node.jobs, self.node.root / "state/usage", self.node.root / "run/spool"):
            for name in names_in(folder):
                if name.startswith("."):
                    os.utime(folder / name, (LONG_AGO, LONG_AGO))
        assert self.run_reconcile(*running) == []

    def with_job(self) -> None:
        """As it is at the job's end: the job has used some memory."""
        assert self.prolog() == 0
        self.node.write_usage(JOB, peak_bytes=PEAK)
        self.is_ending = True

    def without_job(self) -> None:
        """As it is before the job: finish() leaves it so."""
        self.is_ending = False

    def grants(self) -> dict[int, Grant]:
        """Returns the ledger's row of each job's first slice, read without hami_hpc's own checks of the file."""
        columns = ", ".join(Grant._fields)
        with closing(sqlite3.connect(self.node.root / "run/ledger.db", timeout=10)) as database:
            rows = database.execute(f"SELECT {columns} FROM grants ORDER BY job_id, slice_index DESC")
            return {row[0]: Grant(*row) for row in rows}

    def step(self, name: str) -> None:
        """Does what can follow a fault, and checks what it has to bring about."""
        if name == "prolog":
            assert self.prolog() == 0
            self.assert_ready(JOB)
        elif name == "epilog":
            assert self.epilog() == 0
            assert JOB not in self.grants()
        elif name == "reconcile":
            self.reconcile(BESIDE)
            assert JOB not in self.grants()
        else:
            self.reconcile(BESIDE, JOB)
            if JOB in self.grants() and not self.is_ending:
                self.assert_ready(JOB)
        self.check()

    def check(self) -> None:
        """Checks what is true at any time: the job beside is as it was, and no GPU is granted twice."""
        self.assert_ready(BESIDE)
        assert sum(grant.mem_mib for grant in self.grants().values()) <= GPU_MIB

    def assert_ready(self, job: int) -> None:
        """Checks that a job has its row and a whole directory of the same grant."""
        grant, directory = self.grants()[job], self.node.jobs / str(job)
        written = job_dirs.read_grant(str(directory))
        assert written is not None
        assert written._replace(model=grant.model) == grant
        status = (directory / c.FILE_USAGE).stat()
        assert (status.st_uid, status.st_size) == (UID, USAGE_FILE_SIZE)

    def finish(self) -> None:
        """Whatever came before: after the epilog and reconcile nothing of the job is left."""
        assert self.epilog() == 0
        self.reconcile(BESIDE)
        self.check()
        if difference := self.difference():
            raise AssertionError(f"the node is not as before: {difference}")
        peaks = self.records()
        if self.is_ending and self.has_usage:
            assert peaks.count(PEAK) == 1, "the usage of the run is recorded once"

    def difference(self) -> str:
        """Returns what is on the node and was not before, or the other way round."""
        now, before = self.signature(), self.baseline
        if now == before:
            return ""
        parts = [(set(a) ^ set(b)) if i == 0 else (a, b) for i, (a, b) in enumerate(zip(now, before, strict=True))]
        return repr([part for part in parts if part and (isinstance(part, set) or part[0] != part[1])])

    def records(self) -> list[int]:
        """Takes the usage records out of the spool, and returns their peaks."""
        folder = self.node.root / "state/usage"
        texts = [(folder / name).read_text() for name in names_in(folder)]
        for name in names_in(folder):
            (folder / name).unlink()
        return [json.loads(text)["peak_bytes"] for text in texts]

    def signature(self) -> tuple[Any, ...]:
        """Returns what is on the node, but for times, process ids and what is only added to."""
        rows = tuple((grant.job_id, grant.mem_mib, grant.mode) for grant in self.grants().values())
        return tuple(_tree(self.node.root / "run")), rows, *self.more()

    def more(self) -> tuple[object, ...]:
        """Returns what this mode has outside of the run directory."""
        return ()


def _tree(folder: Path) -> Iterator[tuple[object, ...]]:
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"-\d{2,}", "-#", str(path.relative_to(folder)))
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if (
            name.startswith("ledger")
            or name.endswith((".lock", ".log"))
            or "control" in name
            or name == mig_notes.NO_ROOM_FILE
        ):
            continue
        is_file = stat.S_ISREG(status.st_mode)
        is_mount = not is_file and mounts.is_mount_point(str(path))
        content: object = None
        if path.name.startswith("job.") and path.name.endswith(".limits"):
            content = _limits(path.read_bytes())
        elif (
            note := mig_notes.parse(path.read_bytes() if is_file and status.st_size == mig_notes.SIZE else None)
        ) is not None:
            content = note.state, note.job_id, note.instance[1:4], len(note.before)
        yield name, status.st_mode, status.st_uid, status.st_size if is_file else 0, is_mount, content


def _limits(data: bytes) -> bytes:
    """Returns a limits record without its times and how often it was changed."""
    for name in ("created_unix_ns", "sequence"):
        offset, width, _kind = c.LIMITS_FIELDS[name]
        odd = data[offset] & 1 if name == "sequence" and len(data) > offset else 0
        data = data[:offset] + bytes([odd]) + bytes(width - 1) + data[offset + width :]
    return data


@dataclass
class MpsBed(Bed):
    """Jobs have mode=mps but the one beside, so that the daemon is started and ended for each job. test_mps_crash.py
    has jobs that share one."""

    def environment(self, job: int) -> dict[str, str]:
        assert isinstance(self.node, MpsNode)
        return job_environment(job) if job == BESIDE else self.node.environment(job)

    def assert_ready(self, job: int) -> None:
        super().assert_ready(job)
        assert isinstance(self.node, MpsNode)
        if job == JOB:
            place = self.node.place()
            wanted = [Path(place.pipe).name]
            assert self.node.settled_controls(wanted) == wanted
            assert [member.job_id for member in mps.members(place)] == [job]
            if (self.node.root.parent / "sim/mps-static").exists():
                seen = mps_partitions.listing(str(PROGRAM), place)
                assert seen is not None
                assert seen.partitions == {mps_partitions.id_of(one): 8 for one in mps.members(place)}
            assert (self.node.jobs / str(job) / c.FILE_MPS).exists()

    def more(self) -> tuple[object, ...]:
        assert isinstance(self.node, MpsNode)
        return (tuple(self.node.controls()),)


@dataclass
class MigBed(Bed):
    """Jobs have mode=mig. An administrator has an instance there, too. Works in a child that has loaded this machine's
    NVML (MigNode.run)."""

    bed: MigNode | None = None
    has_usage = False

    def environment(self, job: int) -> dict[str, str]:
        return mig_environment(job)

    def _nvml(self) -> Any:
        nvml = nvml_door.open_nvml()
        return nvml.nvmlDeviceGetHandleByIndex(0)

    def more(self) -> tuple[object, ...]:
        assert self.bed is not None
        devices = self.bed.devices()
        return tuple(one[1:4] for one in mig.instances(pynvml, self._nvml())), tuple(sorted(devices.values()))

    def assert_ready(self, job: int) -> None:
        super().assert_ready(job)
        uuid = (self.node.jobs / str(job) / c.FILE_MIG).read_text().split()[0]
        assert uuid in {one.uuid for one in mig.instances(pynvml, self._nvml())}
        grant = self.grants()[job]
        notes = [note for note in mig_notes.read(self.node.settings.run_dir, grant.gpu_uuid) if note.job_id == job]
        assert [note.state for note in notes] == [mig_notes.LIVE]


@dataclass
class PairBed(Bed):
    """The job that faults concern has two slices, the first on the GPU of the job beside."""

    def environment(self, job: int) -> dict[str, str]:
        return job_environment(job) if job == BESIDE else pair_environment(job)

    def rows(self) -> list[tuple[int, int, str]]:
        with closing(sqlite3.connect(self.node.root / "run/ledger.db", timeout=10)) as database:
            return database.execute("SELECT job_id, slice_index, gpu_uuid FROM grants ORDER BY 1, 2").fetchall()

    def more(self) -> tuple[object, ...]:
        return (tuple(self.rows()),)

    def check(self) -> None:
        """All slices of the job are granted, or none, whatever was killed."""
        super().check()
        assert [row[1:] for row in self.rows() if row[0] == JOB] in ([], list(enumerate(UUIDS)))

    def assert_ready(self, job: int) -> None:
        super().assert_ready(job)
        if job == JOB:
            written = job_dirs.read_grants(str(self.node.jobs / str(job)))
            assert [(one.slice_index, one.gpu_uuid) for one in written] == list(enumerate(UUIDS))
            assert {one.created_unix_ns for one in written} == {self.grants()[job].created_unix_ns}
            status = (self.node.jobs / str(job) / "shared/usage.1").stat()
            assert (status.st_uid, status.st_size) == (UID, USAGE_FILE_SIZE)


def explore(bed: Bed, prepare: Callable[[], None], fault: Callable[[int], bool], least: int = 10) -> None:
    """Makes the fault at the fault points of points() until it does not happen. From each state that it leaves,
    all orders of STEPS follow, and at each order's end finish()."""
    for point in points():
        paths: list[tuple[str, ...]] = [()]
        while paths:
            path = paths.pop()
            prepare()
            has_happened = fault(point)
            try:
                paths += _follow(bed, path)
            except AssertionError as error:
                error.add_note(f"fault point {point}, then {' and '.join(path) or 'the rest'}")
                raise
        if not has_happened:
            break
    assert point > least, "hardly any fault point was met"


def _follow(bed: Bed, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Takes the steps of a path, then on from there, until all that can follow has been seen. Yields the other paths
    that begin where this one has come by."""
    for name in path:
        bed.step(name)
    while WHILE_IT_RUNS not in path:
        rest = tuple(name for name in STEPS if name not in path)
        key = bed.signature(), rest, bed.is_ending
        if key in bed.seen and key[0] == bed.baseline and not bed.is_ending:
            return  # as if nothing had been begun, and what follows that has been seen
        if key in bed.seen or not rest:
            break
        bed.seen.add(key)
        if not path:
            yield (WHILE_IT_RUNS,)
        yield from ((*path, name) for name in rest[1:])
        path = (*path, rest[0])
        bed.step(rest[0])
    bed.finish()


def quick() -> Any:
    """Mounts by system calls and not by programs; and no scontrol is started."""
    from fault_points import mount_at_once

    return patch.multiple("hami_hpc.node.mounts", _run=mount_at_once)
