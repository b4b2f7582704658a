# SPDX-License-Identifier: Apache-2.0
"""python -m harness up|down|status|story|remove [--dir DIRECTORY] [--nodes NUMBER]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import cluster, config, nodes_story, story
from .daemons import running_pid
from .layout import CHECKOUT, ClusterError, Machine, remembered
from .services import all_daemons


def _status(root: Path) -> int:
    layout = remembered(root)
    if layout is None:
        print(f"there is no cluster in {root}")
        return 1
    pids = {name: running_pid(layout, name) for name in all_daemons(layout)}
    for name, pid in pids.items():
        print(f"{name:10} {f'pid {pid}' if pid else 'not running'}")
    return 0 if all(pids.values()) else 1


NODES_MAX = 16


def _number_of_nodes(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= NODES_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a number of nodes, 1 to {NODES_MAX}")


def _machines(nodes: int | None) -> list[Machine] | None:
    """None: as many as the cluster has, one if it is new."""
    if nodes is None:
        return None
    return [Machine(config.GPU_MODEL, config.GPU_COUNT)] * nodes if nodes > 1 else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster", description="A private Slurm with simulated GPUs.")
    parser.add_argument("command", choices=("up", "down", "status", "story", "remove"))
    parser.add_argument("--dir", type=Path, default=CHECKOUT / ".cluster", help="the cluster directory")
    parser.add_argument("--nodes", type=_number_of_nodes, help="nodes with GPUs of a new cluster")
    arguments = parser.parse_args()
    machines = _machines(arguments.nodes)
    root = arguments.dir.absolute()
    try:
        if arguments.command == "up":
            cluster.up(root, machines)
        elif arguments.command == "down":
            stopped = cluster.down(root)
            print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
        elif arguments.command == "remove":
            cluster.remove(root)
        elif arguments.command == "story":
            layout = cluster.up(root, machines)
            (nodes_story if layout.machines else story).tell(layout)
        else:
            return _status(root)
    except ClusterError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
