# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc render --inventory` for a whole cluster of unlike nodes, and what it wrote started word by word: A100s that
serve shares and MPS, H100s in MIG mode, H200s with two sockets and NVLinks in pairs, a node without GPU."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import accounts, config, daemons, jobs, merging, node, services, several
from harness import cluster as private_cluster
from harness.jobs import Done
from harness.layout import CHECKOUT, CPU_NODE, ClusterError, Layout, Machine, open_or_create

from hami_hpc.core.shards_shown import shards_of_node

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / f".cluster-test-mixed-{WORKER}"
MACHINES = (Machine("a100-80", 2), Machine("h100", 2), Machine("h200", 4))
NODES = {"node1": "a100", "node2": "h100", "node3": "h200"}
MIG_NODE = "node2"
MPS_CONTROL = CHECKOUT / "build/native/sim/nvidia-cuda-mps-control"
MODELS = {"a100": 81250, "h100": 81008, "h200": 143156}
PROFILES = """
[gpu_models.h100.mig_profiles]
"1g.10gb" = "9856 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"
"3g.40gb" = "40320 MiB, 3/7 compute, 4/8 memory at {0,4}, at most 2"
"""
# The simulated driver says nothing of CPUs and links: what that of the H200s' node would add to its inventory.
LARGE_NODE = "node3"
SOCKETS = "Sockets=2 CoresPerSocket=128 ThreadsPerCore=1"
SHAPE = {"sockets": 2, "numa_nodes": 2, "cores_per_socket": 128, "threads_per_core": 1}
NEAR = [
    {"cores": "0-127", "links": [-1, 4, 0, 0]},
    {"cores": "0-127", "links": [4, -1, 0, 0]},
    {"cores": "128-255", "links": [0, 0, -1, 4]},
    {"cores": "128-255", "links": [0, 0, 4, -1]},
]
PLACEMENT = '[placement]\nnodes = "spread"\nnuma = "prefer"\n'
USER = "games"
# What Slurm says on a new cluster, on any machine, about nothing that render wrote.
NOISE = (
    "Domain socket directory",
    "hwloc",
    "pmix",
    "differs from hardware",
    " state ",
    "MailProg",
    "Database settings",
    "High latency for 1000 calls to gettimeofday",
)
SHOW = "env | grep -E '^(CUDA_VISIBLE|CUDA_MPS_ACTIVE|HAMI_HPC_VGPU)' | sort; slice --use 16 || true"


def settings(layout: Layout) -> str:
    """One site's settings; only the directories are each node's own, as all nodes are on one machine."""
    text = config.site_toml(layout)
    head = text[: text.index("[gpu_models")].replace("[vgpu]\n", '[vgpu]\nmodes = ["share", "mps", "mig"]\n', 1)
    head = re.sub(r"slices_max = \d+\n", f'mig_nodes = ["{MIG_NODE}"]\n', head)
    head = head.replace("[paths]\n", f'[paths]\ndriver_root = "{layout.machine}"\n')
    models = "".join(f"[gpu_models.{name}]\ntotal_mib = {mib}\n" for name, mib in MODELS.items())
    partition = f"[partitions.gpu]\ngpu_models = {json.dumps(list(MODELS))}\n"
    return f'{head}{models}{PROFILES}{partition}[mps]\ncontrol = "{MPS_CONTROL}"\n{PLACEMENT}[agent]\n'


def become_the_site(layout: Layout) -> None:
    """Leaves a site's own slurm.conf, which knows of no GPU, and nothing that render wrote for the harness."""
    for path in (*layout.etc.glob("*hami-hpc*.conf"), *layout.etc.glob("plugstack*/*"), layout.etc / "plugstack.conf"):
        path.unlink()
    (layout.etc / "gres.conf").unlink()
    nodes = "".join(f"NodeName={name} {config.node_parameters(layout.at(name))}\n" for name in NODES)
    text = config.slurm_conf(layout).replace(f"include {layout.etc}/slurm-hami-hpc.conf\n", nodes)
    large = config.node_parameters(layout.at(LARGE_NODE))
    config.write(layout.slurm_conf, text.replace(large, large.replace("CPUs=256", SOCKETS)))
    config.write(layout.etc / "slurm-hami-hpc.conf", "")
    (layout.public / "devices").mkdir(exist_ok=True)
    for index in range(max(machine.gpus for machine in MACHINES)):
        (layout.public / "devices" / f"nvidia{index}").symlink_to(("/dev/null", "/dev/zero")[index % 2])
    for name in NODES:
        at = layout.at(name)
        (at.machine / "proc").mkdir(exist_ok=True)
        (at.machine / "proc/devices").write_text("Character devices:\n238 nvidia-caps\n")
        config.write(at.site_config, settings(at))


def gather(layout: Layout, folder: Path) -> None:
    """Runs the inventory on each node, as `clush` would; the node without a driver has a file without GPUs."""
    folder.mkdir(exist_ok=True)
    for name in NODES:
        text = jobs.admin(layout.at(name), "hami-hpc", "inventory", "--format", "json", "--node", name)
        found = json.loads(text)
        if name == LARGE_NODE:
            found["cpus"] = SHAPE
            found["gpus"] = [gpu | more for gpu, more in zip(found["gpus"], NEAR, strict=True)]
        (folder / f"{name}.json").write_text(json.dumps(found))
    empty = {"version": 1, "node": CPU_NODE, "gpus": [], "static_mig_instances": []}
    (folder / f"{CPU_NODE}.json").write_text(json.dumps(empty))


def render(layout: Layout, *words: str) -> Done:
    """Renders all nodes on a machine without GPU."""
    command = (
        *(str(config.PYTHON.with_name("hami-hpc")), "render", "--inventory", str(layout.root / "inventories")),
        *("--output", str(layout.etc), "--device", str(layout.public / "devices" / "nvidia")),
        *("--plugin-dir", f"{config._slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(layout.etc / "prolog"), "--epilog", str(layout.etc / "epilog"), *words),
    )
    return jobs.run_as(
        layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config), "HAMI_SIM": "/nonexistent"}
    )


def start(layout: Layout) -> None:
    services.make_database(layout)
    for name in services.all_daemons(layout):
        daemons.start(layout, services.describe(layout, name))
        if name == "slurmdbd":
            accounts.make_accounts(layout)
    private_cluster._wait_for_nodes(layout)
    for gpu in range(2):
        on = layout.at(MIG_NODE)
        assert "MIG is on" in jobs.admin(on, "hami-hpc", "mig", "enable", str(gpu), "--node", MIG_NODE)


@pytest.fixture(scope="module")
def site() -> Iterator[Layout]:
    """The cluster on exactly what render wrote and printed; slurm.conf's own lines were merged by the letter."""
    private_cluster.remove(ROOT)
    try:
        layout = open_or_create(ROOT, MACHINES)
        config.install(layout)
        private_cluster._make_homes(layout)
        become_the_site(layout)
        gather(layout, ROOT / "inventories")
        first = render(layout, "--force")
        assert first.status == 3, first.text
        assert re.search(r"note: Cores= is left out for node\[1\S*: its sockets differ, or nothing says", first.out)
        assert f"note: node {CPU_NODE} has no GPU for slices, and nothing is written for it" in first.out
        merging.follow(first.out)
        again = render(layout)
        assert (again.status, "Left to merge" in again.out, "wrote" in again.out) == (0, False, False), again.text
        for name in list(NODES)[1:]:
            several.write_own(layout.at(name))
        start(layout)
        yield layout
    finally:
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


def ran(layout: Layout, *options: str, script: str = SHOW) -> tuple[str, list[str]]:
    """Returns the node and the output of a job that ended well."""
    job = jobs.submit(layout, USER, "--time=5", *options, script=script)
    jobs.wait_for_state(layout, job, "COMPLETED")
    return jobs.job_facts(layout, job)["NodeList"], jobs.output(layout, USER, job).splitlines()


def as_written(gres: str) -> str:
    """Returns a node's gres as Slurm shows it without the sockets of its GPUs, and with whole numbers."""
    gres = re.sub(r"\(S:[^)]*\)", "", gres)
    return re.sub(r"(\d+)([KMGT])\b", lambda number: str(int(number[1]) << 10 * ("KMGT".index(number[2]) + 1)), gres)


def test_every_daemon_accepts_what_was_rendered(site: Layout) -> None:
    for log in (site.log / "slurmctld.log", *(site.log / f"{name}.log" for name in site.slurmds)):
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"\b(error|fatal|warning)\b", line, re.IGNORECASE)]
        assert [line for line in errors if not any(word in line for word in NOISE)] == [], log
    gpu_lines = 4 if config.slurm_release() < (24, 5) else 2  # later releases misread Links=, and get none
    rendered = (site.etc / "hami-hpc-gres.conf").read_text()
    for name, model in NODES.items():
        (line,) = re.findall(rf"^NodeName={name} .*", site.slurm_conf.read_text(), re.MULTILINE)
        words = dict(word.split("=", 1) for word in line.split())
        shown = jobs.admin(site, "scontrol", "show", "node", "-d", name)
        facts = dict(re.findall(r"(\w+)=(\S+)", shown))
        assert facts["State"] == "IDLE"
        assert as_written(facts["Gres"]) == words["Gres"]
        assert facts["ActiveFeatures"] == facts["AvailableFeatures"] == words["Feature"]
        assert f"vgpu_type_{model}" in words["Feature"].split(",")
        assert ("vgpu_mig" in words["Feature"], "vgpu_share" in words["Feature"]) == (
            (name == MIG_NODE),
            (name != MIG_NODE),
        )
        assert rendered.count(f"NodeName={name} Name=gpu Type={model} ") == (gpu_lines if name == LARGE_NODE else 1)
    assert "vgpu" not in jobs.admin(site, "scontrol", "show", "node", CPU_NODE)
    assert render(site, "--diff").status == 0


def test_jobs_are_placed_as_the_settings_say(site: Layout) -> None:
    """A slice has cores of its GPU's socket, whole GPUs are linked ones, and nodes are taken in turn."""
    request = ("--gres=vgpu:h200:mem=1G,cores=1", "--time=5")
    running = [jobs.submit(site, USER, *request, script="sleep 60") for _ in range(2)]
    shown = []
    for job in running:
        jobs.wait_for_state(site, job, "RUNNING")
        text = jobs.admin(site, "scontrol", "show", "job", "-d", str(job))
        (cpus,) = re.findall(r"CPU_IDs=(\d+)", text)
        shown.append((int(cpus) // 128, next(iter(shards_of_node(text, LARGE_NODE))) // 2))
    assert sorted(shown) == [(0, 0), (1, 1)]
    jobs.admin(site, "scancel", f"--user={USER}")
    jobs.wait(site, lambda: not jobs.admin(site, "squeue", "-h"), "all jobs to be gone", 60)
    name, lines = ran(site, "--gres=gpu:h200:2", script="echo $CUDA_VISIBLE_DEVICES")
    assert (name, lines[0] in ("0,1", "2,3")) == (LARGE_NODE, True), lines
    anywhere = [jobs.submit(site, USER, "--gres=vgpu:mem=1G,cores=1,type=a100|h200", script="sleep 60") for _ in "12"]
    for job in anywhere:
        jobs.wait_for_state(site, job, "RUNNING")
    assert {jobs.job_facts(site, job)["NodeList"] for job in anywhere} == {"node1", LARGE_NODE}
    jobs.admin(site, "scancel", f"--user={USER}")
    jobs.wait(site, lambda: not jobs.admin(site, "squeue", "-h"), "all jobs to be gone", 60)


def test_a_share_runs_where_its_model_is(site: Layout) -> None:
    for model in ("a100", "h200"):
        name, lines = ran(site, f"--gres=vgpu:{model}:mem=8G,cores=50")
        assert NODES[name] == model
        assert any("8192 MiB in total" in line for line in lines), lines


def test_a_mig_instance_is_on_the_node_in_mig_mode(site: Layout) -> None:
    name, lines = ran(site, "--gres=vgpu:h100:mem=8G,cores=10,mode=mig")
    assert name == MIG_NODE
    assert any(line.startswith("CUDA_VISIBLE_DEVICES=MIG-") for line in lines), lines


def test_mps_runs_on_a_node_that_is_not_in_mig_mode(site: Layout) -> None:
    name, lines = ran(site, "--gres=vgpu:a100:mem=8G,cores=50,mode=mps", script="env | grep ^CUDA_MPS_ACTIVE")
    assert (name, lines) == ("node1", ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"])


def test_whole_gpus_and_jobs_without_gpu_run_beside_them(site: Layout) -> None:
    name, lines = ran(site, "--gres=gpu:h200:3", script="echo $CUDA_VISIBLE_DEVICES $HAMI_HPC_VGPU")
    assert (name, lines) == ("node3", ["0,1,2"])
    assert ran(site, "--partition=cpu", script="hostname >/dev/null; echo done") == (CPU_NODE, ["done"])
    name, _ = ran(site, "--gres=vgpu:mem=100G,cores=10")  # no other GPU has as much
    assert name == "node3"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gres=vgpu:v100:mem=8G",), "GPU type 'v100' is not in partition gpu; its types are: a100, h100, h200."),
        (("--gres=vgpu:h200:mem=8G,mode=mig",), "h200 in partition gpu offers none; modes offered: share, mps, mig"),
        (("--gres=vgpu:mem=8G,cores=10,mode=mig",), "GPUs of several sizes (a100, h100, h200)"),
        (("--gres=vgpu:mem=8G,mode=shared",), "mode"),
        (("--gres=vgpu:a100:mem=100G",), "a100"),
        (("--partition=cpu", "--gres=vgpu:mem=8G"), "cpu"),
        (("--gres=vgpu:2:mem=8G",), "slices_max is 1 here"),
    ],
)
def test_what_no_node_has_is_refused_in_words(site: Layout, options: tuple[str, ...], words: str) -> None:
    with pytest.raises(ClusterError) as caught:
        jobs.submit(site, USER, *options, script="true")
    assert words in str(caught.value).partition("was refused: ")[2]


def test_the_doctor_finds_nothing_wrong_on_any_node(site: Layout) -> None:
    for name in NODES:
        at = site.at(name)
        text = jobs.admin(at, "hami-hpc", "doctor", "--node", name, allowed=(0, 3))
        failed = [line for line in text.splitlines() if line.startswith("FAIL")]
        # A private cluster has no cgroups.
        assert [line for line in failed if "TaskPlugin" not in line and "ConstrainDevices" not in line] == [], text
        node.wait_until_clean(at)
