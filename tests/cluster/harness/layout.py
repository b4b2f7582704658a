# SPDX-License-Identifier: Apache-2.0
"""The paths of a private cluster, and the file that keeps them between two calls.

It has two directories, because of two limits:
* the cluster directory (in the checkout) has the files that only root reads: key, database, state, logs. A checkout may
  be below a directory that other users cannot enter, such as /root;
* the public directory (/tmp/hami-XXXXXX) has the files that users' jobs need, and all Unix sockets, whose paths may not
  be longer than 107 bytes. mkdtemp creates it; root owns it, others cannot write it; cluster.json has its name.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
_PORT_NAMES = ("slurmctld", "slurmd", "slurmd-cpu", "slurmdbd")


class ClusterError(Exception):
    """An operation of the private cluster failed; the message says which one and where to look."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All paths of one private cluster, and its TCP ports (Slurm has no Unix-socket mode for its daemons)."""

    root: Path
    public: Path
    ports: dict[str, int]

    @property
    def etc(self) -> Path:
        return self.public / "etc"

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
        return self.public / "gpus"

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
        return self.public / "run"

    @property
    def munge_socket(self) -> Path:
        return self.public / "munge" / "socket"

    @property
    def database_socket(self) -> Path:
        return self.public / "db" / "socket"

    @property
    def state_dir(self) -> Path:
        """hami_hpc's usage spool."""
        return self.root / "state"

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


def _is_private_to_root(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _new_public() -> Path:
    path = Path(tempfile.mkdtemp(prefix="hami-", dir="/tmp"))
    path.chmod(0o755)
    return path


def _free_ports() -> dict[str, int]:
    """Returns a free TCP port for each daemon. Keeps all open until the last is found, so that no port occurs twice."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in _PORT_NAMES]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return {name: bound.getsockname()[1] for name, bound in zip(_PORT_NAMES, sockets, strict=True)}
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
        return Layout(root=root, public=Path(data["public"]), ports={n: int(data["ports"][n]) for n in _PORT_NAMES})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def is_usable(layout: Layout) -> bool:
    """Returns whether the public directory is still root's own: /tmp is emptied at boot, and others can write there."""
    return _is_private_to_root(layout.public)


def save(layout: Layout) -> None:
    data = {key: value for key, value in asdict(layout).items() if key != "root"}
    temporary = layout.root / "cluster.json.new"
    temporary.write_text(json.dumps(data, default=str, indent=1) + "\n")
    temporary.rename(layout.root / "cluster.json")


def open_or_create(root: Path) -> Layout:
    """Returns the cluster's layout and creates every directory. Raises ClusterError when the path cannot be used."""
    root = root.absolute()
    _check_path(root)
    if os.geteuid() != 0:
        raise ClusterError("the private cluster needs root, since slurmd starts jobs of several users; try sudo")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    layout = remembered(root)
    if layout is None or not is_usable(layout):
        layout = Layout(root=root, public=_new_public(), ports=_free_ports())
    save(layout)
    for path in (layout.database, layout.state_dir, layout.log, layout.pids, root / "slurmctld"):
        path.mkdir(mode=0o700, exist_ok=True)
    readable = (layout.etc, layout.plugins, layout.interposer.parent, layout.driver, layout.bin, layout.home)
    for path in (*readable, layout.run_dir, layout.munge_socket.parent, layout.public / "slurmd"):
        path.mkdir(mode=0o755, exist_ok=True)
    layout.database_socket.parent.mkdir(mode=0o700, exist_ok=True)
    link = root / "public"
    if not link.is_symlink() or link.readlink() != layout.public:
        link.unlink(missing_ok=True)
        link.symlink_to(layout.public)
    return layout


def with_new_ports(layout: Layout) -> Layout:
    """Returns the same cluster with other ports, for when another program uses one of its ports."""
    changed = Layout(root=layout.root, public=layout.public, ports=_free_ports())
    save(changed)
    return changed
