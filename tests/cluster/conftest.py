# SPDX-License-Identifier: Apache-2.0
"""The cluster tier's fixtures: one private Slurm for the whole run, left clean by every test.

    cluster   the running cluster's Layout; use it with harness.jobs and harness.node
    restored  as cluster, for tests that stop daemons or change configuration: everything is put back afterwards

HAMI_HPC_KEEP_CLUSTER=1 leaves the cluster in .cluster-test running after the tests, to look at.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import jobs, node
from harness.accounts import USERS
from harness.layout import CHECKOUT, Layout

ROOT = CHECKOUT / ".cluster-test"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def _session_cluster() -> Iterator[Layout]:
    with Path(f"{ROOT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run in this checkout ends first
        private_cluster.remove(ROOT)
        yield private_cluster.up(ROOT)
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def cluster(_session_cluster: Layout) -> Iterator[Layout]:
    """The private cluster. After the test all jobs are cancelled, and whatever they leave behind fails it."""
    yield _session_cluster
    leave_clean(_session_cluster)


@pytest.fixture
def restored(_session_cluster: Layout) -> Iterator[Layout]:
    """The private cluster, for a test that disturbs it: daemons and files are put back, then it must be clean."""
    yield _session_cluster
    private_cluster.up(ROOT)
    leave_clean(_session_cluster)


def leave_clean(layout: Layout) -> None:
    for user in ("root", *USERS):
        jobs.admin(layout, "scancel", f"--user={user}")
    jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h"), "all jobs to be gone", 60)
    node.wait_until_clean(layout)
    assert not node.drain_reason(layout), jobs.evidence(layout)
