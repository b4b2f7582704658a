# SPDX-License-Identifier: Apache-2.0
"""A site in the middle of a move from Slurm's shards (docs/migration.md): a node with these in a partition of its own,
beside one that hami_hpc manages. Prolog, epilog and SPANK plugin do nothing here."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from harness import config, daemons, jobs, services
from harness.config import write
from harness.layout import CPU_NODE, FIRST_NODE, ClusterError, Layout
from harness.second_node import DAEMONS, cancel_all, two_gpu_nodes

USER = "games"
OLD_GRES = "gpu:h200:2,shard:16"  # eight shards a GPU


@pytest.fixture(scope="module")
def _moving(_session_cluster: Layout) -> Iterator[Layout]:
    stages = dict.fromkeys(("prolog", "epilog"), "#!/bin/sh\nexit 0\n")
    with two_gpu_nodes(_session_cluster, config.site_toml(_session_cluster), "h200:2", stages, [USER]) as layout:
        for name in reversed(DAEMONS):
            daemons.stop(layout, name)
        _make_old(layout)
        for name in DAEMONS:
            daemons.start(layout, services.describe(layout, name))
        jobs.wait(layout, lambda: services.nodes_answer(layout, FIRST_NODE, CPU_NODE), "the nodes", 60)
        yield layout


def _make_old(layout: Layout) -> None:
    """Gives the second node the lines of a site with shards alone, and a partition of its own."""
    fragment, gres = layout.etc / "slurm-hami-hpc.conf", layout.etc / "hami-hpc-gres.conf"
    text, count = re.subn(
        rf"(NodeName={CPU_NODE} .*?)Gres=\S+(?: Feature=\S+)?", rf"\1Gres={OLD_GRES}", fragment.read_text()
    )
    assert count == 1
    write(fragment, text)
    devices = [config.device_file(layout, index) for index in range(2)]
    alone = gres.read_text().replace(f"NodeName={CPU_NODE},{FIRST_NODE} ", f"NodeName={FIRST_NODE} ")
    kept = [line for line in alone.splitlines() if f"NodeName={CPU_NODE} " not in line]
    old = [f"NodeName={CPU_NODE} Name=gpu Type=h200 File={device}" for device in devices]
    old += [f"NodeName={CPU_NODE} Name=shard Count=8 File={device}" for device in devices]
    write(gres, "\n".join([*kept, *old]) + "\n")
    conf = layout.etc / "slurm.conf"
    text = conf.read_text().replace(f"Nodes={FIRST_NODE},{CPU_NODE} ", f"Nodes={FIRST_NODE} ")
    write(conf, f"{text}PartitionName=old Nodes={CPU_NODE}\n")


@pytest.fixture
def moving(_moving: Layout) -> Iterator[Layout]:
    yield _moving
    cancel_all(_moving, [USER])


def say(layout: Layout, before: str, after: str) -> None:
    path = layout.etc / "hami_hpc_site.lua"
    text = path.read_text()
    assert f'["bare_shard"] = "{before}"' in text
    path.write_text(text.replace(f'["bare_shard"] = "{before}"', f'["bare_shard"] = "{after}"'))


def test_shards_are_refused_in_every_partition_unless_the_site_allows_them_for_the_move(moving: Layout) -> None:
    with pytest.raises(ClusterError, match="shards alone limit neither memory nor time"):
        jobs.submit(moving, USER, "--partition=old", "--gres=shard:2", script="true")
    say(moving, "refuse", "allow")
    try:
        old = jobs.submit(moving, USER, "--partition=old", "--gres=shard:2", script="sleep 60")
        new = jobs.submit(moving, USER, "--gres=vgpu:mem=25%,cores=25", script="sleep 60")
        for job, name, shards in ((old, CPU_NODE, 2), (new, FIRST_NODE, 139)):
            jobs.wait_for_state(moving, job, "RUNNING")
            facts = jobs.job_facts(moving, job)
            assert (facts["NodeList"], f"gres/shard={shards}" in facts["TRES"].split(",")) == (name, True)
    finally:
        say(moving, "allow", "refuse")


def test_a_vgpu_is_refused_in_the_partition_of_the_old_way(moving: Layout) -> None:
    with pytest.raises(ClusterError, match="has no GPU that hami_hpc manages"):
        jobs.submit(moving, USER, "--partition=old", "--gres=vgpu:mem=8G", script="true")


def test_whole_gpus_run_on_both(moving: Layout) -> None:
    for options, name in ((("--partition=old",), CPU_NODE), ((), FIRST_NODE)):
        job = jobs.submit(moving, USER, *options, "--gres=gpu:1", script="sleep 60")
        jobs.wait_for_state(moving, job, "RUNNING")
        assert jobs.job_facts(moving, job)["NodeList"] == name
