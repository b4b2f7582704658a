# SPDX-License-Identifier: Apache-2.0
"""A second cluster beside the private one, with its munge key, slurmdbd and home directories: for -M and federations.

It has one GPU of another model and another shard_mib, so that a size that is computed by the wrong cluster's settings
shows. Its node has no agent.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager

from . import accounts, cluster, config, daemons, jobs, services
from .files import write
from .layout import Layout, Machine, open_or_create, save

NAME = "other"
MODEL = "a100-40"
SHARD_MIB = 512
DAEMONS = ("slurmctld", "slurmd")


@contextmanager
def second_cluster(first: Layout, first_job_id: int) -> Iterator[Layout]:
    """Runs a second cluster with the first one's munged and slurmdbd. first_job_id: the number of its first job."""
    layout = make(first, first_job_id)
    try:
        accounts.make_accounts(first, NAME)
        for name in DAEMONS:
            daemons.start(layout, services.describe(layout, name))
        yield layout
    finally:
        cluster.remove(layout.root)
        jobs.admin(first, "sacctmgr", "-i", "delete", "cluster", NAME)


def make(first: Layout, first_job_id: int) -> Layout:
    """Writes the files of a new second cluster."""
    root = first.root.with_name(f"{first.root.name}-{NAME}")
    cluster.remove(root)
    made = open_or_create(root, [Machine(MODEL, 1)])
    layout = dataclasses.replace(made, ports={**made.ports, "slurmdbd": first.ports["slurmdbd"]})
    save(layout)
    for own, shared in ((layout.munge_socket.parent, first.munge_socket.parent), (layout.home, first.home)):
        own.rmdir()
        own.symlink_to(shared)
    config.install(layout)
    change(layout, "slurm.conf", r"ClusterName=.*", f"ClusterName={NAME}\nFirstJobId={first_job_id}")
    change(layout, "hami-hpc.toml", r"shard_mib = .*", f"shard_mib = {SHARD_MIB}")
    config.render(layout)
    return layout


def change(layout: Layout, name: str, pattern: str, line: str) -> None:
    """Replaces the one line of a file in etc that matches."""
    text, count = re.subn(rf"^{pattern}$", line, (layout.etc / name).read_text(), flags=re.MULTILINE)
    assert count == 1, (name, pattern)
    write(layout.etc / name, text)
