# SPDX-License-Identifier: Apache-2.0
"""[placement] of the settings: what render writes into gres.conf, prints for slurm.conf, and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, Node

from hami_hpc.cli import main
from hami_hpc.core import cpu_cores
from hami_hpc.core import node_inventory as core
from hami_hpc.core.cpu_cores import Cpu, CpuShape
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.node_inventory import Surroundings
from hami_hpc.errors import NodeError
from hami_hpc.node import cpus as linux
from hami_hpc.node import nvml_places
from hami_hpc.slurm import commands
from hami_hpc.slurm.commands import version_of

PREFER = '[placement]\nnuma = "prefer"\n'
TWO_SOCKETS = "Sockets=2 CoresPerSocket=4 ThreadsPerCore=2"
SHAPE = CpuShape(2, 2, 4, 2)
# 2 sockets with 4 cores of 2 threads, numbered as Linux mostly does: sockets in turn, second threads after all cores.
CPUS = tuple(Cpu(number, number % 8, number % 2, number % 2) for number in range(16))
EVEN, ODD = "0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(commands, "version", lambda: version_of("22.05.8"))
    return Node.make(tmp_path / "node", with_gpus=False)


def printed(name: str, cpus: tuple[Cpu, ...] = CPUS, linked: bool = False) -> dict[str, Any]:
    """What a node with two GPUs prints, each near one socket."""
    gpus = [Gpu(number, number, f"GPU-{name}-{number}", "NVIDIA H200", "?", GPU_MIB) for number in range(2)]
    peers = [{gpus[1 - number].uuid: 4} if linked else {} for number in range(2)]
    around = {
        gpu.uuid: Surroundings(number, (EVEN, ODD)[number], 4, False, peers[number]) for number, gpu in enumerate(gpus)
    }
    return core.document(name, gpus, {gpu.uuid: 1 for gpu in gpus}, around, (), frozenset(), cpus)


def render(node: Node, settings: str, document: dict[str, Any], *words: str, slurm_conf: str = "") -> Result:
    etc = node.root / "etc"
    etc.mkdir(exist_ok=True)
    plain = node.config.read_text().partition("[placement]")[0]
    node.config.write_text(plain + settings)
    if slurm_conf:
        (etc / "slurm.conf").write_text(slurm_conf)
    (node.root / "n1.json").write_text(json.dumps(document))
    given = ["render", "--config", str(node.config), "--inventory", str(node.root / "n1.json"), "--output", str(etc)]
    return CliRunner().invoke(main, [*given, "--device", "/dev/nvidia", *words], catch_exceptions=False)


def gpu_lines(node: Node) -> list[str]:
    text = (node.root / "etc" / "hami-hpc-gres.conf").read_text()
    return [line.partition("Name=gpu ")[2] for line in text.splitlines() if "Name=gpu Type" in line]


def test_cores_are_those_of_slurm_and_not_linux_s_cpus(node: Node) -> None:
    done = render(node, PREFER, printed("n1"))
    assert "Cores=" not in done.output, done.output
    assert gpu_lines(node) == ["Type=h200 File=/dev/nvidia0 Cores=0-3", "Type=h200 File=/dev/nvidia1 Cores=4-7"]
    assert f"NodeName=n1 {TWO_SOCKETS} Gres=" in (node.root / "etc" / "slurm-hami-hpc.conf").read_text()


def test_without_numa_nothing_is_said_of_cores(node: Node) -> None:
    render(node, "", printed("n1"))
    assert gpu_lines(node) == ["Type=h200 File=/dev/nvidia[0-1]"]
    assert "Sockets" not in (node.root / "etc" / "slurm-hami-hpc.conf").read_text()


@pytest.mark.parametrize("version", ["24.05.0", "24.11.5", "26.05.5"])
def test_a_slurm_that_takes_the_worst_connected_gpus_is_told_of_no_links(
    node: Node, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(commands, "version", lambda: version_of(version))
    render(node, PREFER, printed("n1", linked=True))
    assert gpu_lines(node) == ["Type=h200 File=/dev/nvidia0 Cores=0-3", "Type=h200 File=/dev/nvidia1 Cores=4-7"]


@pytest.mark.parametrize("version", ["22.05.8", "23.11.11"])
def test_links_between_gpus_are_written_and_those_to_a_switch_are_not(
    node: Node, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(commands, "version", lambda: version_of(version))
    render(node, "", printed("n1", linked=True))
    assert gpu_lines(node) == ["Type=h200 File=/dev/nvidia0 Links=-1,4", "Type=h200 File=/dev/nvidia1 Links=4,-1"]
    assert printed("n1")["gpus"][0]["nvlinks"] == 4
    assert printed("n1")["gpus"][0]["links"] is None


def test_links_would_count_a_gpu_with_a_static_mig_layout_and_are_left_out(node: Node) -> None:
    document = printed("n1", linked=True)
    document["gpus"][1]["static_mig_layout"] = True
    document["static_mig_instances"] = [{"type": "3g.71gb", "device": "/dev/nvidia_mig/0"}]
    assert render(node, PREFER, document).exit_code == 0
    lines = gpu_lines(node)
    assert lines == ["Type=h200 File=/dev/nvidia0 Cores=0-3", "Type=3g.71gb File=/dev/nvidia_mig/0"]


@pytest.mark.parametrize(
    ("words", "is_written"),
    [
        (TWO_SOCKETS, True),
        ("Boards=1 SocketsPerBoard=2 CoresPerSocket=4", True),
        ("CPUs=16 Sockets=2 CoresPerSocket=4", True),
        ("CPUs=16", False),
        ("Sockets=1 CoresPerSocket=8", False),
        ("Sockets=2 CoresPerSocket=8", False),
        ("Sockets=two CoresPerSocket=4", False),
    ],
)
def test_cores_are_left_out_where_slurm_conf_has_other_sockets(node: Node, words: str, is_written: bool) -> None:
    text = f"NodeName=DEFAULT RealMemory=1\nNodeName=n[1-3] {words}\nPartitionName=gpu Nodes=n1\n"
    done = render(node, PREFER, printed("n1"), slurm_conf=text)
    assert ("Cores=0-3" in gpu_lines(node)[0]) == is_written
    assert ("note: Cores= is left out for n1: its machine has 2 socket(s) with 4 cores" in done.output) != is_written
    assert (f"Write {TWO_SOCKETS} there" in done.output) != is_written


def test_numa_nodes_that_are_sockets_to_slurm_are_understood(node: Node) -> None:
    """SlurmdParameters=numa_node_as_socket: one package, two NUMA nodes."""
    cpus = tuple(Cpu(number, number, 0, number // 4) for number in range(8))
    document = printed("n1", cpus)
    assert document["cpus"] == {"sockets": 1, "numa_nodes": 2, "cores_per_socket": 8, "threads_per_core": 1}
    render(node, PREFER, document, slurm_conf="NodeName=n1 Sockets=2 CoresPerSocket=4\n")
    assert "Cores=" in gpu_lines(node)[0]


def test_a_node_whose_driver_says_nothing_is_named(node: Node) -> None:
    done = render(node, PREFER, printed("n1", ()))
    assert "note: Cores= is left out for n1: its sockets differ, or nothing says which cores" in done.output
    assert gpu_lines(node) == ["Type=h200 File=/dev/nvidia[0-1]"]


def test_a_node_by_hand_has_no_cores(node: Node) -> None:
    node.config.write_text(node.config.read_text() + PREFER)
    words = [
        "render",
        "--config",
        str(node.config),
        "--gpus",
        "h200:2",
        "--node",
        "n1",
        "--output",
        str(node.root / "etc"),
    ]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert "nothing says which cores are near which GPU (its driver, its kernel, --gpus)" in done.output
    assert gpu_lines(node) == ["Type=h200 File=/dev/nvidia[0-1]"]


def test_where_slurm_conf_is_not_there_nothing_is_said_about_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "version", lambda: version_of("24.11.5"))
    done = render(node, '[placement]\ngpus = "spread"\nnodes = "spread"\n', printed("n1"))
    assert "so the site's settings were not checked" in done.output
    assert "SelectTypeParameters" not in done.output


def test_a_partition_that_slurm_conf_does_not_have_is_named(node: Node) -> None:
    done = render(node, '[placement]\nnodes = "spread"\n', printed("n1"), slurm_conf="PartitionName=other\n")
    assert 'slurm.conf has no PartitionName=gpu, for which [placement] wants nodes = "spread"' in done.output


def test_gpu_lines_of_the_site_s_own_are_its_own_matter(node: Node) -> None:
    (node.root / "etc").mkdir()
    (node.root / "etc" / "gres.conf").write_text("NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia[0-1]\n")
    done = render(node, PREFER, printed("n1"), slurm_conf=f"NodeName=n1 {TWO_SOCKETS}\n")
    assert "Cores= is left out for n1, whose gpu lines in gres.conf are the site's: add it there" in done.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda top: top["gpus"][0].update(cores="0-3 Name=gpu"), "'cores' is no list"),
        (lambda top: top["gpus"][0].update(cores="0-8"), "'cores' is no list"),
        (lambda top: top["gpus"][0].update(cores="3-0"), "'cores' is no list"),
        (lambda top: top["gpus"][0].update(cores=7), "'cores' is no list"),
        (lambda top: top.update(cpus=None), "'cores' is no list"),
        (lambda top: top["gpus"][0].update(links=[-1]), "'links' is no list"),
        (lambda top: top["gpus"][0].update(links=[-1, -1]), "'links' is no list"),
        (lambda top: top["gpus"][0].update(links=[-1, "4"]), "'links' is no list"),
        (lambda top: top["gpus"][0].update(links=[-1, True]), "'links' is no list"),
        (lambda top: top["cpus"].update(sockets=10**9), "'sockets' is no number"),
        (lambda top: top["cpus"].update(threads_per_core=0), "'cpus' has none"),
        (lambda top: top.update(cpus=[]), "'cpus' is no table"),
    ],
)
def test_an_inventory_that_nobody_printed_is_refused(node: Node, change: Any, words: str) -> None:
    document = printed("n1", linked=True)
    change(document)
    done = render(node, PREFER, document)
    assert done.exit_code == 1
    assert words in done.output
    assert not (node.root / "etc" / "hami-hpc-gres.conf").exists()


def test_an_inventory_of_an_earlier_release_has_no_cores(node: Node) -> None:
    document = printed("n1")
    del document["cpus"]
    for gpu in document["gpus"]:
        del gpu["cores"], gpu["links"]
    assert "Cores= is left out" in render(node, PREFER, document).output


@pytest.mark.parametrize(
    ("settings", "conf", "lines"),
    [
        ('nodes = "spread"', "PartitionName=gpu Nodes=n1\nPartitionName=cpu", ["LLN=YES"]),
        ('nodes = "spread"', "PartitionName=gpu LLN=yes", []),
        ('nodes = "spread"', "PartitionName=DEFAULT LLN=YES\nPartitionName=gpu", []),
        ('nodes = "spread"', "SelectTypeParameters=CR_Core,CR_LLN\nPartitionName=gpu", []),
        ('nodes = "binpack"', "PartitionName=gpu", []),
        ('nodes = "binpack"', "PartitionName=DEFAULT LLN=YES\nPartitionName=gpu", ["LLN=NO"]),
        ('nodes = "binpack"', "SelectTypeParameters=CR_Core,CR_LLN", ["SelectTypeParameters=CR_Core"]),
        ('nodes = "site"', "SelectTypeParameters=CR_LLN\nPartitionName=gpu LLN=YES", []),
        ('gpus = "binpack"', "SelectTypeParameters=cr_core,ll_shared_gres", ["SelectTypeParameters=cr_core"]),
        ('gpus = "binpack"', "PartitionName=gpu", []),
        ('gpus = "spread"', "SelectTypeParameters=CR_Core", ["SelectTypeParameters=CR_Core,LL_SHARED_GRES"]),
        ('gpus = "spread"', "SelectTypeParameters=LL_SHARED_GRES,CR_CPU", []),
        ('gpus = "spread"', "PartitionName=gpu", ["SelectTypeParameters=CR_Core_Memory,LL_SHARED_GRES"]),
        ('numa = "prefer"', "SelectTypeParameters=CR_Core", []),
    ],
)
def test_slurm_conf_s_lines_are_printed_until_they_are_there(
    node: Node, monkeypatch: pytest.MonkeyPatch, settings: str, conf: str, lines: list[str]
) -> None:
    monkeypatch.setattr(commands, "version", lambda: version_of("24.11.5"))
    text = f"NodeName=n1 {TWO_SOCKETS}\n{conf}\n"
    done = render(node, f"[placement]\n{settings}\n", printed("n1"), slurm_conf=text)
    told = [line.strip() for line in done.output.splitlines() if line.startswith(" " * 9)]
    assert [line for line in told if line.startswith(("LLN", "SelectTypeParameters"))] == lines


@pytest.mark.parametrize(
    ("settings", "line", "words"),
    [
        ('gpus = "spread"', 1, "needs LL_SHARED_GRES, which Slurm has from 23.02.4 on, and this is 22.05.8: leave"),
        ('numa = "bind"', 1, 'numa = \'bind\' is not understood; allowed is "off" or "prefer"'),
        ('numa = "prefer"\ngpus = "binpack"', 2, 'gpus = "binpack" and numa = "prefer" do not go together'),
        ('gpus = "pack"', 1, 'gpus = \'pack\' is not understood; allowed is "site" or "binpack" or "spread"'),
        ('gpu = "spread"', 1, "unknown key 'gpu'; did you mean gpus?"),
    ],
)
def test_what_cannot_be_is_refused_with_line_and_reason_and_nothing_is_written(
    node: Node, settings: str, line: int, words: str
) -> None:
    above = node.config.read_text().count("\n") + 1
    done = render(node, f"[placement]\n{settings}\n", printed("n1"))
    assert done.exit_code == 1
    assert f"{node.config}, line {above + line}, table [placement]: " in done.output
    assert words in done.output
    assert not list((node.root / "etc").iterdir())


def test_without_slurm_s_commands_the_release_is_not_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise NodeError("no scontrol")

    monkeypatch.setattr(commands, "version", missing)
    done = render(node, '[placement]\ngpus = "spread"\n', printed("n1"), slurm_conf="PartitionName=gpu\n")
    assert "LL_SHARED_GRES" in done.output


@given(st.sets(st.integers(0, cpu_cores.CPUS_MAX - 1), max_size=50))
def test_a_list_has_each_number_once(numbers: set[int]) -> None:
    assert cpu_cores.from_list(cpu_cores.as_list(numbers)) == sorted(numbers)


def test_numbers_alone_are_in_a_list_without_a_range() -> None:
    assert cpu_cores.as_list([7, 0, 2, 1, 4, 6]) == "0-2,4,6-7"
    assert cpu_cores.as_list([0]) == "0"
    assert cpu_cores.as_list([]) == ""


def test_cores_of_cpus_that_the_node_does_not_have_are_none() -> None:
    cores = cpu_cores.slurm_cores(CPUS)
    assert cpu_cores.cores_near([0, 8, 2, 99], cores) == "0-1"
    assert cpu_cores.cores_near([99], cores) is None, "no Cores= in gres.conf"


@pytest.mark.parametrize("text", ["a", "1-", "-1", "2-1", "1,,2", "999999", "65536", "٣", "0x1"])
def test_other_texts_are_no_lists(text: str) -> None:
    with pytest.raises(ValueError, match="list of CPUs"):
        cpu_cores.from_list(text)


def test_cores_are_numbered_by_socket_and_numa_node() -> None:
    assert cpu_cores.shape_of(CPUS) == SHAPE
    cores = cpu_cores.slurm_cores(CPUS)
    assert [cores[number] for number in (0, 2, 4, 6, 1, 3, 5, 7)] == list(range(8))
    assert all(cores[number] == cores[number + 8] for number in range(8)), "threads of one core"
    # Two NUMA nodes in a package, whose cores are numbered in turn.
    halves = tuple(Cpu(number, number, 0, number % 2) for number in range(4))
    assert cpu_cores.slurm_cores(halves) == {0: 0, 2: 1, 1: 2, 3: 3}
    # One NUMA node of two packages.
    whole = tuple(Cpu(number, number, number % 2, 0) for number in range(4))
    assert cpu_cores.slurm_cores(whole) == {0: 0, 2: 1, 1: 2, 3: 3}


def test_sockets_that_differ_have_no_shape() -> None:
    assert cpu_cores.shape_of(CPUS[:-1]) is None, "a CPU is offline"
    assert cpu_cores.shape_of([*CPUS, Cpu(16, 16, 2, 2), Cpu(17, 16, 2, 2)]) is None
    assert cpu_cores.shape_of([]) is None


def sysfs(root: Path, cpus: tuple[Cpu, ...]) -> Path:
    for cpu in cpus:
        topology = root / f"cpu/cpu{cpu.number}/topology"
        topology.mkdir(parents=True)
        siblings = ",".join(str(other.number) for other in cpus if other.core == cpu.core)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        (topology / "physical_package_id").write_text(f"{cpu.package}\n")
    (root / "cpu/online").write_text(cpu_cores.as_list(cpu.number for cpu in cpus) + "\n")
    for numa in {cpu.numa_node for cpu in cpus}:
        (root / f"node/node{numa}").mkdir(parents=True)
        listed = cpu_cores.as_list(cpu.number for cpu in cpus if cpu.numa_node == numa)
        (root / f"node/node{numa}/cpulist").write_text(f"{listed}\n")
    return root


def test_linux_s_cpus_are_read_and_nothing_where_it_does_not_say(tmp_path: Path) -> None:
    root = sysfs(tmp_path, CPUS)
    assert linux.read_cpus(root) == CPUS
    (root / "cpu/cpu3/topology/physical_package_id").write_text("")
    assert linux.read_cpus(root) == ()
    assert linux.read_cpus(tmp_path / "none") == ()
    assert cpu_cores.shape_of(linux.read_cpus()) is None or linux.read_cpus(), "this machine"


class NVMLError(Exception):
    pass


class InvalidArgumentError(NVMLError):
    pass


def test_the_ends_of_nvlinks_are_gpus_of_the_node_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU 0 has two links to GPU 1 and one to a switch."""
    ends = {(0, 0): "0000:02:00.0", (0, 1): "0000:02:00.0", (0, 2): "0000:09:00.0", (1, 0): b"0000:01:00.0"}

    def state(handle: int, link: int) -> int:
        if (handle, link) not in ends:
            raise InvalidArgumentError
        return 1

    def unsupported(*_: object) -> None:
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_InvalidArgument=InvalidArgumentError,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_FEATURE_ENABLED=1,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=b"0000:01:00.0" if handle == 0 else "0000:02:00.0"),
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: SimpleNamespace(busId=ends[handle, link]),
        nvmlDeviceGetCpuAffinity=unsupported,
        nvmlDeviceGetNumaNodeId=unsupported,
        nvmlDeviceGetMigMode=unsupported,
        nvmlShutdown=lambda: None,
    )
    monkeypatch.setattr(nvml_places, "open_nvml", lambda: nvml)
    found = nvml_places.read_surroundings()
    assert (found["GPU-0"].nvlinks, found["GPU-0"].peers) == (3, {"GPU-1": 2})
    assert (found["GPU-1"].nvlinks, found["GPU-1"].peers) == (1, {"GPU-0": 1})
    nvml.nvmlDeviceGetNvLinkRemotePciInfo = unsupported
    assert nvml_places.read_surroundings()["GPU-0"].peers is None
    nvml.nvmlDeviceGetPciInfo = unsupported
    assert nvml_places.read_surroundings()["GPU-0"].nvlinks == 3
