# SPDX-License-Identifier: Apache-2.0
"""A private cluster of the Slurm at hand with GPUs and shards of Slurm's own, and none of hami_hpc's plugins."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import accounts, config, daemons, services
from harness import cluster as private_cluster
from harness.layout import CPU_NODE, Layout, open_or_create

SHARDS = 100  # a GPU


def _gres(types: Sequence[str]) -> str:
    """Returns the Gres= of a node whose GPUs have these types, "" for none."""
    counts = {name: types.count(name) for name in dict.fromkeys(types)}
    names = {name: f":{name}" if name else "" for name in counts}
    gpus = [f"gpu{names[name]}:{count}" for name, count in counts.items()]
    return ",".join(gpus + [f"shard{names[name]}:{SHARDS * count}" for name, count in counts.items()])


def _gres_conf(types: Sequence[str], folder: Path, cores: Sequence[str]) -> str:
    """Returns gres.conf for both nodes. Makes the devices' files in `folder`: Slurm checks their names and kind."""
    lines = []
    folder.mkdir(mode=0o755, exist_ok=True)
    for index, name in enumerate(types):
        device = folder / f"nvidia{index}"
        device.symlink_to(("/dev/null", "/dev/zero")[index % 2])
        typed = f"Type={name} " if name else ""
        near = f" Cores={cores[index]}" if cores else ""
        lines.append(f"Name=gpu {typed}File={device}{near}\nName=shard {typed}Count={SHARDS} File={device}\n")
    return "".join(lines)


@contextlib.contextmanager
def running(
    root: Path,
    types: Sequence[str],
    parameters: str = "",
    nodes: int = 1,
    cpus: str = "CPUs=256",
    cores: Sequence[str] = (),
    partition: str = "",
) -> Iterator[Layout]:
    """Runs all of Slurm's daemons. `types`: one for each GPU of a node. `parameters`: more SelectTypeParameters.
    `nodes`: 2 if the second node has such GPUs as well. `cpus`: of a node. `cores`: Cores= of each GPU, and what may
    follow it. `partition`: more of the GPUs' partition."""
    private_cluster.remove(root)
    layout = open_or_create(root)
    slurm_conf = config.slurm_conf(layout).replace("=CR_Core\n", f"=CR_Core{parameters}\n")
    if nodes == 2:
        for old, new in (
            (f"NodeName={CPU_NODE} ", f"NodeName={CPU_NODE} Gres={_gres(types)} "),
            (" CPUs=16 ", f" {cpus} "),
            (f"=gpu Nodes={config.NODE} ", f"=gpu Nodes={config.NODE},{CPU_NODE} "),
        ):
            assert old in slurm_conf
            slurm_conf = slurm_conf.replace(old, new)
    slurm_conf = slurm_conf.replace("PartitionName=gpu ", f"PartitionName=gpu {partition} ")
    config.write(layout.site_config, config.site_toml(layout))
    config.write(layout.slurm_conf, slurm_conf)
    first = config.node_parameters(layout).replace("CPUs=256", cpus)
    config.write(layout.etc / "slurm-hami-hpc.conf",
                 "SelectType=select/cons_tres\nGresTypes=gpu,shard\nAccountingStorageTRES=gres/gpu,gres/shard\n"
                 f"PrologFlags=Alloc\nProlog={layout.etc}/prolog\n"
                 f"NodeName={config.NODE} {first} Gres={_gres(types)}\n")  # fmt: skip
    config.write(layout.etc / "gres.conf", _gres_conf(types, layout.machine, cores))
    config.write(layout.etc / "prolog", f"#!/bin/sh\nenv >{layout.root}/prolog.$SLURM_JOB_ID\n", 0o755)
    with started(layout):
        yield layout


@contextlib.contextmanager
def started(layout: Layout) -> Iterator[None]:
    """Runs all of Slurm's daemons of a layout whose slurm.conf and gres.conf are there, and removes it afterwards."""
    config.write(layout.etc / "cgroup.conf", config.cgroup_conf())
    config.write(layout.etc / "slurmdbd.conf", config.slurmdbd_conf(layout), 0o600)
    config.write(layout.etc / "task_prolog", "#!/bin/sh\n", 0o755)
    for user in ("root", *accounts.USERS):
        (layout.home / user).mkdir()
        os.chown(layout.home / user, pwd.getpwnam(user).pw_uid, -1)
    services.make_database(layout)
    try:
        for name in ("munged", "mariadbd", *services.slurm_daemons(layout)):
            daemons.start(layout, services.describe(layout, name))
            if name == "slurmdbd":
                accounts.make_accounts(layout)
        yield
    finally:
        private_cluster.remove(layout.root)
