# SPDX-License-Identifier: Apache-2.0
"""Nodes that are not there until a job needs them, or until they say so: State=CLOUD, State=FUTURE, dynamic nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator

import pytest
from harness import config, daemons, jobs, node, services
from harness.layout import Layout
from test_power_saving import programs, state
from test_requests import total_mib

REQUEST = "--gres=vgpu:mem=8G,cores=20"


@pytest.fixture
def changing(restored: Layout) -> Iterator[Layout]:
    """The private cluster, whose nodes become others. slurmctld forgets afterwards what they were: of a dynamic node it
    takes features and gres from what it saved, and ignores slurm.conf's. Later releases do not start without that; with
    them this file has a cluster of its own (make test-matrix)."""
    yield restored
    for name in ("slurmd", "slurmctld"):
        daemons.stop(restored, name)
    if config.slurm_release() < (23, 2):
        forget_nodes(restored)


def forget_nodes(layout: Layout) -> None:
    for saved in (layout.root / "slurmctld").glob("node_state*"):
        saved.unlink()


def change_node_line(layout: Layout, change: Callable[[str], str]) -> str:
    """Changes what slurm.conf says of the GPU node, while its daemons are down. Returns what it said."""
    for name in ("slurmd", "slurmctld"):
        daemons.stop(layout, name)
    file = layout.etc / "slurm-hami-hpc.conf"
    (line,) = re.findall(rf"(?m)^NodeName={config.NODE} .*\n", file.read_text())
    config.write(file, file.read_text().replace(line, change(line)))
    return str(line)


def start_slurmd(layout: Layout, *options: str, name: str = config.NODE) -> None:
    usual = services.describe(layout, "slurmd")
    command = [name if word == config.NODE else word for word in usual.command]
    daemons.start(layout, dataclasses.replace(usual, command=(*command, "-b", *options)))


def of_a_dynamic_node(line: str) -> str:
    """Leaves out what slurmd says of itself: its name, address and port."""
    return re.sub(r"\b(NodeName|NodeHostname|NodeAddr|Port)=\S+ ", "", line).strip()


def nodes_of(layout: Layout, job: int) -> tuple[str, str, list[str]]:
    """Returns the nodes that `hami-hpc explain` calls powered down, and not there yet, and those that it describes."""
    (told,) = json.loads(jobs.admin(layout, "hami-hpc", "explain", "--format=json", str(job)))
    return told["powered_down"], told["future"], [place["node"] for place in told["may_use"]]


def has_its_slice(layout: Layout, job: int) -> None:
    jobs.wait_for_state(layout, job, "COMPLETED", timeout_s=90)
    assert total_mib(jobs.output(layout, "games", job)) == [8192, 8192]
    node.wait_until_clean(layout)


def test_a_job_brings_up_a_node_of_the_cloud(changing: Layout) -> None:
    change_node_line(changing, lambda line: f"{line.rstrip()} State=CLOUD\n")
    suspended, resumed = programs(changing)
    jobs.admin(changing, "scontrol", "update", f"nodename={config.NODE}", "state=power_down")
    jobs.wait(changing, suspended.exists, "SuspendProgram", 60)
    jobs.wait(changing, lambda: state(changing) == "idle~", "the node to be powered down", 60)
    is_shown = f"NodeName={config.NODE} " in jobs.admin(changing, "scontrol", "show", "nodes")
    assert ("nodes of the cloud" in jobs.admin(changing, "hami-hpc", "pool")) is not is_shown
    waiting = jobs.submit(changing, "news", "--hold", REQUEST, script="slice")
    assert nodes_of(changing, waiting) == (("", "", [config.NODE]) if is_shown else (config.NODE, "", []))

    job = jobs.submit(changing, "games", REQUEST, script="slice; srun slice")
    jobs.wait(changing, resumed.exists, "ResumeProgram", 60)
    start_slurmd(changing)
    has_its_slice(changing, job)
    assert nodes_of(changing, waiting) == ("", "", [config.NODE])


@pytest.mark.slurm_before("23.02")  # later its slurmd takes no name, and this host's is another node's here
def test_a_node_of_the_future_has_slices_from_when_it_registers(changing: Layout) -> None:
    cpus = os.cpu_count()

    def of_the_future(line: str) -> str:
        rest = re.sub(r"CPUs=\S+", "", of_a_dynamic_node(line))
        hardware = f"CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1"
        return f"NodeName={config.NODE} {hardware} {rest} State=FUTURE\n"

    change_node_line(changing, of_the_future)
    forget_nodes(changing)  # where it is a node that is there
    text = changing.slurm_conf.read_text()
    config.write(changing.slurm_conf, f"{text}SlurmdPort={changing.ports['slurmd']}\nTreeWidth=65533\n")
    daemons.start(changing, services.describe(changing, "slurmctld"))
    job = jobs.submit(changing, "games", REQUEST, script="slice; srun slice")
    assert nodes_of(changing, job) == ("", config.NODE, [])
    start_slurmd(changing, "-F", name="another-name")
    has_its_slice(changing, job)


def test_a_dynamic_node_has_slices_by_what_its_slurmd_says(changing: Layout) -> None:
    line = change_node_line(changing, lambda line: "")
    text = changing.slurm_conf.read_text().replace(f"Nodes={config.NODE} ", "Nodes=with_slices ")
    text = re.sub("(?m)^PartitionName", "NodeSet=with_slices Feature=vgpu_share\nPartitionName", text, count=1)
    text += f"MaxNodeCount=16\nSlurmdPort={changing.ports['slurmd']}\nTreeWidth=65533\n"
    config.write(changing.slurm_conf, text)
    daemons.start(changing, services.describe(changing, "slurmctld"))
    start_slurmd(changing, "-Z", "--conf", of_a_dynamic_node(line))
    job = jobs.submit(changing, "games", REQUEST, script="slice; srun slice")
    has_its_slice(changing, job)
