# SPDX-License-Identifier: Apache-2.0
"""Who may land on which GPUs, as render writes it for people: the same as the filters, Slurm and the prologs decide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_render_site import snapshot

from hami_hpc.cli import main
from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.request import parse
from hami_hpc.core.units import resolve
from hami_hpc.node.config import load_settings
from hami_hpc.render.marks import is_ours
from hami_hpc.render.tenants import FILE

TOML = """\
version = 1
[vgpu]
modes = ["share", "mps", "mig"]
mig_nodes = ["h[1-4]"]
max_tenants = {tenants}
slices_max = 1
[classes.be]
policies = ["burst", "cap"]
swap = true
[gpu_models.h200]
total_mib = 143156
[gpu_models.h100]
total_mib = 81008
[gpu_models.h100.mig_profiles]
"1g.10gb" = "9856 MiB, 1/7 compute, 1/8 memory at {{0,1,2,3,4,5,6}}, at most 7"
"3g.40gb" = "40320 MiB, 3/7 compute, 4/8 memory at {{0,4}}, at most 2"
[partitions.gpu]
gpu_models = ["h200", "h100"]
[partitions.h200]
gpu_models = ["h200"]
"""
SLURM_CONF = """\
NodeName=gpu[01-48],h[1-4] CPUs=4
NodeSet=hopper Feature=vgpu_type_h100
NodeSet=small Nodes=gpu01
PartitionName=DEFAULT DenyQos=student
PartitionName=gpu Nodes=ALL
PartitionName=h200 Nodes=gpu[01-48] AllowQos=lc,std
PartitionName=debug Nodes=hopper,small
PartitionName=elsewhere Nodes=cpu[1-9] AllowQos=ALL
"""


class Cluster:
    def __init__(self, folder: Path, tenants: int = 8, slurm_conf: str = SLURM_CONF) -> None:
        self.config, self.etc = folder / "hami-hpc.toml", folder / "etc"
        self.config.write_text(TOML.format(tenants=tenants))
        self.etc.mkdir()
        if slurm_conf:
            (self.etc / "slurm.conf").write_text(slurm_conf)

    def render(self, name: str, gpus: str, *words: str) -> Result:
        command = ["render", "--config", str(self.config), "--output", str(self.etc), "--node", name, "--gpus", gpus]
        return CliRunner().invoke(main, [*command, *words], catch_exceptions=False)

    def text(self, name: str, gpus: str) -> str:
        shown = self.render(name, gpus, "--tenants")
        assert shown.exit_code == 0, shown.output
        return shown.output


def rows(text: str, head: str) -> dict[str, list[str]]:
    """Returns the rows below a head, by their first cell."""
    table = text.partition(f"  {head}")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [re.split(r" {2,}", line.strip()) for line in table]
    return {row[0]: row[1:] for row in cells}


def test_a_node_that_shares_its_gpus(tmp_path: Path) -> None:
    text = Cluster(tmp_path).text("gpu02", "h200:8")
    assert "# --- node gpu02\n8 x h200, 143156 MiB each, 559 shards of 256 MiB\n" in text
    assert rows(text, "PARTITION") == {
        "gpu": ["slices, whole GPUs", "all but student"],
        "h200": ["slices, whole GPUs", "lc,std"],
    }
    assert rows(text, "MODE") == {
        "share": ["interposer (software)", "mem=17664M,cores=12 (69 shards)", "8", "mem=143156M,cores=100"],
        "mps": [
            "interposer and MPS daemon (software)",
            "mem=17664M,cores=12 (69 shards)",
            "8",
            "mem=143156M,cores=100",
        ],
        "whole GPUs": ["no other tenant", "gpu:h200:1", "1", "all of the node"],
    }
    classes = rows(text, "CLASS")
    assert list(classes) == ["std", "lc", "be"]
    assert classes["std"][0] == "all that no class names"
    assert classes["lc"][3] == "latency-critical, others keep 5 %"
    assert [cell.partition(":")[0] for cell in classes["be"]] == ["be", "burst", "cap", "memory may leave the GPU"]


def test_a_node_in_mig_mode_has_instances_and_no_whole_gpus(tmp_path: Path) -> None:
    text = Cluster(tmp_path).text("h1", "h100:4")
    sizes = ["mig=1g.10gb (mem=9856M,cores=14)", "7", "mig=3g.40gb (mem=40320M,cores=42)"]
    assert rows(text, "MODE") == {"mig": ["GPU's own MIG (hardware)", *sizes]}
    assert rows(text, "PARTITION") == {
        "gpu": ["slices", "all but student"],
        "debug": ["no slices: not in [partitions.*]", "all but student"],
    }


def test_a_node_set_with_the_nodes_name_is_a_partition_of_it(tmp_path: Path) -> None:
    assert "debug" in rows(Cluster(tmp_path).text("gpu01", "h200:8"), "PARTITION")


def test_without_slurm_conf_the_settings_partitions_are_named(tmp_path: Path) -> None:
    text = Cluster(tmp_path, slurm_conf="").text("h1", "h100:4")
    assert rows(text, "PARTITION") == {"gpu": ["slices", "slurm.conf does not have it"]}


@pytest.mark.parametrize(("tenants", "fit"), [(0, 100), (1, 1), (4, 4), (7, 7), (48, 46)])  # 100: 1 % of the time each
def test_the_least_slice_is_one_that_a_request_gets_and_so_many_fit(tmp_path: Path, tenants: int, fit: int) -> None:
    cluster = Cluster(tmp_path, tenants)
    least, count, largest = rows(cluster.text("gpu02", "h200:8"), "MODE")["share"][1:]
    site = load_settings(str(cluster.config)).site()

    def shards(text: str) -> int:
        parsed = parse(f"vgpu:h200:{text}")
        assert parsed is not None
        return resolve(parsed.request, site, Where(("h200",))).shards

    keys, said = least.removesuffix(" shards)").split(" (")
    assert shards(keys) == shards("mem=1M,cores=1") == int(said)
    assert shards(largest) == 559
    assert int(count) == fit
    assert int(count) * int(said) <= 559


def test_the_file_has_like_nodes_together_and_forgets_those_that_are_gone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for name in ("gpu02", "gpu03", "gpu04"):
        cluster.render(name, "h200:8")
    path = cluster.etc / FILE
    assert is_ours(path.read_text())
    assert re.findall(r"^# --- node (.*)$", path.read_text(), re.MULTILINE) == ["gpu[02-04]"]
    before = snapshot(cluster.etc)
    assert "# --- node gpu[02-04]\n" in cluster.text("h1", "h100:4")
    assert snapshot(cluster.etc) == before, "--tenants writes nothing"
    done = CliRunner().invoke(main, ["forget-node", "gpu03", "-o", str(cluster.etc)])
    assert done.exit_code == 3, "slurm.conf still names it"
    assert re.findall(r"^# --- node (.*)$", path.read_text(), re.MULTILINE) == ["gpu[02,04]"]


def test_oversold_memory_and_static_instances_are_said(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    text = cluster.config.read_text().replace(
        'modes = ["share", "mps", "mig"]\nmig_nodes = ["h[1-4]"]\n', "memory_scaling = 2.0\n"
    )
    cluster.config.write_text(text.replace("max_tenants = 8\n", "") + "[agent]\n")
    shown = cluster.text("gpu02", "h200:2")
    assert "1118 shards of 256 MiB; memory is sold 2 times, 286312 MiB, and jobs take turns" in shown
    assert rows(shown, "MODE")["share"][-1] == "mem=128768M,cores=100"
