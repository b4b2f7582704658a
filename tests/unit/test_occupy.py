# SPDX-License-Identifier: Apache-2.0
"""The process of its own that keeps Slurm off GPUs out of service: how it starts, what it says, whom it waits for."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from node_testbed import UUIDS, Node

from hami_hpc.contract import constants as c
from hami_hpc.core.out_of_service import DrainedGpu, Holding
from hami_hpc.errors import NodeError
from hami_hpc.node import drain, drained_gpus, locks
from hami_hpc.slurm import placeholders
from hami_hpc.stages import common, occupy

OUT = DrainedGpu(UUIDS[0], 0, 0, "fan", 1_790_000_000)
HOLDS_ALL = " TimeLimit=UNLIMITED Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:559(IDX:0) "
# Notes how it was started; then answers as a Slurm on which placeholder 9 holds what is out of service.
PROGRAM = """#!{python} -IS
import json, os, sys
with open("{notes}", "a") as notes:
    notes.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ), os.getcwd()]) + "\\n")
if "show" in sys.argv:
    print("{holds}")
elif any(word.startswith("--format=%A|%T") for word in sys.argv):
    print("9|RUNNING|9|N/A")
elif "--format=%A" in sys.argv:
    print("9")
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node.make(tmp_path / "node")
    drained_gpus.write(made.settings.state_dir, (OUT,))
    return made


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which Slurm's commands note how they were started."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    path = folder / "notes"
    for name in ("squeue", "scontrol", "scancel"):
        text = PROGRAM.format(python=os.path.realpath(sys.executable), notes=path, holds=HOLDS_ALL)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(drain, "find_scontrol", lambda: str(folder / "scontrol"))
    return path


def started(notes: Path) -> list[tuple[str, list[str], dict[str, str], str]]:
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(common, "report", lambda stage, text: lines.append((stage, text)))
    return lines


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bytes]]:
    """Standard output, by its descriptor."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    real = os.write

    def write(fd: int, data: bytes) -> int:
        return real(writer if fd == 1 else fd, data)

    def read() -> bytes:
        try:
            return os.read(reader, 100)
        except BlockingIOError:
            return b""

    monkeypatch.setattr(os, "write", write)
    yield read
    os.close(reader)
    os.close(writer)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # as it should be
def test_a_process_of_its_own_asks_the_nodes_slurm_with_nothing_of_the_jobs(node: Node, notes: Path) -> None:
    given = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1", "SLURM_CONF": "/c", "SALLOC_PARTITION": "x"}
    begun = time.monotonic()
    occupy.start_detached(node.settings, given, 60.0)
    assert time.monotonic() - begun < 30, "it waits for the byte, not for the time to end"
    calls = started(notes)
    assert [name for name, *_ in calls[:3]] == ["squeue", "squeue", "scontrol"]
    assert "--nodelist=node1" in calls[0][1]
    for _, _, environment, folder in calls:
        assert (environment["SLURM_CONF"], environment["LC_ALL"], folder) == ("/c", "C", "/")
        assert environment["PATH"].split(":")[0] == str(notes.parent)
        assert not environment.keys() & {"SLURM_JOB_ID", "SALLOC_PARTITION", "HOME", "PYTHONPATH"}


def test_a_process_of_its_own_that_cannot_be_started_fails_nothing(
    node: Node, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    occupy.start_detached(node.settings, {}, 60.0)
    monkeypatch.setattr(drain, "find_scontrol", lambda: None)
    occupy.start_detached(node.settings, {}, 60.0)
    assert started(notes) == []


class Slurm(placeholders.Node):
    """Slurm on which the GPU is held by a placeholder, or by nobody."""

    made: tuple[str, dict[str, str]] | None = None
    is_held = True

    def __init__(self, name: str, env: dict[str, str]) -> None:
        super().__init__(name, env)
        type(self).made = (name, dict(env))

    def holdings(self) -> tuple[Holding, ...]:
        return (Holding(9, 0, 559, True, True),) if self.is_held else ()

    def pending(self, name: str = c.GRES_SHARD) -> dict[int, int]:
        return {}

    def partition(self) -> str:
        raise NodeError("node node1 is in no partition")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> type[Slurm]:
    monkeypatch.setattr(Slurm, "is_held", True)
    monkeypatch.setattr(placeholders, "Node", Slurm)
    return Slurm


def test_it_says_once_on_standard_output_that_slurm_knows_its_jobs(
    node: Node, slurm: type[Slurm], output: Callable[[], bytes], reports: list[tuple[str, str]]
) -> None:
    assert occupy.main(node.arguments, {"SLURMD_NODENAME": "node1", "PATH": "/p"}) == 0
    assert (output(), reports) == (b".", [])
    assert slurm.made == ("node1", {"SLURMD_NODENAME": "node1", "PATH": "/p"})
    assert occupy.main(node.arguments, {}) == 0
    assert slurm.made == ("", {})


def test_what_it_cannot_do_is_in_syslog(
    node: Node, slurm: type[Slurm], output: Callable[[], bytes], reports: list[tuple[str, str]]
) -> None:
    slurm.is_held = False
    assert occupy.main(node.arguments, {"SLURMD_NODENAME": "node1"}) == 1
    assert reports == [
        ("gpu drain", "node node1 is in no partition. Jobs that Slurm starts there are refused; see hami-hpc gpu list")
    ]
    assert output() == b""


def test_what_stays_free_is_in_syslog(
    node: Node, slurm: type[Slurm], reports: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.is_held = False
    monkeypatch.setattr(occupy, "DETACHED_S", 0.0)
    assert occupy.main(node.arguments, {"SLURMD_NODENAME": "node1"}) == 1
    ((stage, text),) = reports
    assert stage == "gpu drain"
    assert text.startswith(
        "placeholder jobs could not take what is free of GPUs out of service: {0: 559} (GPU: shards)"
    )


def test_a_second_one_waits_until_the_first_has_looked_again(
    node: Node, slurm: type[Slurm], output: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = f"{node.settings.run_dir}/{occupy.LOCK}"
    Path(node.settings.run_dir).mkdir(parents=True, exist_ok=True)
    held = locks.acquire(lock, True, 1.0)
    os.utime(lock, ns=(1, 1))  # its last look began before the second one did
    status: list[int] = []
    second = threading.Thread(target=lambda: status.append(occupy.main(node.arguments, {"SLURMD_NODENAME": "node1"})))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    os.utime(lock)
    second.join(10)
    assert (status, output()) == ([0], b"")
    os.utime(lock, ns=(1, 1))
    monkeypatch.setattr(occupy, "DETACHED_S", 0.3)  # and not for ever
    assert occupy.main(node.arguments, {"SLURMD_NODENAME": "node1"}) == 0
    os.close(held)


def test_a_gpu_that_the_driver_has_lost_is_known_by_slurms_number(node: Node, slurm: type[Slurm]) -> None:
    lost = OUT._replace(uuid="GPU-lost", slurm_index=1)
    elsewhere = OUT._replace(uuid=UUIDS[1], slurm_index=5)  # Slurm's numbers have changed since
    drained_gpus.write(node.settings.state_dir, (lost, elsewhere))
    run = occupy.Occupation(node.settings, slurm("node1", {}))
    assert (run.drained, run.held, run.indices()) == ((), (), frozenset())
    run.look()
    assert run.indices() == {1}


def test_placeholders_are_told_apart_from_jobs_and_by_their_gpu(node: Node, slurm: type[Slurm]) -> None:
    run = occupy.Occupation(node.settings, slurm("node1", {}))
    run.look()
    run.held = (
        Holding(1, 0, 10, True, True),
        Holding(2, 1, 10, True, True),
        Holding(3, 0, 10, False, True),
        Holding(4, 1, 10, False, True),
    )
    assert run.placeholders(on_drained=True) == [1]
    assert run.placeholders(on_drained=False) == [2]
