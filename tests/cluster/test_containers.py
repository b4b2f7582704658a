# SPDX-License-Identifier: Apache-2.0
"""The limits hold in containers (docs/containers.md), and a container without them is found by the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import containers, jobs, node
from harness.agent import events_since, log_size
from harness.layout import Layout
from test_preload import set_preload
from test_requests import total_mib

USER, NEIGHBOUR = "games", "news"
REQUEST = ("--ntasks=2", "--gres=vgpu:mem=2G,cores=10")
RUN = {
    "apptainer": "in_apptainer '{}'",
    "enroot": "in_enroot '{}'",
    "slurm": "srun -n1 --overlap {} --container=$PWD/bundle /bin/sh -c '{}'",
}
NAMES = ("APPTAINER_BINDPATH", "SINGULARITY_BINDPATH")
SHOW = "env | sort | grep -E '^(APPTAINER|SINGULARITY)_BIND'; echo end"
pytestmark = pytest.mark.ldso


@pytest.fixture(scope="module")
def images(_session_cluster: Layout) -> Iterator[None]:
    containers.install(_session_cluster, USER, NEIGHBOUR)
    # Where an earlier test gave the node other simulated GPUs, the agent still looks at those.
    private_cluster.restart(_session_cluster, "agent")
    yield
    containers.remove(_session_cluster)


def ours(layout: Layout) -> str:
    place = "/run/hami-hpc/self"
    library = layout.interposer
    return f"{place}:{place},{place}/container.preload:/etc/ld.so.preload:ro,{library}:{library}:ro"


def text_of(layout: Layout, script: str, *options: str) -> str:
    job = jobs.submit(layout, USER, *(options or REQUEST), script=f"exec 2>&1\n{script}")
    jobs.wait_for_state(layout, job, "COMPLETED")
    return jobs.output(layout, USER, job)


def lines_of(text: str) -> list[str]:
    """Returns the lines that the container's command printed: without those of runc's own, which differ by release."""
    return [line for line in text.splitlines() if not line.startswith("time=")]


def in_container(how: str, command: str, options: str = "") -> str:
    """Returns a command of a job script that runs `command` in a container, whose runtime is told by SPANK alone."""
    words = (options, command) if how == "slurm" else (command,)
    return RUN[how].format(*words)


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("how", RUN)
def test_the_limit_holds_without_the_users_doing(how: str, cluster: Layout) -> None:
    commands = "cat /etc/ld.so.preload; env -i cat /proc/self/maps | grep -q libhami-hpc.so && echo fenced; "
    text = text_of(cluster, in_container(how, commands + containers.with_kernel(cluster, "slice")))
    assert lines_of(text)[:2] == [str(cluster.interposer), "fenced"], text
    assert total_mib(text) == [2048]
    assert "CUDA_ERROR_OUT_OF_MEMORY       2048 of 2048 MiB in use" in text


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("how", RUN)
def test_in_a_job_without_a_slice_containers_are_left_alone(how: str, cluster: Layout) -> None:
    command = "cat /etc/ld.so.preload /run/hami-hpc/self/step.limits 2>/dev/null; echo end"
    text = text_of(cluster, f"rm -f bundle/rootfs/etc/ld.so.preload; {in_container(how, command)}", "-n1")
    assert lines_of(text) == ["end"]


@pytest.mark.usefixtures("images")
def test_two_tenants_and_a_smaller_step_in_containers_on_one_gpu(cluster: Layout) -> None:
    """The agent looks at all of it, and check_findings sees that it finds nothing."""
    use = containers.with_kernel(cluster, "slice --use {} --hold 3; echo status $?")
    step = containers.with_kernel(cluster, "slice --use 16")
    smaller = in_container("slurm", step, "--gres=vgpu:mem=1G,cores=5")
    script = f"{in_container('slurm', use.format(900))} &\n{smaller}\nwait"
    first = jobs.submit(cluster, USER, *REQUEST, script=script)
    second = jobs.submit(cluster, NEIGHBOUR, *REQUEST, script=in_container("apptainer", use.format(1000)))
    for job in (first, second):
        jobs.wait_for_state(cluster, job, "COMPLETED")
    text = jobs.output(cluster, USER, first)
    assert sorted(total_mib(text)) == [1024, 2048], text
    assert "status 0" in text
    assert "status 0" in jobs.output(cluster, NEIGHBOUR, second)
    node.wait_until_clean(cluster)
    record = json.loads((cluster.state_dir / "usage" / f"{second}.json").read_text())
    assert record["mode"] == "share"
    assert record["peak_bytes"] == record["observed_peak_bytes"] == (1000 + 512) << 20


@pytest.mark.findings("no_interposer", "uncounted", "memory_over")
@pytest.mark.usefixtures("images")
def test_the_agent_finds_a_container_that_is_not_limited(cluster: Layout) -> None:
    """Started by runc itself, with a bundle that oci-mounts has not changed."""
    start = log_size(cluster)
    command = ["/bin/sh", "-c", "unset LD_PRELOAD; exec slice --use 3000 --hold 60"]
    change = f"import json; c = json.load(open('config.json')); c['process']['args'] = {command}"
    script = f"cp -r bundle open; cd open; python3 -c \"{change}; json.dump(c, open('config.json', 'w'))\"\n"
    script += "exec runc --rootless=true --root=$HOME/runc run open"
    job = jobs.submit(cluster, USER, *REQUEST, script=script)
    jobs.wait(cluster, lambda: any(e.kind == "no_interposer" for e in events_since(cluster, start)), "it", 30, job)
    assert all(event.job_id == job for event in events_since(cluster, start))


def test_the_users_own_binds_are_kept_and_given_once(cluster: Layout) -> None:
    own = "/my data:/mnt:ro,/x\\,y"
    lines = f'srun -n1 sh -c "{SHOW}"; export APPTAINER_BIND=/a; srun -n1 --export=NONE sh -c "{SHOW}"'
    done = jobs.run_as(
        cluster, USER, ("sbatch", "--parsable", *REQUEST), {NAMES[0]: own}, stdin=f"#!/bin/sh\n{SHOW}\n{lines}\n"
    )
    job = int(done.out)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    batch, step, none = jobs.output(cluster, USER, job).split("end\n")[:3]
    wanted = "".join(f"{name}={ours(cluster)},{own}\n" for name in NAMES)
    assert batch == step == wanted, "SingularityCE and Apptainer alike, without a warning that they differ"
    assert none == "".join(f"{name}={ours(cluster)}\n" for name in NAMES)


def test_a_job_without_a_slice_has_no_binds_and_inherits_none(cluster: Layout) -> None:
    assert text_of(cluster, SHOW, "-n1") == "end\n"
    submit = f'export APPTAINER_BINDPATH=/a,$APPTAINER_BINDPATH; sbatch --parsable -n1 --wrap "{SHOW}"'
    inner = int(text_of(cluster, submit))
    jobs.wait_for_state(cluster, inner, "COMPLETED")
    assert jobs.output(cluster, USER, inner) == "APPTAINER_BINDPATH=/a\nend\n"


def test_a_value_that_linux_would_not_pass_on_is_left_alone(cluster: Layout) -> None:
    """128 KiB is the most for one variable: with more no program of the step would start."""
    value = "$(head -c 130900 /dev/zero | tr '\\0' a)"
    script = f"export APPTAINER_BINDPATH={value}; srun -n1 sh -c 'echo ${{#APPTAINER_BINDPATH}}'"
    assert text_of(cluster, script) == "130900\n"


def test_with_preload_env_the_library_is_in_the_environment_and_nothing_is_bound(restored: Layout) -> None:
    set_preload(restored, "env")
    text = text_of(restored, f"echo $LD_PRELOAD; {SHOW}")
    assert jobs.without_simulation(restored, text) == f"{restored.interposer}\nend\n"
