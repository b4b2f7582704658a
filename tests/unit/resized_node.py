# SPDX-License-Identifier: Apache-2.0
"""A node with a job whose slice is resized: for the tests of hami-hpc resize."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import UID, Node

from hami_hpc.contract import constants as c
from hami_hpc.core import resize as rules
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import parse_limits
from hami_hpc.slurm import job_shards
from hami_hpc.stages import resize as stage

SHARDS = 559  # of an H200, of 256 MiB each
HALF = 279  # of cores=50
HALF_MIB = HALF * 256
ENVIRONMENT = {"SLURMD_NODENAME": "n1"}
MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node where job 7 has 8 GiB and 50 % of GPU 0."""
    made = Node.make(tmp_path / "node")
    assert made.prolog(7) == 0
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: "/usr/bin/scontrol")
    hold(monkeypatch, {0: HALF})
    return made


def hold(monkeypatch: pytest.MonkeyPatch, shards: dict[int, int]) -> None:
    monkeypatch.setattr(job_shards, "read", lambda *_: shards)


def resize(node: Node, size: str, job_id: int = 7, uid: int | None = UID, dry_run: bool = False) -> str:
    return stage.resize(node.settings, job_id, uid, rules.parse_size(size), ENVIRONMENT, dry_run)


def record(node: Node, job_id: int = 7, name: str = c.FILE_JOB_LIMITS) -> Grant:
    grant = parse_limits((node.jobs / str(job_id) / name).read_bytes())
    assert grant is not None
    return grant


def sizes(grant: Grant) -> tuple[int, int]:
    return grant.mem_mib, grant.cores_percent


def uses(node: Node, used: int, peak: int = 0, job_id: int = 7) -> None:
    """Writes what the job's processes use, as they do."""
    with (node.jobs / str(job_id) / c.FILE_USAGE).open("r+b") as file:
        for name, value in (("used_bytes", used), ("peak_bytes", max(used, peak))):
            offset, width, _kind = c.USAGE_FIELDS[name]
            file.seek(offset)
            file.write(value.to_bytes(width, "little"))


def record_field(node: Node, job_id: int, name: str) -> int:
    offset, width, _kind = c.LIMITS_FIELDS[name]
    return int.from_bytes((node.jobs / str(job_id) / c.FILE_JOB_LIMITS).read_bytes()[offset:][:width], "little")
