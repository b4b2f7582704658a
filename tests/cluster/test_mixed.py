# SPDX-License-Identifier: Apache-2.0
"""A node with GPUs of two models: render and doctor refuse it, and where it is in service by hand all the same, a job
that Slurm gave the wrong GPU is refused, and the node never drains."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, node, services
from harness.config import write
from harness.layout import CHECKOUT, Layout

USER = "games"
A100_MIB = 40000
DAEMONS = ("slurmctld", "slurmd")


def by_hand(layout: Layout, types: str) -> None:
    """What an administrator may have written for both models; `types` in the order of the NodeName line."""
    gpus = [config.device_file(layout, index) for index in range(2)]
    shards = 143156 // 256 + A100_MIB // 256
    counted = "".join(f"NodeName=node1 Name=vgpu Type={name} Count={shards}\n" for name in ("std", "lc", "be"))
    write(
        layout.etc / "hami-hpc-gres.conf",
        f"NodeName=node1 Name=gpu Type=h200 File={gpus[0]}\nNodeName=node1 Name=gpu Type=a100 File={gpus[1]}\n"
        f"NodeName=node1 Name=shard Count={143156 // 256} File={gpus[0]}\n"
        f"NodeName=node1 Name=shard Count={A100_MIB // 256} File={gpus[1]}\n{counted}"
        f"NodeName=node1 Name=vgpu_mem Count={143156 + A100_MIB}\nNodeName=node1 Name=vgpu_cores Count=200\n",
    )
    fragment = layout.etc / "slurm-hami-hpc.conf"
    gres = f"Gres={types},shard:{shards},vgpu:std:{shards},vgpu:lc:{shards},vgpu:be:{shards}"
    gres += f",vgpu_mem:{143156 + A100_MIB},vgpu_cores:200 Feature=vgpu_share,vgpu_type_h200,vgpu_type_a100"
    write(fragment, re.sub(r"Gres=gpu.*", gres, fragment.read_text()).replace("gpu:h200,", "gpu:h200,gres/gpu:a100,"))
    table = (layout.etc / "hami_hpc_site.lua").read_text().replace('"h200"', '"h200", "a100"', 1)
    lua = '["gpu_models"] = {\n\t\t["a100"] = {\n\t\t\t["total_mib"] = 40000,\n\t\t},'
    table = re.sub(r'(\["partitions"\].*?\{ )"h200"', r'\1"h200", "a100"', table, flags=re.DOTALL)
    write(
        layout.etc / "hami_hpc_site.lua",
        table.replace('["gpu_models"] = {', lua, 1).replace('"h200", "a100"]', '"h200"]'),
    )


@pytest.fixture
def mixed(restored: Layout) -> Iterator[Layout]:
    """The private node with an H200 as device 0 and an A100 as device 1: by name the other way round."""
    saved = restored.root / "etc-saved"
    shutil.copytree(restored.etc, saved, symlinks=True)
    for name in reversed(DAEMONS):
        daemons.stop(restored, name)

    def machine(*models: str) -> None:
        shutil.rmtree(restored.machine)
        for stale in restored.run_dir.glob("ledger.db*"):
            stale.unlink()
        if models:
            command = (str(CHECKOUT / "build/native/sim/sim-machine"), str(restored.machine), *models)
            subprocess.run(command, check=True, capture_output=True)
            for index, device in enumerate(("/dev/null", "/dev/zero")):
                config.device_file(restored, index).symlink_to(device)

    machine("h200", "a100-40")
    text = config.site_toml(restored).replace('["h200"]', '["h200", "a100"]', 1)
    model = f"[gpu_models.a100]\ntotal_mib = {A100_MIB}\n"
    write(restored.site_config, text.replace("[partitions", f"{model}[partitions", 1))
    try:
        yield restored
    finally:
        jobs.run_as(restored, "root", ("scancel", f"--user={USER}"))
        for name in reversed(DAEMONS):
            daemons.stop(restored, name)
        shutil.rmtree(restored.etc)
        shutil.copytree(saved, restored.etc, symlinks=True)
        shutil.rmtree(saved)
        machine()
        private_cluster.up(restored.root)


def hami(layout: Layout, *command: str) -> jobs.Done:
    full = (str(CHECKOUT / ".venv/bin/hami-hpc"), *command)
    return jobs.run_as(layout, "root", full, {"HAMI_HPC_CONFIG": str(layout.site_config)})


@pytest.mark.parametrize("types", ["gpu:h200:1,gpu:a100:1", "gpu:a100:1,gpu:h200:1"])
def test_a_node_with_two_models_is_refused_and_never_drained(mixed: Layout, types: str) -> None:
    refused = hami(mixed, "render", "--output", str(mixed.etc), "--node", "node1")
    assert refused.status == 1
    assert "GPUs of 2 models (a100, h200)" in refused.err
    by_hand(mixed, types)
    for name in DAEMONS:
        daemons.start(mixed, services.describe(mixed, name))
    jobs.wait(mixed, lambda: services.nodes_answer(mixed, "node1"), "the node", 60)
    doctor = hami(mixed, "doctor", "--node", "node1")
    assert "FAIL  GPU models: 2 models here: a100, h200" in doctor.out

    for request in ("vgpu:h200:mem=100%", "vgpu:a100:mem=2G", "vgpu:h200:mem=2G", "vgpu:a100:mem=100%"):
        job = jobs.submit(mixed, USER, f"--gres={request}", script="slice --use 16")
        state = jobs.wait_for_state(mixed, job, "COMPLETED", "FAILED")
        text = jobs.output(mixed, USER, job)
        assert not node.drain_reason(mixed), (request, jobs.evidence(mixed))
        if state == "COMPLETED":
            assert f"NVIDIA {request.split(':')[1].upper()}" in text, "never another model than asked for"
        else:
            assert "This node has GPUs of 2 models (a100, h200)" in text
