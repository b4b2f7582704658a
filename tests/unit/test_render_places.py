# SPDX-License-Identifier: Apache-2.0
"""render, settings and doctor where a job may have several slices: the types of GPUs are places (docs/adr/055)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from node_testbed import Node

from hami_hpc.cli import main
from hami_hpc.core.finding import Level
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.site import Site
from hami_hpc.doctor import slurm_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.node import nvml
from hami_hpc.node.config import load_settings
from hami_hpc.render.offer import make_offer
from hami_hpc.slurm import commands

SITE = Site(256, 1.0, "25%", 25, "refuse", ["share"], {"std": ()}, {"h200": 143156, "a100": 40330}, {}, slices_max=2)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node.make(tmp_path / "node", with_gpus=False)
    with_setting(made, "slices_max = 2")
    return made


def with_setting(node: Node, line: str) -> None:
    text = re.sub(r"\nslices_max.*", "", node.config.read_text())
    table = "[vgpu]\n" if "[vgpu]\n" in text else ""
    node.config.write_text(text.replace(table, f"{table}{line}\n") if table else f"{text}\n[vgpu]\n{line}\n")


def render(node: Node, gpus: str = "h200:4", *arguments: str) -> Result:
    given = ["render", "--config", str(node.config), "--gpus", gpus, "--node", "node1"]
    return CliRunner().invoke(main, [*given, "--output", str(node.root / "etc"), *arguments], catch_exceptions=False)


def gpus(count: int, model: str = "h200") -> list[Gpu]:
    return [Gpu(index, 3 + index, "", model, model, 143156) for index in range(count)]


def test_gres_conf_and_the_node_line_have_a_type_for_each_run_of_neighbours(node: Node) -> None:
    assert render(node).exit_code == 0
    lines = (node.root / "etc/hami-hpc-gres.conf").read_text().splitlines()
    assert [line for line in lines if "Name=gpu" in line or "Name=shard" in line] == [
        "NodeName=node1 Name=gpu Type=a File=/dev/nvidia[0-1]",
        "NodeName=node1 Name=shard Type=a Count=1118 File=/dev/nvidia[0-1]",
        "NodeName=node1 Name=gpu Type=b File=/dev/nvidia[2-3]",
        "NodeName=node1 Name=shard Type=b Count=1118 File=/dev/nvidia[2-3]",
    ]
    fragment = (node.root / "etc/slurm-hami-hpc.conf").read_text()
    assert " Gres=gpu:a:2,gpu:b:2,shard:a:1118,shard:b:1118,vgpu:std:2236," in fragment
    assert re.search(r" Feature=\S*vgpu_type_h200", fragment)
    assert 'slices_max"] = 2,' in (node.root / "etc/hami_hpc_site.lua").read_text().replace(" ", " ")


def test_one_slice_a_job_has_the_model_as_type_and_shards_too(node: Node) -> None:
    with_setting(node, "slices_max = 1")
    assert render(node).exit_code == 0
    assert "Gres=gpu:h200:4,shard:h200:2236," in (node.root / "etc/slurm-hami-hpc.conf").read_text()
    lines = (node.root / "etc/hami-hpc-gres.conf").read_text().splitlines()
    assert "NodeName=node1 Name=shard Type=h200 Count=2236 File=/dev/nvidia[0-3]" in lines


@pytest.mark.parametrize(
    ("count", "slices_max", "gres"),
    [
        (8, 2, "gpu:a:4,gpu:b:4,shard:a:2236,shard:b:2236,"),
        (3, 2, "gpu:a:2,gpu:b:1,shard:a:1118,shard:b:559,"),
        (1, 16, "gpu:a:1,shard:a:559,"),
        (2, 16, "gpu:a:1,gpu:b:1,shard:a:559,shard:b:559,"),
    ],
)
def test_a_node_has_as_many_types_as_slices_max_or_as_gpus(count: int, slices_max: int, gres: str) -> None:
    offer = make_offer(replace(SITE, slices_max=slices_max), gpus(count))
    assert offer.gres.startswith(gres)
    assert offer.shards == 559 * count


def test_types_follow_slurm_s_order_of_the_gpus(tmp_path: Path) -> None:
    offer = make_offer(SITE, list(reversed(gpus(4))))
    assert [(line.place, line.minors) for line in offer.lines] == [("a", "[3-4]"), ("b", "[5-6]")]


def test_several_models_and_static_mig_layouts_are_refused(node: Node) -> None:
    with pytest.raises(NodeError, match="GPUs of 2 models"):
        make_offer(SITE, [*gpus(1), *gpus(1, "a100")])
    with pytest.raises(NodeError, match=r"slices_max = 2 and a static MIG layout \(1g.18gb\) do not go together"):
        make_offer(SITE, gpus(2), static={"1g.18gb": 7})


def test_the_site_s_own_gpu_lines_are_to_be_deleted(node: Node) -> None:
    etc = node.root / "etc"
    etc.mkdir()
    (etc / "gres.conf").write_text("NodeName=node1 Name=gpu Type=h200 File=/dev/nvidia[0-3]\n")
    done = render(node)
    assert "line 1: delete this line; hami-hpc-gres.conf has one for the same gres" in done.output
    assert "Name=gpu Type=a File=" in (etc / "hami-hpc-gres.conf").read_text()


def test_render_tells_that_a_partition_of_small_nodes_has_to_say_so(node: Node) -> None:
    with_setting(node, "slices_max = 8")
    assert "node1 has 4 GPU(s) and slices_max is 8" in render(node).output
    text = node.config.read_text()
    node.config.write_text(re.sub(r"(\[partitions\.[a-z]+\]\n)", r"\1gpus = 4\n", text))
    assert "slices_max is 8" not in render(node).output
    assert '["gpus"] = 4' in (node.root / "etc/hami_hpc_site.lua").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("slices_max = 0", "a whole number from 1 to 16"),
        ("slices_max = 17", "a whole number from 1 to 16"),
        ("slices_max = 1.5", "a whole number from 1 to 16"),
        ('slices_max = "2"', "a whole number from 1 to 16"),
        ("slices_max = true", "a whole number from 1 to 16"),
        ('slices_max = 2\nmodes = ["mps"]', r'allowed is 1, or "share" in modes'),
        ("slices_max = 2\n[gpu_models.b]\ntotal_mib = 4096", r"allowed is 1, or another name for \[gpu_models.b\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(node: Node, line: str, message: str) -> None:
    node.config.write_text(re.sub(r"\nmodes = .*", "", node.config.read_text()))
    with_setting(node, line)
    with pytest.raises(NodeError, match=message):
        load_settings(str(node.config))


@pytest.mark.parametrize("wrong", ["-1", "1025", '"2"'])
def test_gpus_of_a_partition_are_a_number(node: Node, wrong: str) -> None:
    node.config.write_text(re.sub(r"(\[partitions\.[a-z]+\]\n)", rf"\1gpus = {wrong}\n", node.config.read_text()))
    with pytest.raises(NodeError, match="a whole number from 0 to 1024"):
        load_settings(str(node.config))


@pytest.mark.parametrize(
    ("slices_max", "in_slurm", "wrong"),
    [
        (2, {"a": 2, "b": 2}, ""),
        (1, {"h200": 4}, ""),
        (2, {"h200": 4}, "node1 has gpu:h200:4 in Slurm, and slices_max = 2 needs gpu:a:2, gpu:b:2"),
        (2, {"b": 2, "a": 2}, "needs gpu:a:2, gpu:b:2"),
        (2, {"a": 3, "b": 1}, "needs gpu:a:2, gpu:b:2"),
        (1, {"a": 2, "b": 2}, "slices_max = 1 needs gpu:MODEL:COUNT"),
        (1, {"a": 4}, "slices_max = 1 needs gpu:MODEL:COUNT"),
    ],
)
def test_the_doctor_finds_types_of_another_slices_max(
    monkeypatch: pytest.MonkeyPatch, node: Node, slices_max: int, in_slurm: Mapping[str, int], wrong: str
) -> None:
    with_setting(node, f"slices_max = {slices_max}")
    monkeypatch.setattr(commands, "gpus_by_type", lambda _node: dict(in_slurm))
    monkeypatch.setattr(commands, "gres_by_type", lambda _node, _name: {})
    monkeypatch.setattr(nvml, "read_devices", lambda: [None] * 4)
    facts = SimpleNamespace(settings=load_settings(str(node.config)), slurm={}, node="node1")
    findings = list(slurm_checks.check_gres(cast(Facts, cast(Any, facts))))
    failed = [one.detail for one in findings if one.level is Level.FAIL]
    assert len(failed) == bool(wrong)
    assert all(wrong in text for text in failed)


def test_lua_reads_what_render_writes(node: Node) -> None:
    assert render(node).exit_code == 0
    table = node.root / "etc/hami_hpc_site.lua"
    code = f'local s = dofile("{table}"); print(s.slices_max)'
    assert subprocess.run(["lua5.1", "-e", code], capture_output=True, text=True, check=True).stdout == "2\n"
