# SPDX-License-Identifier: Apache-2.0
"""Installs hami_hpc into a private cluster: the built files, the site's settings, and the output of `hami-hpc render`.

Each file is written whole and renamed into place, and only when it differs, so that a second start changes nothing and
a rebuilt library never changes in a process that has it mapped.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import socket
import subprocess
from pathlib import Path

from hami_hpc.contract import constants as c
from hami_hpc.node import ldso

from . import several
from .files import write as write
from .layout import CHECKOUT, CPU_NODE, FIRST_NODE, ClusterError, Layout, Machine

NODE = FIRST_NODE
GPU_MODEL = "h200"
GPU_COUNT = 2  # of a cluster with one node
GPU_MIB = {GPU_MODEL: 143156, "h100": 81008, "a100-80": 81250, "a100-40": 40383}  # what CUDA can use
PARTITION = "gpu"
PYTHON = CHECKOUT / ".venv" / "bin" / "python"
_LUA = CHECKOUT / "slurm-plugins" / "lua"
_BUILD = CHECKOUT / "build"


def _copy(source: Path, target: Path, mode: int = 0o644) -> bool:
    try:
        return write(target, source.read_bytes(), mode)
    except FileNotFoundError:
        raise ClusterError(f"{source} is not built; run make build") from None


def install(layout: Layout) -> bool:
    """Installs everything. Returns whether a file changed that Slurm's daemons read only when they start."""
    plugins = [path for path in sorted((_BUILD / "slurm-plugins").glob("*.so")) if not path.name.startswith("pam_")]
    if not plugins:
        raise ClusterError(f"{_BUILD}/slurm-plugins holds no plugin; run make build")
    changed = [_copy(plugin, layout.plugins / plugin.name) for plugin in plugins]
    for node in layout.gpu_nodes:
        _install_simulation(layout.at(node))
    _copy(_BUILD / "native" / "libhami-hpc.so", layout.interposer)
    _copy(_BUILD / "native" / "hami-hpc-watch", layout.interposer.parent / "hami-hpc-watch", 0o755)
    _copy(_BUILD / "slurm-plugins" / "pam_hami_hpc.so", layout.interposer.parent / "pam_hami_hpc.so")
    _copy(_BUILD / "examples" / "slice", layout.bin / "slice", 0o755)
    for script in sorted(_LUA.glob("*.lua")):
        _copy(script, layout.etc / script.name)
    changed += _write_configuration(layout)
    return any(changed)


def _install_simulation(layout: Layout) -> None:
    sim = _BUILD / "native" / "sim"
    for library in ("libcuda.so.1", "libnvidia-ml.so.1", "libhami-sim-kernel.so"):
        _copy(sim / library, layout.driver / library)
    if (layout.machine / "machine.conf").exists():
        return
    model, gpus = machine_of(layout)
    command = (str(sim / "sim-machine"), str(layout.machine), *([model] * gpus))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    # The GPUs are new, as after the replacement of a node, so an earlier ledger is wrong.
    for stale in layout.run_dir.glob("ledger.db*"):
        stale.unlink()
    # Slurm needs a character device for each GPU, and checks only its name and type.
    for index in range(gpus):
        device_file(layout, index).symlink_to("/dev/zero" if index % 2 else "/dev/null")


def machine_of(layout: Layout) -> Machine:
    """Returns the GPUs of the layout's node."""
    machines = layout.machines or (Machine(GPU_MODEL, GPU_COUNT),)
    return machines[layout.gpu_nodes.index(layout.node)]


def device_file(layout: Layout, index: int) -> Path:
    """Returns the file that takes the place of /dev/nvidiaN for a simulated GPU."""
    return layout.machine / f"nvidia{index}"


def driver_environment(layout: Layout) -> dict[str, str]:
    """Returns the variables with which a program finds the simulated driver; a real one is in the loader's path."""
    return {"LD_LIBRARY_PATH": str(layout.driver), "HAMI_SIM": str(layout.machine)}


def simulated_kernel(layout: Layout) -> Path:
    """Returns the preloaded library that simulates the kernel's part of a driver. A real node preloads none."""
    return layout.driver / "libhami-sim-kernel.so"


def preload_mode() -> str:
    """Returns the value of preload here: "ldso", the default, or "env" where tasks cannot have their own mounts."""
    with contextlib.suppress(OSError):  # as `make install` does on a node; an empty file changes nothing
        ldso.LIST.touch(exist_ok=True)
    return "env" if ldso.obstacle()[0] else "ldso"


def site_toml(layout: Layout) -> str:
    """Returns the settings of a site with one partition of H200s, or of the several nodes' models. A job may have as
    many slices as the largest of several nodes has GPUs (docs/architecture.md, "The site's settings")."""
    models = list(dict.fromkeys(machine.model for machine in layout.machines)) or [GPU_MODEL]
    named = ", ".join(f'"{model}"' for model in models)
    sizes = "".join(f"[gpu_models.{model}]\ntotal_mib = {GPU_MIB[model]}\n" for model in models)
    slices = f"slices_max = {max(machine.gpus for machine in layout.machines)}\n" if layout.machines else ""
    return f"""\
version = 1
[vgpu]
{slices}shard_mib = 256
preload = "{preload_mode()}"
[paths]
run_dir = "{layout.run_dir}"
state_dir = "{layout.state_dir}"
interposer = "{layout.interposer}"
[classes.std]
qos = []
policy = "cap"
[classes.lc]
qos = ["lc"]
policy = "burst"
[classes.be]
qos = ["be"]
policy = "burst"
policies = ["burst", "cap"]
{sizes}[partitions.{PARTITION}]
gpu_models = [{named}]
[partitions.whole]
gpu_models = [{named}]
[agent]
"""


def slurm_conf(layout: Layout) -> str:
    """Returns the private cluster's slurm.conf without hami_hpc's part, which `hami-hpc render` writes beside it."""
    root, ports, gpu_nodes = layout.root, layout.ports, ",".join(layout.gpu_nodes)
    return f"""\
# Written by tests/cluster/harness for a private cluster; changes are lost at the next start.
ClusterName=demo
SlurmctldHost={_hostname()}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
SlurmctldPort={ports["slurmctld"]}
StateSaveLocation={root}/slurmctld
SlurmdSpoolDir={layout.public}/slurmd/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={layout.log}/slurmctld.log
SlurmdLogFile={layout.log}/slurmd.%n.log

# Nothing here may depend on cgroups, systemd or PMIx: the cluster runs in containers and chroots too.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
LaunchParameters=use_interactive_step
# Gives jobs the simulated driver, which a real node has in the loader's path.
TaskProlog={layout.etc}/task_prolog

# Two nodes on one machine: their CPUs are only counted, so that GPUs are what jobs wait for.
SlurmdParameters=config_overrides
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
MessageTimeout=60
SchedulerParameters=bf_interval=2,sched_min_interval=100000,batch_sched_delay=0,max_rpc_cnt=0

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports["slurmdbd"]}
# With munge the "password" for slurmdbd is the socket of the munged to use.
AccountingStoragePass={layout.munge_socket}
AccountingStorageEnforce=associations,qos

include {layout.etc}/slurm-hami-hpc.conf
NodeName={CPU_NODE} NodeHostname={_hostname()} NodeAddr=127.0.0.1 Port={ports["slurmd-cpu"]} CPUs=16 RealMemory=1024
PartitionName={PARTITION} Nodes={gpu_nodes} Default=YES MaxTime=60 OverSubscribe=NO
PartitionName=whole Nodes={gpu_nodes} MaxTime=60 OverSubscribe=EXCLUSIVE
PartitionName=cpu Nodes={CPU_NODE} MaxTime=60 OverSubscribe=NO
{several.SLURM_CONF_LINE if layout.machines else ""}"""


@functools.cache
def slurm_version() -> tuple[int, int, int]:
    """Returns the version of the installed Slurm, such as (22, 5, 8)."""
    said = subprocess.run(("/usr/sbin/slurmd", "-V"), capture_output=True, text=True, check=True).stdout
    match = re.search(r"([0-9]+)\.([0-9]+)\.([0-9]+)", said)
    assert match, said
    return int(match[1]), int(match[2]), int(match[3])


def slurm_release() -> tuple[int, int]:
    """Returns the release of the installed Slurm, such as (22, 5)."""
    return slurm_version()[:2]


def cgroup_conf() -> str:
    """Returns a cgroup.conf with which slurmd does not look for cgroups: a container or chroot may have none.

    Slurm has "disabled" from 24.05 on. In older releases the plugin for v1 does not look for cgroups until it is used.
    """
    return f"CgroupPlugin={'disabled' if slurm_release() >= (24, 5) else 'cgroup/v1'}\n"


def slurmdbd_conf(layout: Layout) -> str:
    """Returns slurmdbd's settings; it connects to its database through MYSQL_UNIX_PORT (services.py)."""
    return f"""\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={layout.ports["slurmdbd"]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
LogFile={layout.log}/slurmdbd.log
PidFile={layout.root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
"""


def _hostname() -> str:
    return socket.gethostname().partition(".")[0]


def copy_for_clients(layout: Layout, name: str) -> Path:
    """Returns a copy of the configuration, to be changed, that only those read who are given its slurm.conf."""
    etc = layout.public / f"etc-{name}"
    shutil.rmtree(etc, ignore_errors=True)
    shutil.copytree(layout.etc, etc)
    for file in etc.rglob("*"):
        if file.is_file():
            file.write_text(file.read_text().replace(f"{layout.etc}/", f"{etc}/"))
    return etc


def _stage_script(layout: Layout, stage: str) -> str:
    """Returns a wrapper of prolog or epilog: Prolog= and Epilog= take no arguments, and the environment is empty."""
    driver = "".join(f"export {name}='{value}'\n" for name, value in driver_environment(layout).items())
    own = several.dispatch(layout, stage)
    return f"#!/bin/sh\n{own}{driver}exec '{CHECKOUT}/prolog/{stage}' --config '{layout.site_config}'\n"


def _task_prolog(layout: Layout) -> str:
    """Returns TaskProlog, which prints the variables that slurmstepd adds to the task's environment."""
    lines = (f"echo 'export {name}={value}'\n" for name, value in driver_environment(layout).items())
    # The simulated kernel is preloaded after the interposer. That one is in /etc/ld.so.preload of a limited task, whose
    # libraries ld.so loads after those of LD_PRELOAD.
    kernel = simulated_kernel(layout)
    preload = f"""[ -n "$LD_PRELOAD" ] || [ ! -e {c.FILE_SELF}/{c.FILE_SELF_LIMITS} ] || LD_PRELOAD={layout.interposer}
case ":$LD_PRELOAD:" in
*":{kernel}:"*) ;;
*) echo "export LD_PRELOAD=${{LD_PRELOAD:+$LD_PRELOAD:}}{kernel}" ;;
esac
"""
    own = several.dispatch(layout, "task_prolog")
    return f"#!/bin/sh\n{own}" + "".join(lines) + preload + f'echo "export PATH=$PATH:{layout.bin}"\n'


def _write_configuration(layout: Layout) -> list[bool]:
    etc = layout.etc
    nodes = [layout.at(name) for name in layout.gpu_nodes]
    for node in nodes:
        write(node.site_config, site_toml(node))
        write(node.etc / "task_prolog", _task_prolog(node), 0o755)
        for stage in ("prolog", "epilog"):
            write(node.etc / stage, _stage_script(node, stage), 0o755)
    changed = [write(etc / "slurm.conf", slurm_conf(layout))]
    changed.append(write(etc / "cgroup.conf", cgroup_conf()))
    changed.append(write(etc / "slurmdbd.conf", slurmdbd_conf(layout), 0o600))
    changed += [render(node) for node in nodes]
    return [*changed, *(several.write_own(node) for node in nodes[1:])]


def _slurm_plugin_dir() -> Path:
    """Returns the directory of the installed Slurm's own plugins."""
    printed = subprocess.run([CHECKOUT / "scripts/slurm-plugindir"], capture_output=True, text=True, check=True).stdout
    plugins = Path(printed.strip())
    if not (plugins / "accounting_storage_slurmdbd.so").exists():
        raise ClusterError(f"{plugins} has no accounting_storage_slurmdbd.so of Slurm; run scripts/setup")
    return plugins


def node_parameters(layout: Layout) -> str:
    """Returns the node's line of slurm.conf without its name and gres."""
    port = next(layout.ports[name] for name, node in layout.slurmds.items() if node == layout.node)
    return f"NodeHostname={_hostname()} NodeAddr=127.0.0.1 Port={port} CPUs=256 RealMemory=1024"


def render(layout: Layout) -> bool:
    """Runs `hami-hpc render` as an administrator would, on the GPUs that the simulated NVML shows, for this node."""
    shared = layout.at(NODE)
    command = (
        *(str(PYTHON.with_name("hami-hpc")), "render", "--output", str(shared.etc), "--node", layout.node),
        *("--node-parameters", node_parameters(layout)),
        *("--device", str(device_file(layout, 0)).removesuffix("0")),
        *("--plugin-dir", f"{_slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(shared.etc / "prolog"), "--epilog", str(shared.etc / "epilog")),
        "--force",  # replaces files that a test has edited
    )
    environment = {"PATH": "/usr/bin:/bin", "HAMI_HPC_CONFIG": str(shared.site_config), **driver_environment(layout)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    return any(line.startswith("wrote") for line in done.stdout.splitlines())


def write_env(layout: Layout) -> None:
    """Writes the file with which a shell uses the cluster: `. .cluster/env`."""
    settings = {
        "SLURM_CONF": layout.slurm_conf,
        "HAMI_HPC_CONFIG": layout.site_config,
        "HAMI_HPC_NODE": NODE,  # this host is two nodes
        "HAMI_HPC_DEMO": layout.public,
        **driver_environment(layout),
    }
    lines = [f"export {name}='{value}'" for name, value in settings.items()]
    text = "# Points a shell at the private cluster: . " + str(layout.env_file) + "\n" + "\n".join(lines) + "\n"
    # First in PATH, so that these are found even beside another Slurm, and only once if the file is read again.
    text += f"""\
case ":$PATH:" in
*":{layout.bin}:"*) ;;
*) export PATH='{CHECKOUT}/.venv/bin:{layout.bin}':"$PATH" ;;
esac
"""
    write(layout.env_file, text)
