# SPDX-License-Identifier: Apache-2.0
"""A node whose GPUs' memory is oversold, with made-up looks of the agent and words of the programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, UUIDS, Node

from hami_hpc.agent.turns_taken import TurnsTaken
from hami_hpc.contract import constants as c
from hami_hpc.core import residents
from hami_hpc.core.grant import Grant
from hami_hpc.core.swap import Process as Program
from hami_hpc.core.watch import MIB, SECOND, Limits, Look, Process, Slice
from hami_hpc.node import swapped

FIRST, SECOND_JOB, STAYS = 7, 8, 9
LARGE = "100000"
ON = (c.SWAP_NEVER, c.SWAP_IN)
TURN_S = residents.turn_s(100_000, 60) + 1
OVERSOLD = "version = 1\n[agent]\n[vgpu]\nmemory_scaling = 3\nturn_s = 60\n"
NO_LIMITS = Limits(memory_slack_bytes=100 * MIB, exempt_uids=frozenset())


@dataclass
class Site:
    """A node, what NVML shows of each job, what its programs say, and the time."""

    node: Node
    used_mib: dict[int, int] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    says: dict[int, list[str]] = field(default_factory=dict)
    counted_ns: int = 0
    now_s: float = 1000.0
    last: Look | None = None
    silent: frozenset[str] = frozenset()
    unseen_mib: int = 0
    grants: Callable[[], dict[int, Grant]] | None = None  # what the agent finds there; None: those of the ledger

    def __post_init__(self) -> None:
        self.turns = TurnsTaken(self.node.settings, lambda: self.last, lambda: int(self.now_s * SECOND))

    def begin(self, job: int, mem: str = LARGE, service_class: str = "be", cores: str = "10") -> int:
        """Runs the prolog, and returns the order with which the job begins."""
        assert self.node.prolog(job, HAMI_HPC_CLASS=service_class, HAMI_HPC_MEM_MIB=mem, HAMI_HPC_CORES=cores) == 0
        return self.order(job)

    def order(self, job: int) -> int:
        return swapped.order_of(self.node.settings.run_dir, job)

    def look(self, after_s: float = 1.0) -> None:
        """Time passes, the agent looks, and decides."""
        self.now_s += after_s
        grants = self.grants().values() if self.grants else self.node.grants().values()
        processes = tuple(
            Process(job * 10, 1, 65534, job, UUIDS[0], mib * MIB, SECOND if job in self.busy else 0, True)
            for job, mib in self.used_mib.items()
        )
        slices = tuple(Slice(grant, None, 0, 0) for grant in grants)
        self.last = Look(int(self.now_s * SECOND), processes, slices, frozenset(), {}, silent=self.silent)
        self.last = self.last._replace(unseen={UUIDS[0]: self.unseen_mib * MIB})
        self.now_s += 0.1
        assert self.turns.once() == ""

    def events(self) -> list[str]:
        path = Path(self.node.settings.state_dir) / "events.jsonl"
        return [json.loads(line)["text"] for line in path.read_text().splitlines() if '"swap"' in line]

    def leaves(self, job: int) -> None:
        self.used_mib[job], self.says[job] = 600, ["host"]

    def comes(self, job: int) -> None:
        self.used_mib[job], self.says[job] = 90_000, ["gpu"]
        self.busy = {job}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return said_by(Node.make(tmp_path / "node"), monkeypatch)


def said_by(node: Node, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Returns the site of a node, whose programs say what the site has for them."""
    text = node.config.read_text().replace("version = 1\n", OVERSOLD)
    node.config.write_text(text + "[classes.be]\nswap = true\n")
    made = Site(node)

    def said(_run_dir: str, grant: object) -> list[Program]:
        job = grant.job_id  # type: ignore[attr-defined]
        return [Program(0, job * 10, word, 0, 0, made.counted_ns) for word in made.says.get(job, [])]

    monkeypatch.setattr(swapped, "processes", said)
    return made


def both(site: Site) -> None:
    """Two jobs of which one fits, and which is on the GPU."""
    assert site.begin(FIRST) == c.SWAP_IN
    site.comes(FIRST)
    assert site.begin(SECOND_JOB) == c.SWAP_TURN
    site.says[SECOND_JOB] = ["wanted"]


def away(site: Site) -> None:
    """The first has left, and the second is on the GPU with 100 of its 143 GB."""
    both(site)
    site.look()
    site.look(1000)
    site.leaves(FIRST)
    site.look()
    site.comes(SECOND_JOB)
    site.look(30)
    assert (site.order(FIRST), site.order(SECOND_JOB)) == (c.SWAP_TURN, c.SWAP_IN)


def agent_of(site: Site) -> TurnsTaken:
    return TurnsTaken(site.node.settings, lambda: site.last, lambda: int(site.now_s * SECOND))


def assert_fits(site: Site) -> None:
    """Who may use the GPU has what was asked for, beside what NVML shows of the others."""
    grants = {job: grant for job, grant in site.node.grants().items() if grant.gpu_uuid == UUIDS[0]}
    on = {job for job in grants if site.order(job) in ON}
    held = sum(max(grants[job].mem_mib, site.used_mib.get(job, 0)) for job in on)
    held += sum(mib for job, mib in site.used_mib.items() if job not in on)
    assert held <= GPU_MIB, {job: (site.order(job), site.used_mib.get(job), site.says.get(job)) for job in grants}
    assert sum(grants[job].cores_percent for job in on) <= 100
