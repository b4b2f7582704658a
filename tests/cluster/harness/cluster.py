# SPDX-License-Identifier: Apache-2.0
"""Starts, repairs, stops and removes a private cluster."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import accounts, config, daemons, services
from .layout import ClusterError, Layout, Machine, is_usable, open_or_create, remembered, with_new_ports


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Admits one caller at a time: two calls of make demo would start every daemon twice."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(root: Path, machines: Sequence[Machine] | None = None) -> Layout:
    """Starts the daemons that do not run, restarts those that do not answer, and installs files that were rebuilt.

    machines: the nodes with GPUs of a new cluster, None for one node with config.GPU_COUNT of them.
    Raises ClusterError with the log of the daemon that failed.
    """
    with _locked(root):
        _stop_stray(root)
        layout = _usable_ports(open_or_create(root, machines))
        changed = config.install(layout)
        _make_homes(layout)
        services.make_database(layout)
        for name in services.all_daemons(layout):
            is_agent = name in services.agents(layout)
            stale = _is_outdated(layout, name) if is_agent else changed and name in services.slurm_daemons(layout)
            _start_or_repair(layout, name, restart=stale)
            if name == "slurmdbd":
                accounts.make_accounts(layout)
        _return_nodes(layout)
        _wait_for_nodes(layout)
        config.write_env(layout)
        return layout


def _is_outdated(layout: Layout, agent: str) -> bool:
    """Returns whether the agent was started before its settings were written, or its GPUs made. No other daemon keeps
    them."""
    started, of_node = layout.pids / agent, layout.at(services.agents(layout)[agent])
    made = max(path.stat().st_mtime_ns for path in (of_node.site_config, of_node.machine / "machine.conf"))
    return started.exists() and started.stat().st_mtime_ns < made


def _stop_stray(root: Path) -> None:
    """Ends daemons whose public directory or cluster.json is gone, because they cannot be repaired."""
    layout = remembered(root)
    if layout is None or not is_usable(layout):
        _stop_all(_without_public(root))


def _stop_all(layout: Layout) -> list[str]:
    """Stops every daemon that was started in this directory. Returns the names of those that were running."""
    return [name for name in reversed(services.started_daemons(layout.root)) if daemons.stop(layout, name)]


def _without_public(root: Path) -> Layout:
    """Returns a layout with which daemons can be found, without a public directory."""
    return Layout(root=root, public=Path("/nonexistent"), ports={})


def down(root: Path) -> list[str]:
    """Stops the cluster, its jobs first. Returns the names of the daemons that were running."""
    root = root.absolute()
    if not root.exists():
        return []
    with _locked(root):
        layout = remembered(root) or _without_public(root)
        running = {name for name in services.all_daemons(layout) if daemons.running_pid(layout, name)}
        if is_usable(layout) and {"slurmctld", *layout.slurmds} <= running:
            _end_jobs(layout)
        return _stop_all(layout)


def remove(root: Path) -> None:
    """Stops the cluster and deletes everything that it wrote."""
    down(root)
    layout = remembered(root.absolute())
    if layout is not None and is_usable(layout):
        unmount(layout)
        shutil.rmtree(layout.public)
    shutil.rmtree(root, ignore_errors=True)


def unmount(layout: Layout) -> None:
    """Unmounts the mounts of prologs in the run directories, the innermost first."""
    folders = tuple(f"{layout.at(node).run_dir}/" for node in layout.gpu_nodes)
    mount_points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [point for point in reversed(mount_points) if point.startswith(folders)]
    if below:
        subprocess.run(("umount", "--lazy", *below), check=True)


def _end_jobs(layout: Layout, timeout_s: float = 30.0) -> None:
    """Cancels all jobs and waits until their epilogs have run, so that no process or run directory is left."""
    environment = services.clean_environment(layout)
    for user in ("root", *accounts.USERS):
        services.succeeds(("scancel", f"--user={user}"), environment)
    have_ended = daemons.wait_until(lambda: services.answer(("squeue", "-h"), environment) == "", timeout_s)
    if not have_ended:
        print(f"some jobs did not end in {timeout_s:.0f} s; stopping the daemons nevertheless")


def _usable_ports(layout: Layout) -> Layout:
    """Returns the layout, with new ports if another program listens on one of its ports."""
    for name, port in layout.ports.items():
        if daemons.running_pid(layout, name) is None and _is_taken(port):
            for daemon in reversed(services.slurm_daemons(layout)):
                daemons.stop(layout, daemon)
            return with_new_ports(layout)
    return layout


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does, so TIME_WAIT does not matter
        try:
            listener.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def _start_or_repair(layout: Layout, name: str, restart: bool) -> None:
    daemon = services.describe(layout, name)
    if daemons.running_pid(layout, name) is not None:
        if not restart and daemons.wait_until(daemon.answers, 10.0):
            return
        daemons.stop(layout, name)
    daemons.start(layout, daemon)


def restart(layout: Layout, name: str, how: signal.Signals = signal.SIGTERM) -> None:
    """Stops one daemon and starts it again; then waits until slurmctld knows its nodes."""
    daemons.stop(layout, name, how)
    daemons.start(layout, services.describe(layout, name))
    _wait_for_nodes(layout)


def _wait_for_nodes(layout: Layout, timeout_s: float = 60.0) -> None:
    if not daemons.wait_until(lambda: services.nodes_answer(layout), timeout_s):
        logs = "\n".join(daemons.log_tail(layout.log / f"{name}.log") for name in ("slurmctld", *layout.slurmds))
        raise ClusterError(f"slurmctld has not heard from all nodes in {timeout_s:.0f} s\n{logs}")


def _return_nodes(layout: Layout) -> None:
    """Resumes drained or down nodes, because a demo has no administrator who does."""
    environment = services.clean_environment(layout)
    for node in layout.slurmds.values():
        state = services.answer(("sinfo", "-h", "-N", "-n", node, "-o", "%T"), environment) or ""
        if any(word in state for word in ("drain", "down", "fail")):
            services.succeeds(("scontrol", "update", f"nodename={node}", "state=resume"), environment)


def _make_homes(layout: Layout) -> None:
    for user in ("root", *accounts.USERS):
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise ClusterError(f"this machine has no user '{user}', which Debian's base-passwd package makes") from None
        home = layout.home / user
        home.mkdir(mode=0o755, exist_ok=True)
        os.chown(home, entry.pw_uid, entry.pw_gid)
