# SPDX-License-Identifier: Apache-2.0
"""A node with everything that doctor checks, and a table of faults for it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, UUIDS, Node

from hami_hpc.cli import main
from hami_hpc.cli.doctor_command import examine
from hami_hpc.core.agent_state import LOST, OK, AgentState, GpuState
from hami_hpc.core.finding import Finding, Level
from hami_hpc.core.inventory import Device
from hami_hpc.node import agent_file, boot

BUILD = "0.1.0 (0123456789ab)"
SLURM = {
    "SLURM_VERSION": "22.05.8",
    "GresTypes": "gpu,shard,vgpu,vgpu_mem,vgpu_cores,vgpu_slo",
    "SelectType": "select/cons_tres",
    "PrologFlags": "Alloc",
    "JobSubmitPlugins": "lua",
    "CliFilterPlugins": "hami_hpc",
    "TaskPlugin": "task/affinity,task/cgroup",
    "ProctrackType": "proctrack/cgroup",
    "SchedulerParameters": "nohold_on_prolog_fail",
    "AccountingStorageEnforce": "associations,limits,qos",
    "AccountingStorageTRES": "cpu,gres/vgpu,gres/vgpu:std,gres/vgpu:lc,gres/vgpu:be,gres/vgpu_mem,gres/vgpu_cores",
}


class Healthy:
    """A node without faults; `slurm` is the configuration that scontrol shows, which a test can change."""

    def __init__(self, node: Node, tmp_path: Path) -> None:
        self.node, self.base, self.etc = node, tmp_path, tmp_path / "etc"
        self.slurm = SLURM | {
            "PluginDir": f"/nowhere:{tmp_path}/plugins",
            "Prolog": f"{self.etc}/hami-hpc-prolog",
            "Epilog": f"{self.etc}/hami-hpc-epilog",
            "SLURM_CONF": f"{self.etc}/slurm.conf",
        }
        self.qos: frozenset[str] = frozenset({"normal", "lc", "be"})
        self.devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
        self.counted = {"h200": 2}
        self.classes = {"std": 1118, "lc": 1118, "be": 1118}
        self.mps: dict[str, int] = {}
        self.running = [f"7 RUNNING {time.time():.0f}\n"]  # as squeue shows it
        self.listed: dict[int, int] | None = {4000: 7}
        self.waiting: Iterator[int] = iter(())  # records for slurmdbd, at each look

    def findings(self, node: str | None = None) -> dict[str, Finding]:
        """Returns the findings by name; of several with one name a FAIL, if there is one."""
        by_name: dict[str, Finding] = {}
        for finding in examine(str(self.node.config), node):
            if finding.what not in by_name or finding.level is Level.FAIL:
                by_name[finding.what] = finding
        return by_name

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["doctor", *arguments], env={"HAMI_HPC_CONFIG": str(self.node.config)})

    def write_agent_state(self, gpu: str = OK, age_s: int = 0) -> None:
        """Writes what the agent sees: one GPU in this state, `age_s` seconds ago."""
        gpus = (GpuState(UUIDS[0], 0, "h200", gpu, "GPU is lost" if gpu != OK else "", 1, 0, 0.0, 0, 0, 0),)
        boot_ns = agent_file.now_boot_ns() - age_s * 10**9
        state = AgentState(boot.boot_id(), 1, 0, boot_ns, 10**9, 1, gpus, (), (), ())
        agent_file.make_folder(self.node.settings.run_dir)
        agent_file.write(self.node.settings.run_dir, state)

    def write(self, name: str, text: str) -> None:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def build_library(path: Path, version: int, stamp: str = BUILD) -> None:
    """Builds a shared object with the symbol that Slurm checks first, and hami_hpc's stamp."""
    path.parent.mkdir(exist_ok=True)
    source = f'const unsigned int plugin_version = {version}; const char hami_build[] = "hami-hpc build: {stamp}";'
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)


def add_an_a100(healthy: Healthy) -> None:
    settings = healthy.node.config
    settings.write_text(settings.read_text() + "[gpu_models.a100]\ntotal_mib = 40330\n")
    healthy.devices = (healthy.devices[0], Device(1, UUIDS[1], "NVIDIA A100", 40330))


def add_a_class(healthy: Healthy) -> None:
    settings = healthy.node.config
    settings.write_text(settings.read_text() + "[classes.interactive]\nqos = []\n")


def add_a_rule(healthy: Healthy) -> None:
    script = healthy.etc / "cli_filter.lua"
    script.write_text(script.read_text().replace("\treturn hami.cli", '\toptions.comment = "x"\n\treturn hami.cli'))


def adopt_while_the_prolog_runs(healthy: Healthy) -> None:
    healthy.slurm.update(PrologFlags="Alloc,Contain,RunInJob")
    healthy.write("root/etc/pam.d/sshd", "account required pam_slurm_adopt.so\n")


def swap_without_plugin(healthy: Healthy) -> None:
    settings = healthy.node.config
    text = settings.read_text()
    assert "[classes.be]" not in text
    settings.write_text(text + "[classes.be]\nswap = true\n")


# The fault -> how to make it, the name of the finding that reports it, its level, and words of it.
Broken = tuple[Callable[[Healthy], object], str, Level, str]
BROKEN: dict[str, Broken] = {
    "no [agent]": (
        lambda h: h.node.config.write_text(h.node.config.read_text().replace("[agent]\n", "")),
        "agent",
        Level.WARN,
        "nobody finds programs that evade",
    ),
    "an agent that never looked": (
        lambda h: shutil.rmtree(agent_file.folder(h.node.settings.run_dir)),
        "agent",
        Level.FAIL,
        "has not looked in this boot",
    ),
    "a silent agent": (lambda h: h.write_agent_state(age_s=60), "agent", Level.FAIL, "silent for 60 s"),
    "a lost GPU": (lambda h: h.write_agent_state(LOST), "agent, GPU 0", Level.FAIL, "lost: GPU is lost"),
    "no SPANK line": (lambda h: h.write("etc/plugstack.conf", "# none\n"), "plugstack.conf", Level.FAIL, "has no line"),
    "an optional SPANK line": (
        lambda h: h.write("etc/plugstack.conf", "optional spank_hami_hpc.so\n"),
        "plugstack.conf",
        Level.FAIL,
        "write required",
    ),
    "other SPANK arguments": (
        lambda h: h.write("etc/plugstack.conf", "required spank_hami_hpc.so run_dir=/other\n"),
        "plugstack.conf",
        Level.FAIL,
        "run_dir=/other, interposer=(not there)",
    ),
    "classes that move and no time for it": (
        swap_without_plugin,
        "swap",
        Level.WARN,
        "suspended jobs of class be: their memory has 2 s to leave the GPU, what is late stays",
    ),
    "a task plugin that is not installed": (
        lambda h: h.slurm.update(TaskPlugin="task/cgroup,task/hami_hpc"),
        "task_hami_hpc.so",
        Level.FAIL,
        "not found in /nowhere",
    ),
    "no task/cgroup": (lambda h: h.slurm.update(TaskPlugin="task/affinity"), "TaskPlugin", Level.FAIL, "task/cgroup"),
    "no ConstrainDevices": (
        lambda h: h.write("etc/cgroup.conf", "ConstrainCores=yes\n"),
        "ConstrainDevices",
        Level.FAIL,
        "ConstrainDevices is not set",
    ),
    "no cgroup.conf": (lambda h: (h.etc / "cgroup.conf").unlink(), "ConstrainDevices", Level.FAIL, "open every GPU"),
    "proctrack/linuxproc": (
        lambda h: h.slurm.update(ProctrackType="proctrack/linuxproc"),
        "ProctrackType",
        Level.WARN,
        "proctrack/cgroup",
    ),
    "no Prolog": (lambda h: h.slurm.update(Prolog="(null)"), "Prolog", Level.FAIL, "not set: nothing of hami_hpc's"),
    "a foreign Epilog": (lambda h: h.slurm.update(Epilog="/bin/true"), "Epilog", Level.FAIL, "/bin/true: nothing"),
    "an empty prolog directory": (
        lambda h: h.slurm.update(Prolog=f"{h.etc}/prolog.d/*"),
        "Prolog",
        Level.FAIL,
        "nothing of hami_hpc's runs",
    ),
    "a prolog that cannot be run": (
        lambda h: (h.etc / "hami-hpc-prolog").chmod(0o644),
        "Prolog",
        Level.FAIL,
        "chmod 755",
    ),
    "no PrologFlags": (lambda h: h.slurm.update(PrologFlags="Serial"), "PrologFlags", Level.FAIL, "PrologFlags=Alloc"),
    "sessions while the prolog runs": (
        adopt_while_the_prolog_runs,
        "RunInJob",
        Level.WARN,
        "a session by ssh that begins while its job's prolog runs is not limited",
    ),
    "jobs of an earlier boot": (
        lambda h: h.running.extend(["5 RUNNING 1\n", "6 SUSPENDED 2\n", "8 COMPLETING 3\n", "9 RUNNING N/A\n"]),
        "jobs of an earlier boot",
        Level.WARN,
        "for Slurm job 5, 6 still run here",
    ),
    "jobs held": (
        lambda h: h.slurm.update(SchedulerParameters="(null)"),
        "SchedulerParameters",
        Level.WARN,
        "nohold_on_prolog_fail",
    ),
    "no job_submit.lua": (lambda h: (h.etc / "job_submit.lua").unlink(), "job_submit.lua", Level.FAIL, "install -m"),
    "a foreign job_submit.lua": (
        lambda h: h.write("etc/job_submit.lua", 'dofile("/x/hami_hpc.lua") -- hami.job_submit(a)\nhami.job_modify(a)'),
        "job_submit.lua",
        Level.FAIL,
        "does not call job_submit",
    ),
    "a foreign cli_filter.lua": (
        lambda h: h.write("etc/cli_filter.lua", "return 0"),
        "cli_filter.lua",
        Level.FAIL,
        "does not call cli_pre_submit",
    ),
    "a cli_filter.lua with rules that would not run for every command": (
        add_a_rule,
        "CliFilterPlugins",
        Level.FAIL,
        "for vgpu requests alone, and that has rules of its own",
    ),
    "no plugin in CliFilterPlugins that runs cli_filter.lua": (
        lambda h: h.slurm.update(CliFilterPlugins="cli_filter/syslog"),
        "CliFilterPlugins",
        Level.FAIL,
        "CliFilterPlugins=hami_hpc, or lua",
    ),
    "two plugins that run cli_filter.lua": (
        lambda h: h.slurm.update(CliFilterPlugins="cli_filter/lua,cli_filter/hami_hpc"),
        "CliFilterPlugins",
        Level.FAIL,
        "not both",
    ),
    "a filter plugin that is not installed": (
        lambda h: (h.base / "plugins/cli_filter_hami_hpc.so").unlink(),
        "cli_filter_hami_hpc.so",
        Level.FAIL,
        "not found in /nowhere",
    ),
    "no Lua plugin of Slurm's": (
        lambda h: (h.base / "plugins/cli_filter_lua.so").unlink(),
        "cli_filter_lua.so",
        Level.FAIL,
        "slurm-wlm-basic-plugins",
    ),
    "lua not in JobSubmitPlugins": (
        lambda h: h.slurm.update(JobSubmitPlugins="all_partitions"),
        "JobSubmitPlugins",
        Level.FAIL,
        "JobSubmitPlugins=lua",
    ),
    "QoS not enforced": (
        lambda h: h.slurm.update(AccountingStorageEnforce="associations,limits"),
        "AccountingStorageEnforce",
        Level.FAIL,
        "every vGPU job is of class std",
    ),
    "a QoS that slurmdbd lacks": (
        lambda h: setattr(h, "qos", frozenset({"lc"})),
        "QoS",
        Level.FAIL,
        "does not know be (class be)",
    ),
    "user namespaces": (
        lambda h: h.write("max_user_namespaces", "96365\n"),
        "user namespaces",
        Level.WARN,
        "sysctl user.max_user_namespaces=0",
    ),
    "apptainer.conf without binds of users": (
        lambda h: h.write("root/etc/apptainer/apptainer.conf", "user bind control = no\nbind path = /etc/hosts\n"),
        "apptainer",
        Level.WARN,
        "bind path = /run/hami-hpc/self/container.preload:/etc/ld.so.preload, bind path = ",
    ),
    "enroot without the hook": (
        lambda h: h.write("root/etc/enroot/hooks.d/10-home.sh", "#!/bin/sh\n"),
        "enroot",
        Level.WARN,
        "ln -s ",
    ),
    "oci.conf without oci-mounts": (
        lambda h: h.write("etc/oci.conf", '# oci-mounts\nRunTimeRun="runc run --bundle %b %j"\n'),
        "oci.conf",
        Level.WARN,
        "%b &&",
    ),
    "podman without the hook": (
        lambda h: h.write("root/usr/bin/podman", ""),
        "podman",
        Level.WARN,
        "hooks_dir = ",
    ),
    "no ld.so.preload": (lambda h: (h.base / "ld.so.preload").unlink(), "preload", Level.FAIL, "touch"),
    "two models": (
        add_an_a100,
        "GPU models",
        Level.FAIL,
        "GPUs of one model",
    ),
    "two types in Slurm": (
        lambda h: setattr(h, "counted", {"a100": 1, "h200": 1}),
        "gres.conf",
        Level.FAIL,
        "types a100, h200",
    ),
    "a GPU that Slurm does not count": (
        lambda h: setattr(h, "counted", {"h200": 1}),
        "gres.conf",
        Level.FAIL,
        "1 gpu in Slurm, 2 in the driver",
    ),
    "a class that nobody rendered": (
        add_a_class,
        "classes",
        Level.FAIL,
        "gres.conf lacks vgpu:interactive; Slurm's Gres of node1 lacks vgpu:interactive",
    ),
    "a class that slurmctld does not know": (
        lambda h: h.classes.pop("be"),
        "classes",
        Level.FAIL,
        "Slurm's Gres of node1 lacks vgpu:be",
    ),
    "a class that gres.conf has lost": (
        lambda h: h.write("etc/gres.conf", "Name=vgpu Type=std\nName=vgpu Type=lc\nNodeName=node2 Name=vgpu Type=be\n"),
        "classes",
        Level.FAIL,
        "gres.conf lacks vgpu:be",
    ),
    "a class that slurmdbd does not store": (
        lambda h: h.slurm.update(AccountingStorageTRES="gres/vgpu,gres/vgpu:std,gres/vgpu:be"),
        "classes, accounting",
        Level.WARN,
        "AccountingStorageTRES lacks vgpu:lc",
    ),
    "an interposer that others can write": (
        lambda h: (h.base / "libhami-hpc.so").chmod(0o777),
        "interposer",
        Level.FAIL,
        "chmod 0644",
    ),
    "no interposer": (lambda h: (h.base / "libhami-hpc.so").unlink(), "interposer", Level.FAIL, "No such file"),
    "a plugin for another Slurm": (
        lambda h: build_library(h.base / "plugins/gres_vgpu.so", 0x160507),
        "gres_vgpu.so",
        Level.FAIL,
        "for Slurm 22.05.7",
    ),
    "no plugin": (
        lambda h: (h.base / "plugins/gres_vgpu_mem.so").unlink(),
        "gres_vgpu_mem.so",
        Level.FAIL,
        "not found in /nowhere",
    ),
    "a plugin of another build": (
        lambda h: build_library(h.base / "plugins/gres_vgpu.so", 0x160508, "0.0.9 (abc)"),
        "builds",
        Level.FAIL,
        "gres_vgpu.so: 0.0.9 (abc)",
    ),
    "a PAM module of another build": (
        lambda h: build_library(h.base / "pam_hami_hpc.so", 0x160508, "0.0.9 (abc)"),
        "builds",
        Level.FAIL,
        "pam_hami_hpc.so: 0.0.9 (abc)",
    ),
    "an interposer without a stamp": (
        lambda h: (h.base / "libhami-hpc.so").write_bytes(b"\x7fELF"),
        "builds",
        Level.FAIL,
        "contains no build",
    ),
    "a bare shard allowed": (
        lambda h: h.node.config.write_text(h.node.config.read_text().replace('"refuse"', '"allow"')),
        "bare_shard",
        Level.WARN,
        "without limits",
    ),
}
