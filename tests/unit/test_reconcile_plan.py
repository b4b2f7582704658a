# SPDX-License-Identifier: Apache-2.0
"""What reconcile plans for each state of a node: whole actions, with the sentences that it prints."""

from __future__ import annotations

import pytest

from hami_hpc.core.grant import Grant
from hami_hpc.core.reconcile_plan import (
    LEFTOVER_AGE_S,
    OF_ANOTHER_VERSION,
    Action,
    Directory,
    Kind,
    NodeState,
    make_plan,
)

GPUS = ("GPU-1", "GPU-2")
CAPACITY = dict.fromkeys(GPUS, 1000)
GRANT = Grant(7, 65534, GPUS[0], 3, 1000, "h200", 400, 50, "std", "cap", "share", 10**18)
OTHER = GRANT._replace(job_id=8, gpu_uuid=GPUS[1], gpu_minor=4)
LEFT = "is no longer on this node; its"
AGED = float(LEFTOVER_AGE_S)


def directory(grant: Grant | None, name: str = "7", **given: bool) -> Directory:
    grants = () if grant is None else (grant,)
    return Directory(name, int(name) if name.isdigit() else None, grants, given.get("is_ended", False), 0.0)


def state(
    rows: tuple[Grant, ...] = (),
    directories: tuple[Directory, ...] = (),
    running: frozenset[int] | None = frozenset({7, 8}),
    **more: object,
) -> NodeState:
    given: dict[str, object] = {"void": (), "capacity_mib": CAPACITY} | more
    return NodeState(rows=rows, directories=directories, running=running, **given)  # type: ignore[arg-type]


NOBODY: frozenset[int] = frozenset()
ENDED = directory(GRANT, ".ended-7-1", is_ended=True)
UNMARKED = directory(None, ".ended-7-1", is_ended=True)
NEWER = GRANT._replace(created_unix_ns=GRANT.created_unix_ns + 1)
RESTORE_ROW = Action(
    Kind.RESTORE_ROW, "job 7: runs here but is not in the ledger; it is restored from its run directory", 7, (GRANT,)
)
RESTORE_DIRECTORY = Action(Kind.RESTORE_DIRECTORY, "job 7: its run directory was lost and is restored", 7, (GRANT,))
SPOOL = Action(
    Kind.SPOOL, "job 7: is no longer on this node; its usage is spooled and its run directory removed", 7, (GRANT,), "7"
)
NO_SLURM = (
    "Slurm did not list the jobs of this node, so no grant was ended. Run hami-hpc reconcile again when it does{}"
)
NO_NVML = "NVML does not answer, so grants were not compared with the GPUs. Run nvidia-smi{}"
GONE = "job 7: its GPU 3 (GPU-1) is gone. Drain this node, and check dmesg (Xid) and nvidia-smi"
TWICE = "GPU GPU-1: jobs 7, 9 hold 1001 MiB of 1000. Drain this node and cancel one of them"

PLANS: dict[str, tuple[NodeState, list[Action]]] = {
    "all is well": (state((GRANT,), (directory(GRANT),)), []),
    "its records are of another version": (
        state((GRANT,), (Directory("7", 7, (), False, 0.0, is_foreign=True),)),
        [Action(Kind.PROBLEM, f"job 7: {OF_ANOTHER_VERSION}", 7)],
    ),
    "its records were of another version": (
        state((GRANT,), (Directory("7", 7, (), False, 0.0, is_foreign=True),), NOBODY),
        [Action(Kind.END, f"job 7: {LEFT} 400 MiB of GPU 3 are free again", 7, (GRANT,), "7")],
    ),
    "a row of another boot": (
        state(void=(GRANT,)),
        [Action(Kind.DROP_VOID, "job 7: its grant of 400 MiB is of an earlier boot and is dropped", 7, (GRANT,))],
    ),
    "the job has left": (
        state((GRANT,), (directory(GRANT),), NOBODY),
        [Action(Kind.END, f"job 7: {LEFT} 400 MiB of GPU 3 are free again", 7, (GRANT,), "7")],
    ),
    "no directory": (state((GRANT,)), [RESTORE_DIRECTORY]),
    "a directory without a record": (state((GRANT,), (directory(None),)), [RESTORE_DIRECTORY]),
    "a directory of another run": (state((GRANT,), (directory(NEWER),)), [RESTORE_DIRECTORY]),
    "no row, and the job runs": (state((), (directory(GRANT),)), [RESTORE_ROW]),
    "no row and no record, and the job runs": (state((), (directory(None),)), []),
    "no row, and the job has left": (state((), (directory(GRANT),), NOBODY), [SPOOL]),
    "no row and no record, and the job has left": (
        state((), (directory(None),), NOBODY),
        [Action(Kind.REMOVE_DIRECTORY, "job 7: its run directory is removed; it ended without a grant", 7, name="7")],
    ),
    "set aside by an epilog": (
        state((), (ENDED,)),
        [
            Action(
                Kind.SPOOL, "job 7: its usage, set aside when the spool was full, is spooled", 7, (GRANT,), ENDED.name
            )
        ],
    ),
    "set aside without a record": (
        state((), (UNMARKED,)),
        [
            Action(
                Kind.REMOVE_DIRECTORY,
                ".ended-7-1: is removed; it has no limits record, so its usage cannot be assigned to a job",
                name=UNMARKED.name,
            )
        ],
    ),
    "set aside for a person": (
        state((), (Directory(".bad-7-1", None, (), False, AGED, is_bad=True),)),
        [
            Action(
                Kind.PROBLEM,
                ".bad-7-1 in the run directory's jobs could not be handled and was set aside. Report it, then "
                "unmount its shared (umount -l) and remove it (rm -r)",
                name=".bad-7-1",
            )
        ],
    ),
    "half made, and old": (
        state((), (Directory(".new-7-1", None, (), False, AGED),)),
        [
            Action(
                Kind.REMOVE_DIRECTORY,
                ".new-7-1: is removed; an interrupted prolog or epilog left it",
                name=".new-7-1",
            )
        ],
    ),
    "half made, and new": (state((), (Directory(".new-7-1", None, (), False, AGED - 0.001),)), []),
    "Slurm is silent": (
        state((GRANT,), (directory(OTHER, "8"),), None),
        [Action(Kind.PROBLEM, NO_SLURM.format(""))],
    ),
    "Slurm says why": (
        state(running=None, slurm_problem="it is down"),
        [Action(Kind.PROBLEM, NO_SLURM.format(" (it is down)"))],
    ),
    "NVML is silent": (
        state((GRANT,), (directory(GRANT),), capacity_mib=None),
        [Action(Kind.PROBLEM, NO_NVML.format(""))],
    ),
    "NVML says why": (
        state(capacity_mib=None, driver_problem="no driver"),
        [Action(Kind.PROBLEM, NO_NVML.format(" (no driver)"))],
    ),
    "a GPU is gone": (
        state((GRANT,), (directory(GRANT),), capacity_mib={GPUS[1]: 1000}),
        [Action(Kind.PROBLEM, GONE, 7)],
    ),
    "a GPU is gone and Slurm is silent": (
        state((GRANT,), (directory(GRANT),), None, capacity_mib={}),
        [Action(Kind.PROBLEM, NO_SLURM.format("")), Action(Kind.PROBLEM, GONE, 7)],
    ),
    "a GPU is gone with a job that has left": (
        state((GRANT,), (directory(GRANT),), NOBODY, capacity_mib={}),
        [Action(Kind.END, f"job 7: {LEFT} 400 MiB of GPU 3 are free again", 7, (GRANT,), "7")],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_each_state_has_its_actions_word_for_word(name: str) -> None:
    given, expected = PLANS[name]
    assert list(make_plan(given)) == expected


def planned(*grants: Grant, running: frozenset[int]) -> list[Action]:
    return list(make_plan(state(grants, tuple(directory(grant, str(grant.job_id)) for grant in grants), running)))


def test_only_grants_of_one_gpu_that_are_live_are_added_up() -> None:
    full = GRANT._replace(mem_mib=1000)
    assert planned(full, OTHER._replace(mem_mib=1000), running=frozenset({7, 8})) == [], "each GPU by itself"
    one_more = GRANT._replace(job_id=9, mem_mib=1)
    expected = [Action(Kind.PROBLEM, TWICE)]
    assert planned(full, OTHER, one_more, running=frozenset({7, 8, 9})) == expected
    assert [action.kind for action in planned(full, one_more, running=frozenset({7}))] == [Kind.END]


def test_what_one_entry_needs_does_not_end_the_plan_of_the_others() -> None:
    third = GRANT._replace(job_id=9)
    plan = planned(GRANT, OTHER, third, running=frozenset({8}))
    assert [(action.kind, action.job_id) for action in plan] == [(Kind.END, 7), (Kind.END, 9)]
    entries = (directory(None, "5"), ENDED, directory(GRANT), directory(OTHER, "8"))
    assert [action.name for action in make_plan(state((OTHER,), entries, frozenset({5, 8})))] == [ENDED.name, "7"]
    both_gone = make_plan(state((GRANT, OTHER), (directory(GRANT), directory(OTHER, "8")), capacity_mib={}))
    assert [action.job_id for action in both_gone] == [7, 8]


def test_usage_that_was_set_aside_is_spooled_before_its_row_is_ended() -> None:
    kinds = [action.kind for action in make_plan(state((GRANT,), (ENDED,), NOBODY, void=(OTHER,)))]
    assert kinds == [Kind.DROP_VOID, Kind.SPOOL, Kind.END]
