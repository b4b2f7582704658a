# SPDX-License-Identifier: Apache-2.0
"""The cluster tier's fixtures: one private Slurm for the whole run, left clean by every test.

    cluster   the running cluster's Layout; use it with harness.jobs and harness.node
    restored  as cluster, for tests that stop daemons or change configuration: everything is put back afterwards

Of several workers (pytest-xdist) each has a cluster of its own, .cluster-test and .cluster-test-gw1 and so on.
HAMI_HPC_KEEP_CLUSTER=1 leaves it running after the tests, to look at.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import agent, config, jobs, node
from harness import cluster as private_cluster
from harness.accounts import USERS
from harness.layout import CHECKOUT, Layout

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / (".cluster-test" if WORKER == "gw0" else f".cluster-test-{WORKER}")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.cluster)
    of_another = [item for item in mine if not (is_for_this_slurm(item) and is_for_these_mounts(item))]
    items[:] = [item for item in items if item not in of_another]
    session.config.hook.pytest_deselected(items=of_another)


def is_for_this_slurm(item: pytest.Item) -> bool:
    """False for a test with the mark slurm_before("23.02") where Slurm is of that release or a later one, and with
    slurm_from("23.11") where it is older."""

    def is_before(mark: pytest.Mark) -> bool:
        year, month = mark.args[0].split(".")
        return config.slurm_release() < (int(year), int(month))

    early = all(is_before(mark) for mark in item.iter_markers("slurm_before"))
    return early and not any(is_before(mark) for mark in item.iter_markers("slurm_from"))


def is_for_these_mounts(item: pytest.Item) -> bool:
    """False for a test with the mark ldso where tasks cannot have mounts of their own (test_preload.py has that)."""
    return item.get_closest_marker("ldso") is None or config.preload_mode() == "ldso"


@pytest.fixture(scope="session")
def _session_cluster() -> Iterator[Layout]:
    with Path(f"{ROOT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run in this checkout ends first
        private_cluster.remove(ROOT)
        yield private_cluster.up(ROOT)
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def cluster(_session_cluster: Layout, request: pytest.FixtureRequest) -> Iterator[Layout]:
    """The private cluster. After the test all jobs are cancelled, and whatever they leave behind fails it."""
    start = agent.log_size(_session_cluster)
    yield _session_cluster
    leave_clean(_session_cluster)
    check_findings(_session_cluster, start, request.node)


@pytest.fixture
def restored(_session_cluster: Layout, request: pytest.FixtureRequest) -> Iterator[Layout]:
    """The private cluster, for a test that disturbs it: daemons and files are put back, then it must be clean."""
    start = agent.log_size(_session_cluster)
    yield _session_cluster
    private_cluster.up(ROOT)
    leave_clean(_session_cluster)
    check_findings(_session_cluster, start, request.node)


def check_findings(layout: Layout, start: int, test: pytest.Item) -> None:
    """Checks that the agent found what the test's mark findings(KIND, ...) names, at the most: no false alarm."""
    allowed = {kind for mark in test.iter_markers("findings") for kind in mark.args}
    found = agent.events_since(layout, start)
    assert not [event for event in found if event.kind not in allowed], found


def leave_clean(layout: Layout) -> None:
    for user in ("root", *USERS):
        jobs.admin(layout, "scancel", f"--user={user}")
    jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h"), "all jobs to be gone", 60)
    node.wait_until_clean(layout)
    assert not node.drain_reason(layout), jobs.evidence(layout)
