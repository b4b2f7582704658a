# SPDX-License-Identifier: Apache-2.0
"""Each mode's stages at every fault point: killed there, or from there on with a full or read-only disk, or with an
NVML that fails. From each state that this leaves, the retry, the epilog and reconcile follow in each order."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from fault_beds import BESIDE, Bed, MigBed, MpsBed, PairBed, explore, quick
from fault_points import failing_from, killed_at, nvml_failing_at
from mig_testbed import MigNode
from mps_testbed import MpsNode
from node_testbed import Node


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Callable[[Bed], None]], None]]:
    """Returns a function that makes a node of a mode and gives it to a test's body."""
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: None)
    stack = ExitStack()

    def run(mode: str, body: Callable[[Bed], None]) -> None:
        def start(bed: Bed) -> None:
            with quick():
                bed.start()
                body(bed)

        if mode == "mig":
            mig_node = MigNode.make(tmp_path, monkeypatch)
            mig_node.make_foreign()
            mig_node.run(lambda: start(MigBed(mig_node.node, bed=mig_node)))
        elif mode == "share":
            start(Bed(Node.make(tmp_path / "node")))
        elif mode == "two slices":
            monkeypatch.setattr("hami_hpc.stages.several_gpus._shards", lambda _job_id, _environment: {0: 32, 1: 32})
            start(PairBed(Node.make(tmp_path / "node")))
        else:
            mps_node = stack.enter_context(MpsNode.running())
            monkeypatch.setenv("HAMI_SIM", str(mps_node.root.parent / "sim"))
            if mode == "mps, partitions":
                mps_node.set_driver()
            bed = MpsBed(mps_node)
            start(bed)
            assert bed.epilog(BESIDE) == 0
            mps_node.assert_no_mps()

    with stack:
        yield run


MODES = pytest.mark.parametrize("mode", ["share", "two slices", "mig", "mps", "mps, partitions"])


def stages(bed: Bed) -> Iterator[tuple[str, Callable[[], None], Callable[[], object]]]:
    """Yields each stage's name, what comes before it, and itself, as slurmd or an administrator starts it."""
    yield "prolog", bed.without_job, bed.prolog
    yield "epilog", bed.with_job, bed.epilog
    yield "reconcile", bed.with_job, partial(bed.run_reconcile, BESIDE)


@pytest.mark.own_process
@MODES
def test_stages_killed_at_any_fault_point(mode: str, make: Callable[..., None]) -> None:
    def body(bed: Bed) -> None:
        for _name, before, run in stages(bed):
            explore(bed, before, partial(killed_at, run))

    make(mode, body)


def on_bad_disk(name: str, folder: str, run: Callable[[], object]) -> None:
    """No epilog fails by a disk. A prolog fails by the run directory's alone, and neither has an unexpected error."""
    status = run()
    assert name == "reconcile" or status == 0 or (name, folder, status) == ("prolog", "run", 1)


# A read-only disk refuses all that a full one does. The spool's disk is the same code in each mode.
@pytest.mark.parametrize(
    ("mode", "code", "folders"),
    [
        ("share", errno.ENOSPC, ("run", "state")),
        ("share", errno.EROFS, ("run", "state")),
        ("two slices", errno.ENOSPC, ("run",)),
        ("mig", errno.EROFS, ("run",)),
        ("mps", errno.EROFS, ("run",)),
        ("mps, partitions", errno.ENOSPC, ("run",)),
    ],
    ids=["share, full", "share, read-only", "two slices, full", "mig, read-only", "mps, read-only", "partitions, full"],
)
def test_stages_on_a_disk_that_fails_from_any_fault_point_on(
    mode: str, code: int, folders: tuple[str, ...], make: Callable[..., None]
) -> None:
    def body(bed: Bed) -> None:
        for name, before, run in stages(bed):
            for folder in folders:
                checked = partial(on_bad_disk, name, folder, run)
                explore(bed, before, partial(failing_from, checked, code, str(bed.node.root / folder)), 0)

    make(mode, body)


@pytest.mark.parametrize(
    ("code", "is_for_good"),
    [(3, False), (6, False), (15, True)],
    ids=["not supported", "not found", "lost from then on"],
)
def test_stages_with_an_nvml_that_fails_at_any_call(code: int, is_for_good: bool, make: Callable[..., None]) -> None:
    def body(bed: Bed) -> None:
        for _name, before, run in stages(bed):
            explore(bed, before, partial(nvml_failing_at, run, code, is_for_good))

    make("mig", body)
