# SPDX-License-Identifier: Apache-2.0
"""The shared lines of like nodes, read by Slurm's own programs: the same nodes, each with its gres, as from a line for
each."""

from __future__ import annotations

import json
import re

from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import Layout

from hami_hpc.core import node_inventory
from hami_hpc.core.hostlist import expand, in_order
from hami_hpc.core.inventory import Gpu
from hami_hpc.render.marks import blocks

H200_MIB = 143156
# Name -> GPUs. Leading zeros, mixed widths, digits in the middle, none at the end, a domain.
NODES = {
    **{f"far{number:03}": 2 for number in (*range(1, 41), 98, 99, 100, 101)},
    **dict.fromkeys(("far9", "far10", "far09", "rack1-far02", "rack1-far03", "rack2-far1", "n1.example.org"), 2),
    **dict.fromkeys(("n2.example.org", "head", "a.b2", "a.b3", "x_1", "x_2"), 2),
    **{f"wide{number}": 4 for number in range(8, 12)},
}


def render_far(layout: Layout) -> None:
    """Renders NODES beside the nodes that are there, in a state in which slurmctld asks for no addresses of theirs."""
    folder = layout.root / "inventories"
    folder.mkdir(exist_ok=True)
    for name, count in NODES.items():
        gpus = [Gpu(number, number, f"GPU-{name}-{number}", "NVIDIA H200", "h200", H200_MIB) for number in range(count)]
        shards = {gpu.uuid: 559 for gpu in gpus}
        document = node_inventory.document(name, gpus, shards, {}, (), frozenset())
        (folder / f"{name}.json").write_text(json.dumps(document))
    command = (
        *(str(config.PYTHON.with_name("hami-hpc")), "render", "--output", str(layout.etc)),
        *("--inventory", str(folder), "--node-parameters", "CPUs=8 RealMemory=1024 State=FUTURE"),
        *("--device", str(config.device_file(layout, 0)).removesuffix("0"), "--force"),
        *("--plugin-dir", f"{config._slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(layout.etc / "prolog"), "--epilog", str(layout.etc / "epilog")),
    )
    done = jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)})
    assert done.status == 0, done.text


def gres_of(layout: Layout) -> dict[str, str]:
    """Returns node -> its Gres= as slurmctld has it, without sockets, in whole numbers."""
    shown = jobs.admin(layout, "scontrol", "--future", "--oneliner", "show", "nodes")
    found = {}
    for line in shown.splitlines():
        facts = dict(re.findall(r"(\w+)=(\S+)", line))
        found[facts["NodeName"]] = re.sub(r"\(S:[^)]*\)", "", facts["Gres"])
    return found


def test_slurm_reads_from_shared_lines_the_nodes_that_were_rendered(restored: Layout) -> None:
    layout = restored
    mine = gres_of(layout)
    render_far(layout)
    fragment = (layout.etc / "slurm-hami-hpc.conf").read_text()
    expressions = re.findall(r"^NodeName=(\S+)", fragment, re.MULTILINE)
    shared = [text for text in expressions if text != config.NODE]
    assert len(shared) == 2, fragment
    for text in shared:
        assert jobs.admin(layout, "scontrol", "show", "hostnames", text).split() == expand(text)
    assert in_order(name for text in shared for name in expand(text)) == in_order(NODES)
    private_cluster.restart(layout, "slurmctld")
    together = gres_of(layout)
    assert together.keys() == mine.keys() | NODES.keys()
    assert {name: together[name] for name in mine} == mine
    for name, count in NODES.items():
        assert together[name].startswith(f"gpu:h200:{count},shard"), (name, together[name])
        assert f":{count * 559}," in together[name]

    head = fragment.partition("\n# --- node")[0].rstrip()
    apart = blocks(fragment)
    config.write(layout.etc / "slurm-hami-hpc.conf", head + "\n" + "".join(apart.values()))
    private_cluster.restart(layout, "slurmctld")
    assert gres_of(layout) == together, "a line for each node says the same"


def test_slurmd_of_a_node_in_a_shared_line_finds_its_gres(restored: Layout) -> None:
    layout = restored
    render_far(layout)
    text = (layout.etc / "hami-hpc-gres.conf").read_text()
    assert len(set(re.findall(r"^NodeName=(\S+)", text, re.MULTILINE)) - {config.NODE}) <= 2
    for name in ("far009", "far100", "far9", "far09", "rack1-far03", "n2.example.org", "head"):
        shown = jobs.run_as(layout, "root", ("/usr/sbin/slurmd", "-G", "-N", name, "-f", str(layout.slurm_conf))).text
        shards = re.findall(r"Name=shard .*?Count=(\d+)", shown)
        assert sum(map(int, shards)) == 2 * 559, shown
        assert "Name=vgpu Type=std Count=1118" in shown, shown
