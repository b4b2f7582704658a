# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/gpu_drains.py: a GPU is out of service for prologs at once, and Slurm is asked until it has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from node_testbed import UUIDS, Node
from test_out_of_service import FakeNode

from hami_hpc.agent import gpu_drains
from hami_hpc.agent.gpu_drains import GpuDrains
from hami_hpc.errors import NodeError
from hami_hpc.node import drained_gpus
from hami_hpc.node.event_reader import EventReader
from hami_hpc.slurm import placeholders
from hami_hpc.stages import gpu_service

REASON = "Xid 79: GPU has fallen off the bus"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    fake = FakeNode()
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: fake)
    monkeypatch.setattr(gpu_drains, "AGAIN_S", 0.2)
    monkeypatch.setattr(gpu_service, "WAIT_S", 0.2)
    return fake


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def reasons(node: Node) -> dict[str, str]:
    return {gpu.uuid: gpu.reason for gpu in drained_gpus.read(node.settings.state_dir)}


def kinds(node: Node) -> list[str]:
    return [line.event["kind"] for line in EventReader(node.settings.state_dir).read() if line.event]


def make(node: Node) -> tuple[GpuDrains, list[str]]:
    lines: list[str] = []
    return GpuDrains(node.settings, "node1", lines.append), lines


def test_a_gpu_is_marked_and_filled_once(node: Node, slurm: FakeNode) -> None:
    drains, lines = make(node)
    for _ in range(5):
        drains.drain(UUIDS[1], REASON, 79)
    until(lambda: bool(slurm.held))
    time.sleep(0.5)
    assert reasons(node) == {UUIDS[1]: REASON}
    assert kinds(node) == ["gpu_drain"]
    assert [held.shards for held in slurm.held] == [559]
    assert lines == []


def test_while_slurm_does_not_answer_prologs_refuse_the_gpu_and_it_is_tried_again(
    node: Node, slurm: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains, lines = make(node)
    is_up = threading.Event()
    real = slurm.holdings

    def holdings() -> object:
        if not is_up.is_set():
            raise NodeError("squeue failed: Unable to contact slurm controller")
        return real()

    monkeypatch.setattr(slurm, "holdings", holdings)
    drains.drain(UUIDS[0], REASON, 79)
    until(lambda: len(lines) >= 2)
    assert reasons(node) == {UUIDS[0]: REASON}
    assert "Unable to contact" in lines[0]
    is_up.set()
    until(lambda: bool(slurm.held))


def test_a_persons_reason_stays(node: Node, slurm: FakeNode) -> None:
    gpu_service.mark(node.settings, "1", "fan is loud")
    drains, _ = make(node)
    drains.drain(UUIDS[1], REASON, 79)
    until(lambda: bool(slurm.held))
    assert reasons(node) == {UUIDS[1]: "fan is loud"}
    assert kinds(node) == ["gpu_drain"]


def test_a_gpu_that_was_resumed_meanwhile_is_left_alone(
    node: Node, slurm: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains, lines = make(node)
    monkeypatch.setattr(gpu_service, "fill", lambda *_words: (_ for _ in ()).throw(NodeError("no")))
    drains.drain(UUIDS[1], REASON, 79)
    until(lambda: bool(lines))
    drained_gpus.write(node.settings.state_dir, ())
    until(lambda: not drains._fills)
    count = len(lines)
    time.sleep(0.6)
    assert (len(lines), reasons(node)) == (count, {})


def test_a_state_directory_that_cannot_be_written_is_tried_again(node: Node, slurm: FakeNode) -> None:
    state = Path(node.settings.state_dir)
    state.write_text("in the way")
    drains, lines = make(node)
    drains.drain(UUIDS[1], REASON, 79)
    until(lambda: len(lines) >= 2)
    assert "cannot be taken out of service" in lines[0]
    state.unlink()
    until(lambda: reasons(node) == {UUIDS[1]: REASON})


def test_a_gpu_that_nobody_knows_keeps_no_other_from_being_drained(node: Node, slurm: FakeNode) -> None:
    drains, lines = make(node)
    drains.drain("GPU-unknown", REASON, 79)
    drains.drain(UUIDS[0], REASON, 79)
    until(lambda: reasons(node) == {UUIDS[0]: REASON} and bool(lines))
    assert "this node has no GPU GPU-unknown" in lines[0]


def test_two_that_change_the_file_at_once_lose_nothing(node: Node, slurm: FakeNode) -> None:
    """An administrator and the agent: each reads, changes and replaces the whole file."""
    threads = [
        threading.Thread(target=gpu_service.mark, args=(node.settings, uuid, REASON))
        for _ in range(8)
        for uuid in UUIDS[:2]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(reasons(node)) == set(UUIDS[:2])
    assert kinds(node) == ["gpu_drain", "gpu_drain"]
