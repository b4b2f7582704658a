# SPDX-License-Identifier: Apache-2.0
"""Installs hami_hpc into a private cluster: what make built, the site's settings, and what `hami-hpc render` writes.

Everything is written whole and renamed into place, and only when it differs, so that a second start changes nothing
and a rebuilt library never changes under a process that has it mapped.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from pathlib import Path

from hami_hpc.node import ldso

from .layout import CHECKOUT, ClusterError, Layout
from .services import NODES

NODE, CPU_NODE = NODES["slurmd"], NODES["slurmd-cpu"]
GPU_MODEL = "h200"
GPU_COUNT = 2
PARTITION = "gpu"
PYTHON = CHECKOUT / ".venv" / "bin" / "python"
_LUA = CHECKOUT / "slurm-plugins" / "lua"
_BUILD = CHECKOUT / "build"


def write(path: Path, content: str | bytes, mode: int = 0o644) -> bool:
    """Writes a file whole; returns whether it was new or different."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
        return False
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.rename(path)
    return True


def _copy(source: Path, target: Path, mode: int = 0o644) -> bool:
    try:
        return write(target, source.read_bytes(), mode)
    except FileNotFoundError:
        raise ClusterError(f"{source} is not built; run make build") from None


def install(layout: Layout) -> bool:
    """Puts everything in place. Returns whether anything changed that Slurm's daemons read only when they start."""
    plugins = sorted((_BUILD / "slurm-plugins").glob("*.so"))
    if not plugins:
        raise ClusterError(f"{_BUILD}/slurm-plugins holds no plugin; run make build")
    changed = [_copy(plugin, layout.plugins / plugin.name) for plugin in plugins]
    _install_simulation(layout)
    _copy(_BUILD / "native" / "libhami-hpc.so", layout.interposer)
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
    command = (str(sim / "sim-machine"), str(layout.machine), *([GPU_MODEL] * GPU_COUNT))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    # These are other GPUs than the ledger may know from before: what a node's replacement would be.
    for stale in layout.run_dir.glob("ledger.db*"):
        stale.unlink()
    # Slurm wants a character device for each GPU, and only looks at its name and type.
    for index, device in enumerate(("/dev/null", "/dev/zero")):
        device_file(layout, index).symlink_to(device)


def device_file(layout: Layout, index: int) -> Path:
    """The file that stands for a simulated GPU's /dev/nvidiaN."""
    return layout.machine / f"nvidia{index}"


def driver_environment(layout: Layout) -> dict[str, str]:
    """What makes a program find the simulated driver, as the loader's path makes it find a real one."""
    return {"LD_LIBRARY_PATH": str(layout.driver), "HAMI_SIM": str(layout.machine)}


def simulated_kernel(layout: Layout) -> Path:
    """The preload that stands for the kernel's part of a driver. On a real node nothing of the kind is preloaded."""
    return layout.driver / "libhami-sim-kernel.so"


def preload_mode() -> str:
    """How steps are fenced here: "ldso", the default, or "env" where tasks cannot have mounts of their own."""
    with contextlib.suppress(OSError):  # what `make install` does on a node; an empty one changes nothing
        ldso.LIST.touch(exist_ok=True)
    return "env" if ldso.obstacle()[0] else "ldso"


def site_toml(layout: Layout) -> str:
    """The settings of a site with one partition of H200s (docs/architecture.md, "The site's settings")."""
    return f"""\
version = 1
[vgpu]
shard_mib = 256
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
[gpu_models.{GPU_MODEL}]
total_mib = 143156
[partitions.{PARTITION}]
gpu_models = ["{GPU_MODEL}"]
[partitions.whole]
gpu_models = ["{GPU_MODEL}"]
"""


def slurm_conf(layout: Layout) -> str:
    """The private cluster's slurm.conf without hami_hpc's part, which `hami-hpc render` writes beside it."""
    root, ports = layout.root, layout.ports
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
PartitionName={PARTITION} Nodes={NODE} Default=YES MaxTime=60 OverSubscribe=NO
PartitionName=whole Nodes={NODE} MaxTime=60 OverSubscribe=EXCLUSIVE
PartitionName=cpu Nodes={CPU_NODE} MaxTime=60 OverSubscribe=NO
"""


def cgroup_conf() -> str:
    """Keeps slurmd from looking for cgroups, which a container or chroot may not have, and which nothing here uses.

    Slurm knows "disabled" from 23.11 on. Before, the plugin for v1 is the one that looks at nothing until it is used.
    """
    release = subprocess.run(("/usr/sbin/slurmd", "-V"), capture_output=True, text=True, check=True).stdout.split()[-1]
    year, month = (int(part) for part in release.split(".")[:2])
    return f"CgroupPlugin={'disabled' if (year, month) >= (23, 11) else 'cgroup/v1'}\n"


def slurmdbd_conf(layout: Layout) -> str:
    """slurmdbd's settings; its database is reached through MYSQL_UNIX_PORT (services.py)."""
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


def _stage_script(layout: Layout, stage: str) -> str:
    """slurm.conf's Prolog= and Epilog= take no arguments, and start with an empty environment."""
    driver = "".join(f"export {name}='{value}'\n" for name, value in driver_environment(layout).items())
    return f"#!/bin/sh\n{driver}exec '{CHECKOUT}/prolog/{stage}' --config '{layout.site_config}'\n"


def _task_prolog(layout: Layout) -> str:
    """TaskProlog prints what slurmstepd puts into the task's environment."""
    lines = (f"echo 'export {name}={value}'\n" for name, value in driver_environment(layout).items())
    # The simulated kernel answers behind whatever is preloaded already: here, SPANK's interposer.
    kernel = simulated_kernel(layout)
    preload = f"""case ":$LD_PRELOAD:" in
*":{kernel}:"*) ;;
*) echo "export LD_PRELOAD=${{LD_PRELOAD:+$LD_PRELOAD:}}{kernel}" ;;
esac
"""
    return "#!/bin/sh\n" + "".join(lines) + preload + f'echo "export PATH=$PATH:{layout.bin}"\n'


def _write_configuration(layout: Layout) -> list[bool]:
    etc = layout.etc
    write(layout.site_config, site_toml(layout))
    write(etc / "task_prolog", _task_prolog(layout), 0o755)
    for stage in ("prolog", "epilog"):
        write(etc / stage, _stage_script(layout, stage), 0o755)
    changed = [write(etc / "slurm.conf", slurm_conf(layout))]
    changed.append(write(etc / "cgroup.conf", cgroup_conf()))
    changed.append(write(etc / "slurmdbd.conf", slurmdbd_conf(layout), 0o600))
    return [*changed, _render(layout)]


def _slurm_plugin_dir() -> Path:
    """Where the installed Slurm keeps its own plugins."""
    found = sorted(Path("/usr/lib").glob("*/slurm-wlm/accounting_storage_slurmdbd.so"))
    if not found:
        raise ClusterError("Slurm's plugins are not below /usr/lib/*/slurm-wlm; run scripts/setup")
    return found[0].parent


def node_parameters(layout: Layout) -> str:
    """The GPU node in slurm.conf, but for its name and gres."""
    return f"NodeHostname={_hostname()} NodeAddr=127.0.0.1 Port={layout.ports['slurmd']} CPUs=256 RealMemory=1024"


def _render(layout: Layout) -> bool:
    """Runs `hami-hpc render` as an administrator would, on the GPUs that the simulated NVML shows."""
    command = (
        *(str(PYTHON.with_name("hami-hpc")), "render", "--output", str(layout.etc), "--node", NODE),
        *("--node-parameters", node_parameters(layout)),
        *("--device", str(device_file(layout, 0)).removesuffix("0")),
        *("--plugin-dir", f"{_slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(layout.etc / "prolog"), "--epilog", str(layout.etc / "epilog")),
        "--force",  # what a test has edited is put back
    )
    environment = {"PATH": "/usr/bin:/bin", "HAMI_HPC_CONFIG": str(layout.site_config), **driver_environment(layout)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    return any(line.startswith("wrote") for line in done.stdout.splitlines())


def write_env(layout: Layout) -> None:
    """The file that points a shell at the cluster: `. .cluster/env`."""
    settings = {
        "SLURM_CONF": layout.slurm_conf,
        "HAMI_HPC_CONFIG": layout.site_config,
        "HAMI_HPC_NODE": NODE,  # this host is two nodes
        "HAMI_HPC_DEMO": layout.public,
        **driver_environment(layout),
    }
    lines = [f"export {name}='{value}'" for name, value in settings.items()]
    text = "# Points a shell at the private cluster: . " + str(layout.env_file) + "\n" + "\n".join(lines) + "\n"
    # Before the caller's PATH, so that these are found even beside another Slurm; once, however often it is read.
    text += f"""\
case ":$PATH:" in
*":{layout.bin}:"*) ;;
*) export PATH='{CHECKOUT}/.venv/bin:{layout.bin}':"$PATH" ;;
esac
"""
    write(layout.env_file, text)
