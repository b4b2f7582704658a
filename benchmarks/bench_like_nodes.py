# SPDX-License-Identifier: Apache-2.0
"""What a NodeName line costs Slurm's commands at their start: like nodes in one line, and in a line for each.

    .venv/bin/python benchmarks/bench_like_nodes.py [--nodes 500] [--rounds 41] [--dir DIRECTORY]

As root. A private Slurm knows `nodes` nodes of eight H200s, rendered from inventories, that are down. Commands run in
turn with the files as render writes them, and with the same blocks taken apart; and without these nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("", "tests/cluster", "benchmarks")]

from client_costs import children_s  # noqa: E402  after the paths to the checkout
from harness import cluster, config, jobs  # noqa: E402
from harness.files import write  # noqa: E402
from harness.layout import Layout  # noqa: E402

from hami_hpc.core import node_inventory  # noqa: E402
from hami_hpc.core.inventory import Gpu  # noqa: E402
from hami_hpc.render.marks import blocks, is_ours  # noqa: E402

FRAGMENT, GRES = "slurm-hami-hpc.conf", "hami-hpc-gres.conf"
H200_MIB, CALLS = 143156, 5
COMMANDS = (("scontrol", "show", "hostnames", "n1"), ("scontrol", "ping"), ("sinfo",))


def render_all(layout: Layout, names: list[str]) -> None:
    folder = layout.root / "inventories"
    folder.mkdir(exist_ok=True)
    for name in names:
        gpus = [Gpu(number, number, f"GPU-{name}-{number}", "NVIDIA H200", "h200", H200_MIB) for number in range(8)]
        document = node_inventory.document(name, gpus, {gpu.uuid: 559 for gpu in gpus}, {}, (), frozenset())
        (folder / f"{name}.json").write_text(json.dumps(document))
    command = (
        *(str(config.PYTHON.with_name("hami-hpc")), "render", "--output", str(layout.etc), "--force"),
        *("--inventory", str(folder), "--node-parameters", "CPUs=128 RealMemory=1000000 State=DOWN"),
        *("--device", str(config.device_file(layout, 0)).removesuffix("0")),
        *("--plugin-dir", f"{config._slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(layout.etc / "prolog"), "--epilog", str(layout.etc / "epilog")),
    )
    done = jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)})
    assert done.status == 0, done.text


def with_addresses(text: str) -> str:
    """Returns the fragment with an address for the nodes that no name server knows: slurmctld asks for each."""
    return re.sub(r"^(NodeName=far\S+)", r"\1 NodeAddr=127.0.0.1 Port=9", text, flags=re.MULTILINE)


def variants(layout: Layout) -> dict[str, Path]:
    """Returns slurm.conf by its variant: each in a copy of the cluster's configuration."""
    changes = {
        "without these nodes": lambda text: "".join(
            [head(text), *(t for n, t in blocks(text).items() if "far" not in n)]
        ),
        "one line": lambda text: text,
        "a line for each": lambda text: "".join([head(text), *blocks(text).values()]),
    }
    found = {}
    for number, (name, change) in enumerate(changes.items()):
        etc = config.copy_for_clients(layout, f"like{number}")
        fragment = (etc / FRAGMENT).read_text()
        (etc / FRAGMENT).write_text(with_addresses(change(fragment)))
        found[name] = etc / "slurm.conf"
        size = (etc / FRAGMENT).stat().st_size
        lines = (etc / FRAGMENT).read_text().count("\nNodeName=")
        print(
            f"{name}: {FRAGMENT} has {lines} NodeName lines, {size} bytes; {GRES} {(etc / GRES).stat().st_size} bytes"
        )
    return found


def head(text: str) -> str:
    return text.partition("\n# --- node")[0].rstrip() + "\n"


def cpu_ms(layout: Layout, conf: Path, command: tuple[str, ...]) -> float:
    environment = jobs.user_environment(layout, "root") | {"SLURM_CONF": str(conf)}
    before = children_s()
    for _ in range(CALLS):
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return 1000 * (children_s() - before) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--dir", type=Path, default=ROOT / ".cluster-like-nodes")
    options = parser.parse_args()
    cluster.remove(options.dir)
    try:
        layout = cluster.up(options.dir)
        render_all(layout, [f"far{number:03}" for number in range(1, options.nodes + 1)])
        text = (layout.etc / FRAGMENT).read_text()
        assert is_ours(text)
        confs = variants(layout)
        write(layout.etc / FRAGMENT, with_addresses(text))
        cluster.restart(layout, "slurmctld")
        took: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds):
            for command in COMMANDS:
                for name, conf in confs.items():
                    took.setdefault((" ".join(command), name), []).append(cpu_ms(layout, conf, command))
        print(f"load {os.getloadavg()[0]:.1f}; CPU ms of a command, medians of {options.rounds} rounds of {CALLS}")
        print("| command |", " | ".join(confs), "|\n|---|" + "---|" * len(confs))
        for command in COMMANDS:
            row = [f"{statistics.median(took[' '.join(command), name]):.2f}" for name in confs]
            print(f"| `{' '.join(command)}` |", " | ".join(row), "|")
    finally:
        cluster.remove(options.dir)


if __name__ == "__main__":
    main()
