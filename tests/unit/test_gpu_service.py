# SPDX-License-Identifier: Apache-2.0
"""One GPU out of service and back: what its entry, its event and its line say, and what happens beside others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from node_testbed import UUIDS, Node
from test_out_of_service import OUT, FakeNode

from hami_hpc.core.out_of_service import DrainedGpu, Holding
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, drained_gpus, locks
from hami_hpc.node.event_reader import EventReader
from hami_hpc.stages import gpu_service, occupy

NAMES = tuple(f"GPU {minor} ({uuid})" for minor, uuid in enumerate(UUIDS))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def syslog(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda level, line: lines.append((level, line)))
    return lines


def events_of(node: Node) -> list[dict[str, object]]:
    """The node's events, without their times."""
    found = [dict(line.event) for line in EventReader(node.settings.state_dir).read() if line.event is not None]
    return [{name: value for name, value in event.items() if name != "time_unix_ns"} for event in found]


def entries(node: Node) -> list[tuple[str, int, int, str]]:
    return [entry[:4] for entry in drained_gpus.read(node.settings.state_dir)]


def test_what_the_agent_marks_is_an_event_with_its_error_and_a_warning(
    node: Node, syslog: list[tuple[int, str]]
) -> None:
    before = int(time.time())
    entry = gpu_service.mark(node.settings, UUIDS[1], "bus", source="agent", xid=79)
    assert drained_gpus.read(node.settings.state_dir) == (entry,)
    assert entry[:4] == (UUIDS[1], 1, 1, "bus")
    assert before <= entry.since_unix_s <= time.time()
    text = f"{NAMES[1]} is out of service: bus"
    (event,) = events_of(node)
    expected = {"kind": "gpu_drain", "source": "agent", "text": text, "gpu_uuid": UUIDS[1], "xid": 79}
    assert event == expected
    assert syslog == [(admin_log.WARNING, text)]


def test_gpus_are_listed_by_number_and_a_new_reason_keeps_the_time_and_the_others(node: Node) -> None:
    lost = OUT._replace(uuid="GPU-0", minor=2, slurm_index=2)
    drained_gpus.write(node.settings.state_dir, (lost, OUT._replace(uuid=UUIDS[1], minor=1, slurm_index=1)))
    gpu_service.mark(node.settings, "0", "fan")
    gpu_service.mark(node.settings, "1", "row remapping")
    assert entries(node) == [(UUIDS[0], 0, 0, "fan"), (UUIDS[1], 1, 1, "row remapping"), lost[:4]]
    assert drained_gpus.read(node.settings.state_dir)[1].since_unix_s == OUT.since_unix_s
    assert [(event["source"], "xid" in event) for event in events_of(node)] == [("gpu", False)] * 2


def test_the_agent_leaves_the_entry_of_a_gpu_that_is_out_already(node: Node, syslog: list[tuple[int, str]]) -> None:
    drained_gpus.write(node.settings.state_dir, (OUT,))
    assert gpu_service.mark(node.settings, UUIDS[0], "bus", source="agent", xid=79) == OUT
    assert drained_gpus.read(node.settings.state_dir) == (OUT,)
    assert (events_of(node), syslog) == ([], [])


def test_a_resumed_gpu_leaves_the_others_out_and_says_why_it_was(node: Node, syslog: list[tuple[int, str]]) -> None:
    other = OUT._replace(uuid=UUIDS[1], minor=1, slurm_index=1, reason="fan")
    drained_gpus.write(node.settings.state_dir, (OUT, other))
    slurm = FakeNode(Holding(90, 0, 559, True, True), Holding(91, 1, 559, True, True))
    assert gpu_service.resume(node.settings, slurm, "1") == f"{NAMES[1]} is in service again"
    assert drained_gpus.read(node.settings.state_dir) == (OUT,)
    assert [held.job_id for held in slurm.held] == [90]
    text = f"{NAMES[1]} is in service again. It was out of service: fan"
    (event,) = events_of(node)
    assert event == {"kind": "gpu_resume", "source": "gpu", "text": text, "gpu_uuid": UUIDS[1]}
    assert syslog == [(admin_log.WARNING, f"{NAMES[1]} is in service again")]


@pytest.mark.parametrize(
    ("count", "listed"), [(0, ""), (8, ": 1, 2, 3, 4, 5, 6, 7, 8"), (9, ": 1, 2, 3, 4, 5, 6, 7, 8 and 1 more")]
)
def test_the_jobs_that_go_on_are_listed_up_to_eight(node: Node, count: int, listed: str) -> None:
    jobs = [Holding(job_id, 0, 1, False, False) for job_id in range(1, count + 1)]
    slurm = FakeNode(*jobs, Holding(99, 1, 1, False, False))
    text = f"{NAMES[0]} is out of service: fan. {count} running job(s) go on{listed}"
    assert gpu_service.drain(node.settings, slurm, "0", "fan") == text


def test_a_part_that_stays_free_is_named_with_its_size(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_service, "WAIT_S", 0.0)
    slurm = FakeNode(Holding(7, 0, 558, False, False))
    slurm.looks = -1000
    with pytest.raises(NodeError) as caught:
        gpu_service.drain(node.settings, slurm, "0", "fan")
    assert str(caught.value) == (
        f"{NAMES[0]} is out of service, but 1 shards of it are still free for Slurm: the placeholder job did not start "
        "(squeue -n hami-hpc-drain). Jobs that Slurm starts there are refused. Run this again"
    )
    slurm.inside = "course"
    with pytest.raises(NodeError) as caught:
        gpu_service.drain(node.settings, slurm, "0", "fan")
    assert str(caught.value).endswith(
        " are refused. node1 is in the reservation course: let root use that too (scontrol update "
        "reservationname=course users+=root, or accounts+=), then run this again"
    )


def test_a_gpu_that_the_settings_do_not_know_has_nothing_to_hold(node: Node) -> None:
    """Such as one whose model was taken out of [gpu_models]: Slurm has no shards of it."""
    node.config.write_text(node.config.read_text().replace("h200", "a100"))
    slurm = FakeNode()
    assert gpu_service.drain(node.settings, slurm, "0", "fan").startswith(f"{NAMES[0]} is out of service: fan.")
    assert slurm.held == []


def test_a_gpu_that_is_not_here_is_refused_with_those_that_are() -> None:
    with pytest.raises(NodeError) as caught:
        gpu_service.find((), (), "3")
    assert str(caught.value) == "this node has no GPU 3. Its GPUs by minor number: none"


def test_the_file_is_changed_by_one_process_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_service, "FILE_LOCK_S", 0.1)
    path = Path(node.settings.run_dir) / gpu_service.FILE_LOCK
    held = locks.acquire(str(path), True, 1.0)
    with pytest.raises(locks.HeldError, match=str(path)):
        gpu_service.mark(node.settings, "0", "fan")
    os.close(held)
    gpu_service.mark(node.settings, "0", "fan")
    os.close(locks.acquire(str(path), True, 0.0))
    path.unlink()
    path.mkdir()
    with pytest.raises(NodeError) as caught:
        gpu_service.mark(node.settings, "1", "fan")
    assert str(caught.value) == f"{path} cannot be opened: Is a directory"
    assert [entry[0] for entry in entries(node)] == [UUIDS[0]]


def test_one_who_asks_for_a_gpu_waits_for_the_process_that_fills_it_and_not_for_ever(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    real = occupy.occupy

    def after_another(settings: object, slurm: FakeNode, timeout_s: float) -> occupy.Occupation:
        given.append(timeout_s)
        if len(given) % 3:
            raise locks.HeldError("/lock", 0.1)
        return real(node.settings, slurm, timeout_s)

    monkeypatch.setattr(occupy, "occupy", after_another)
    slurm = FakeNode()
    gpu_service.drain(node.settings, slurm, "0", "fan")
    assert [(held.slurm_index, held.shards) for held in slurm.held] == [(0, 559)]
    assert len(given) == 3
    assert all(gpu_service.WAIT_S - 5 < seconds <= gpu_service.WAIT_S for seconds in given)
    monkeypatch.setattr(gpu_service, "WAIT_S", 0.0)
    with pytest.raises(locks.HeldError, match=r"/drained-gpus\.lock: another process has held it for over 0 s"):
        gpu_service.resume(node.settings, slurm, "0")
    assert given[3:] == [1.0], "what has begun has a second at least"


def replaced(node: Node) -> DrainedGpu:
    """GPU 1 was taken out of service, and another one is in its place now."""
    gone = OUT._replace(uuid="GPU-gone", minor=1, slurm_index=1)
    drained_gpus.write(node.settings.state_dir, (gone,))
    return gone


def test_nothing_of_a_gpu_is_held_that_replaced_one_out_of_service(node: Node) -> None:
    gone = replaced(node)
    slurm = FakeNode()
    run = occupy.occupy(node.settings, slurm, 1.0)
    assert (run.indices(), slurm.queue, slurm.held) == (frozenset(), {}, [])
    assert gpu_service.drain(node.settings, slurm, "1", "fan").startswith(f"{NAMES[1]} is out of service: fan")
    assert [(held.slurm_index, held.shards) for held in slurm.held] == [(1, 559)]
    assert gpu_service.resume(node.settings, slurm, "1") == f"{NAMES[1]} is in service again"
    assert (slurm.held, drained_gpus.read(node.settings.state_dir)) == ([], (gone,))
    assert gpu_service.resume(node.settings, slurm, "1") == (
        f"{NAMES[1]} is in service, as before. GPU 1 (GPU-gone), which had that number, is still listed as out of "
        "service: hami-hpc gpu resume GPU-gone takes it off the list"
    )
    assert gpu_service.resume(node.settings, slurm, gone.uuid) == "GPU 1 (GPU-gone) is in service again"
    assert drained_gpus.read(node.settings.state_dir) == ()


def test_a_gpu_out_of_service_is_held_by_the_number_that_it_has_now(node: Node) -> None:
    """As when another GPU was taken out of the node, and those after it have other numbers."""
    moved = OUT._replace(uuid=UUIDS[1], minor=2, slurm_index=2)
    drained_gpus.write(node.settings.state_dir, (moved,))
    slurm = FakeNode()
    with pytest.raises(NodeError, match="no GPU 2"):
        gpu_service.resume(node.settings, slurm, "2")
    assert gpu_service.drain(node.settings, slurm, UUIDS[1], "fan").startswith(f"{NAMES[1]} is out of service: fan")
    assert [(held.slurm_index, held.shards) for held in slurm.held] == [(1, 559)]
