# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc inventory` prints for machines, and what `hami-hpc render --inventory` makes of many nodes' prints."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, Node

from hami_hpc.cli import main
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.inventory_command import read_inventories
from hami_hpc.core import node_inventory as core
from hami_hpc.core.inventory import Device, Gpu
from hami_hpc.core.node_inventory import Surroundings
from hami_hpc.errors import NodeError
from hami_hpc.node import nvml_places

A100_MIB = 40383


def printed(name: str, product: str = "NVIDIA H200", mib: int = GPU_MIB, count: int = 2, **more: Any) -> dict[str, Any]:
    """What a node prints whose GPUs are all of one product and size."""
    gpus = [Gpu(number, number, f"GPU-{name}-{number}", product, "?", mib) for number in range(count)]
    shards = {gpu.uuid: 1 for gpu in gpus}
    around = {gpus[0].uuid: Surroundings(1, "0-7", 4, False)} if gpus else {}
    return core.document(name, gpus, shards, around, (), frozenset()) | more


def put(folder: Path, *documents: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, each in enumerate(documents):
        (folder / f"{number}.json").write_text(json.dumps(each))
    return folder


def render(node: Node, *arguments: str, etc: str = "etc") -> Result:
    words = ["render", "--config", str(node.config), "--output", str(node.root / etc), *arguments]
    return CliRunner().invoke(main, words, catch_exceptions=False)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node.make(tmp_path / "node", with_gpus=False)
    node.config.write_text(node.config.read_text() + f"[gpu_models.a100]\ntotal_mib = {A100_MIB}\n")
    return node


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_is_printed_is_read_as_it_was() -> None:
    found = core.parse(json.dumps(printed("n1")), "n1.json")
    assert found.node == "n1"
    assert found.devices == tuple(Device(number, f"GPU-n1-{number}", "NVIDIA H200", GPU_MIB) for number in range(2))
    row = printed("n1")["gpus"][0]
    assert (row["numa_node"], row["cpus"], row["nvlinks"], row["mig"]) == (1, "0-7", 4, False)
    assert printed("n1")["gpus"][1]["cpus"] is None


def test_one_run_over_all_nodes_writes_what_a_run_for_each_writes(node: Node) -> None:
    folder = put(node.root / "gathered", printed("n2", "NVIDIA A100-PCIE-40GB", A100_MIB, 4), printed("n1"))
    at_once = render(node, "--inventory", str(folder))
    assert at_once.exit_code == ExitCode.DONE, at_once.output
    for name, gpus in (("n1", "h200:2"), ("n2", "a100:4")):
        assert render(node, "--node", name, "--gpus", gpus, etc="single").exit_code == ExitCode.DONE
    single = {
        name: text.replace(str(node.root / "single"), str(node.root / "etc"))
        for name, text in contents(node.root / "single").items()
    }
    # The mark at a file's end is of its text, which has the directory in it.
    whole = contents(node.root / "etc")
    assert whole.keys() == single.keys()
    for name in ("hami-hpc-gres.conf", "hami_hpc_site.lua"):
        assert whole[name] == single[name]
    lines = [line for line in whole["slurm-hami-hpc.conf"].splitlines() if line.startswith("NodeName")]
    assert lines == [line for line in single["slurm-hami-hpc.conf"].splitlines() if line.startswith("NodeName")]
    assert len(lines) == 2
    assert "wrote" not in render(node, "--inventory", str(folder)).output, "a second run changes nothing"


def test_nodes_that_are_there_stay_and_a_dry_run_shows_all_nodes(node: Node) -> None:
    render(node, "--node", "old", "--gpus", "h200:1")
    folder = put(node.root / "gathered", printed("n1"), printed("n2"))
    shown = render(node, "--inventory", str(folder), "--diff")
    assert shown.exit_code == ExitCode.FOUND
    assert "+NodeName=n[1-2] Name=gpu Type=h200" in shown.output
    assert "NodeName=n[1-2]" not in (node.root / "etc/hami-hpc-gres.conf").read_text()
    render(node, "--inventory", str(folder / "0.json"), "--inventory", str(folder / "1.json"))
    text = (node.root / "etc/hami-hpc-gres.conf").read_text()
    assert re.findall(r"NodeName=(\S+) Name=gpu", text) == ["n[1-2]", "old"]


def test_nodes_without_gpus_for_slices_are_named_and_left_out(node: Node) -> None:
    static = printed("n3")
    for row in static["gpus"]:
        row["static_mig_layout"] = True
    folder = put(node.root / "gathered", printed("n1"), printed("n2", count=0), static)
    done = render(node, "--inventory", str(folder))
    assert done.exit_code == ExitCode.DONE
    assert "note: 2 nodes have no GPU for slices, and nothing is written for them: n[2-3]\n" in done.output
    for name in ("n2", "n3"):
        assert f"NodeName={name} " not in (node.root / "etc/hami-hpc-gres.conf").read_text()
    none = render(node, "--inventory", str(put(node.root / "none", printed("n2", count=0))))
    assert none.exit_code == ExitCode.FAILED
    assert "note: node n2 has no GPU for slices, and nothing is written for it\n" in none.output
    assert "no node of the inventories has a GPU for slices" in none.output


@pytest.mark.parametrize("words", [("--gpus", "h200:2"), ("--node", "n1"), ("--node", "")])
def test_an_inventory_and_a_node_by_hand_are_refused_together(node: Node, words: tuple[str, str]) -> None:
    folder = put(node.root / "gathered", printed("n1"))
    done = render(node, "--inventory", str(folder), *words)
    assert done.exit_code == ExitCode.USAGE
    assert not (node.root / "etc").exists()


def test_a_model_that_the_settings_lack_is_refused_before_anything_is_written(node: Node) -> None:
    folder = put(node.root / "gathered", printed("n1"), printed("n2", "NVIDIA B200", 180000))
    done = render(node, "--inventory", str(folder))
    assert done.exit_code == ExitCode.FAILED
    assert "B200" in done.output
    assert not (node.root / "etc").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: the node printed nothing"),
        ("n1: {\n", "is not JSON (Expecting value: line 1 column 1 (cha...); it begins with 'n1: {"),
        ("\ufeff{}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", "is not what this hami_hpc's inventory prints (version 1); make it with"),
        ("[]", "what that of another release does: install the same release there and here, then make it"),
        (json.dumps(printed("n1", version=2)), "what that of another release does"),
        (json.dumps(printed("n1", version=True)), "version 1"),
        (json.dumps(printed("n1", gpus={})), "'gpus' is no list of tables"),
        (json.dumps(printed("n1", gpus=[1])), "'gpus' is no list of tables"),
        (json.dumps(printed("n1", node=3)), "'node' is no text of one line"),
        (json.dumps(printed("n1") | {"node": "n1\nNodeName=x"}), "'node' is no text of one line"),
        (json.dumps(printed("n[1-9]")), "is not the name of one node"),
        (json.dumps(printed("n1", "NVIDIA\nH200")), "'name' is no text of one line"),
        (json.dumps(printed("n1", mib=-1)), "'total_mib' is no number from 0"),
        (json.dumps(printed("n1", mib=2**40)), "'total_mib' is no number from 0"),
        (json.dumps(printed("n1")).replace('"minor": 1', '"minor": 0'), "two GPUs have the same minor number"),
        (json.dumps(printed("n1", static_mig_instances=[{"type": ""}])), "'type' is no text of one line"),
        (" " * (core.MAX_BYTES + 1), "longer than 4 MiB"),
    ],
)
def test_what_is_no_inventory_is_refused_with_the_file_and_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "n1.json"
    path.write_text(text)
    with pytest.raises(NodeError) as raised:
        read_inventories([tmp_path])
    assert str(path) in str(raised.value)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 500


def test_all_files_that_are_wrong_are_named_at_once(tmp_path: Path) -> None:
    put(tmp_path, *(printed(f"n{number}") for number in range(9)))
    for number in range(2, 9):
        path = tmp_path / f"{number}.json"
        path.write_text(path.read_text()[:-7])
    with pytest.raises(NodeError, match=r"2\.json is not JSON .*/6\.json is not JSON .*; and 2 more files$"):
        read_inventories([tmp_path])


def test_a_node_twice_and_a_copied_file_are_refused_with_both_names(tmp_path: Path) -> None:
    folder = put(tmp_path / "a", printed("n1"), printed("n1"))
    with pytest.raises(NodeError, match=r"a/0\.json and .*a/1\.json are both of node n1"):
        read_inventories([folder])
    (folder / "1.json").write_text(json.dumps(printed("n1") | {"node": "n2"}))
    with pytest.raises(NodeError, match="both have GPU GPU-n1-0"):
        read_inventories([folder])
    (folder / "1.json").unlink()
    assert [each.node for each in read_inventories([folder, folder / "0.json"])] == ["n1"]


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(NodeError, match="Too many levels of symbolic links"):
        read_inventories([tmp_path])


def test_a_pipe_and_an_empty_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"has no \*\.json"):
        read_inventories([tmp_path])
    (tmp_path / "n1").write_text("{}")
    with pytest.raises(NodeError, match=r"has no \*\.json, but 1 file\(s\) with other names \(n1\): rename them, or"):
        read_inventories([tmp_path])
    with pytest.raises(NodeError, match=r"n2\.json cannot be read \(No such file"):
        read_inventories([tmp_path / "n2.json"])
    os.mkfifo(tmp_path / "n1.json")
    with pytest.raises(NodeError, match="no regular file"):
        read_inventories([tmp_path])


class NVMLError(Exception):
    pass


class InvalidArgumentError(NVMLError):
    pass


def link_state(_handle: object, link: int) -> int:
    if link > 1:
        raise InvalidArgumentError
    return 1


def unsupported(*_: object) -> None:
    raise NVMLError


def test_surroundings_are_what_nvml_says_and_nothing_where_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_InvalidArgument=InvalidArgumentError,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_FEATURE_ENABLED=1,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda _handle: "GPU-1",
        nvmlDeviceGetCpuAffinity=lambda _handle, words: [0b1011, *[0] * (words - 1)],
        nvmlDeviceGetNumaNodeId=lambda _handle: 1,
        nvmlDeviceGetNvLinkState=link_state,
        nvmlDeviceGetMigMode=lambda _handle: [1, 1],
        nvmlShutdown=lambda: None,
    )
    monkeypatch.setattr(nvml_places, "open_nvml", lambda: nvml)
    assert nvml_places.read_surroundings() == {"GPU-1": Surroundings(1, "0-1,3", 2, True)}, "no ends of links"
    nvml.nvmlDeviceGetCpuAffinity = nvml.nvmlDeviceGetNvLinkState = nvml.nvmlDeviceGetMigMode = unsupported
    del nvml.nvmlDeviceGetNumaNodeId  # an older pynvml
    assert nvml_places.read_surroundings() == {"GPU-1": Surroundings()}
    nvml.nvmlDeviceGetUUID = unsupported
    with pytest.raises(NodeError, match="NVML failed"):
        nvml_places.read_surroundings()
