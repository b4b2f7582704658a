# SPDX-License-Identifier: Apache-2.0
"""The paths of a private cluster, and the file that keeps them between two calls.

It has two directories, because of two limits:
* the cluster directory (in the checkout) has the files that only root reads: key, database, state, logs. A checkout may
  be below a directory that other users cannot enter, such as /root;
* the public directory (/tmp/hami-XXXXXX) has the files that users' jobs need, and all Unix sockets, whose paths may not
  be longer than 107 bytes. mkdtemp creates it; root owns it, others cannot write it; cluster.json has its name.

Of several nodes with GPUs each has its own GPUs, settings, run and state directory: layout.at("node2") has that node's
paths. The first node's are those of a cluster that has one.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[3]
PUBLIC_PARENT = "/tmp"
FIRST_NODE = "node1"
CPU_NODE = "cpu1"  # the node without GPUs


class ClusterError(Exception):
    """An operation of the private cluster failed; the message says which one and where to look."""


class Machine(NamedTuple):
    """The simulated GPUs of one node."""

    model: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All paths of one private cluster, and its TCP ports (Slurm has no Unix-socket mode for its daemons).

    machines: the nodes with GPUs, where there are several. node: the one whose paths these are.
    """

    root: Path
    public: Path
    ports: dict[str, int]
    machines: tuple[Machine, ...] = ()
    node: str = FIRST_NODE

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        return _gpu_nodes(self.machines)

    @property
    def slurmds(self) -> dict[str, str]:
        """The nodes by the names of their slurmds."""
        return _slurmds(self.machines)

    def at(self, node: str) -> Layout:
        """Returns the same cluster with the paths of this node."""
        if node not in self.gpu_nodes:
            raise ClusterError(f"there is no node '{node}' with GPUs; there are {', '.join(self.gpu_nodes)}")
        return replace(self, node=node)

    @property
    def _own(self) -> Path:
        return self.public if self.node == FIRST_NODE else self.public / self.node

    @property
    def etc(self) -> Path:
        return self._own / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def site_config(self) -> Path:
        return self.etc / "hami-hpc.toml"

    @property
    def plugins(self) -> Path:
        return self.public / "plugins"

    @property
    def interposer(self) -> Path:
        return self.public / "lib" / "libhami-hpc.so"

    @property
    def driver(self) -> Path:
        """The directory of the simulated libcuda.so.1 and libnvidia-ml.so.1."""
        return self.public / "driver"

    @property
    def machine(self) -> Path:
        """The simulated GPUs (HAMI_SIM)."""
        return self._own / "gpus"

    @property
    def bin(self) -> Path:
        return self.public / "bin"

    @property
    def home(self) -> Path:
        """The parent of each user's writable directory, for job scripts and output."""
        return self.public / "home"

    @property
    def run_dir(self) -> Path:
        """hami_hpc's ledger and the directories of its jobs."""
        return self._own / "run"

    @property
    def munge_socket(self) -> Path:
        return self.public / "munge" / "socket"

    @property
    def database_socket(self) -> Path:
        return self.public / "db" / "socket"

    @property
    def state_dir(self) -> Path:
        """hami_hpc's usage spool."""
        return self.root / ("state" if self.node == FIRST_NODE else f"state-{self.node}")

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    @property
    def env_file(self) -> Path:
        return self.root / "env"


def _gpu_nodes(machines: Sequence[Machine]) -> tuple[str, ...]:
    return (FIRST_NODE, *(f"node{number}" for number in range(2, len(machines) + 1)))


def _slurmds(machines: Sequence[Machine]) -> dict[str, str]:
    first, *others = _gpu_nodes(machines)
    more = {f"slurmd-{node.removeprefix('node')}": node for node in others}
    return {"slurmd": first, **more, "slurmd-cpu": CPU_NODE}


def _port_names(machines: Sequence[Machine]) -> tuple[str, ...]:
    return ("slurmctld", *_slurmds(machines), "slurmdbd")


def _is_private_to_root(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _new_public() -> Path:
    path = Path(tempfile.mkdtemp(prefix="hami-", dir=PUBLIC_PARENT))
    path.chmod(0o755)
    return path


def _free_ports(machines: Sequence[Machine]) -> dict[str, int]:
    """Returns a free TCP port for each daemon. Keeps all open until the last is found, so that no port occurs twice."""
    names = _port_names(machines)
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in names]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return {name: bound.getsockname()[1] for name, bound in zip(names, sockets, strict=True)}
    finally:
        for listener in sockets:
            listener.close()


def _check_path(root: Path) -> None:
    """Raises ClusterError for paths with blanks or quotes, because Slurm's configuration has no quoting."""
    for path in (CHECKOUT, root):
        if any(c.isspace() or c in "#,\"'\\" for c in str(path)):
            raise ClusterError(
                f"the path '{path}' holds a blank, a quote or one of '#,\\', which Slurm's configuration files cannot "
                "express; move the checkout to a path without them and run make demo again"
            )


def remembered(root: Path) -> Layout | None:
    """Returns the layout in cluster.json, or None. Its public directory may be gone: see is_usable."""
    try:
        data = json.loads((root / "cluster.json").read_text())
        machines = tuple(Machine(str(model), int(gpus)) for model, gpus in data.get("machines", ()))
        ports = {name: int(data["ports"][name]) for name in _port_names(machines)}
        return Layout(root=root, public=Path(data["public"]), ports=ports, machines=machines)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def is_usable(layout: Layout) -> bool:
    """Returns whether the public directory is still root's own: /tmp is emptied at boot, and others can write there."""
    return _is_private_to_root(layout.public)


def save(layout: Layout) -> None:
    data = {key: value for key, value in asdict(layout).items() if key not in ("root", "node")}
    temporary = layout.root / "cluster.json.new"
    temporary.write_text(json.dumps(data, default=str, indent=1) + "\n")
    temporary.rename(layout.root / "cluster.json")


def open_or_create(root: Path, machines: Sequence[Machine] | None = None) -> Layout:
    """Returns the cluster's layout and creates every directory. machines: None for what the cluster has; a new one has
    one node. Raises ClusterError when the path cannot be used, or holds a cluster with other nodes."""
    root = root.absolute()
    _check_path(root)
    if os.geteuid() != 0:
        raise ClusterError("the private cluster needs root, since slurmd starts jobs of several users; try sudo")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    layout = remembered(root)
    if layout is None or not is_usable(layout):
        new = tuple(machines or ())
        layout = Layout(root=root, public=_new_public(), ports=_free_ports(new), machines=new)
    if machines is not None and layout.machines != tuple(machines):
        raise ClusterError(
            f"{root} has a cluster with {len(layout.gpu_nodes)} node(s) with GPUs, of which {len(machines) or 1} were "
            "asked for; use another directory, or remove this cluster: python -m harness remove --dir " + str(root)
        )
    save(layout)
    nodes = [layout.at(name) for name in layout.gpu_nodes]
    for path in (layout.database, layout.log, layout.pids, root / "slurmctld", *(node.state_dir for node in nodes)):
        path.mkdir(mode=0o700, exist_ok=True)
    shared = (layout.plugins, layout.interposer.parent, layout.driver, layout.bin, layout.home)
    own = [path for node in nodes for path in (node.etc.parent, node.etc, node.run_dir)]
    for path in (*own, *shared, layout.munge_socket.parent, layout.public / "slurmd"):
        path.mkdir(mode=0o755, exist_ok=True)
    layout.database_socket.parent.mkdir(mode=0o700, exist_ok=True)
    link = root / "public"
    if not link.is_symlink() or link.readlink() != layout.public:
        link.unlink(missing_ok=True)
        link.symlink_to(layout.public)
    return layout


def with_new_ports(layout: Layout) -> Layout:
    """Returns the same cluster with other ports, for when another program uses one of its ports."""
    changed = replace(layout, ports=_free_ports(layout.machines))
    save(changed)
    return changed
