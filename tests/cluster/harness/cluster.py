# SPDX-License-Identifier: Apache-2.0
"""Bringing a private cluster up, repairing it, and taking it down."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from . import accounts, config, daemons, services
from .layout import ClusterError, Layout, open_or_create, remembered, with_new_ports


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One caller at a time: two make demo would start every daemon twice."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(root: Path) -> Layout:
    """Starts what does not run, restarts what does not answer, and applies what was rebuilt since.

    Raises ClusterError with the log of whatever failed.
    """
    with _locked(root):
        layout = _usable_ports(open_or_create(root))
        changed = config.install(layout)
        _make_homes(layout)
        services.make_database(layout)
        for name in services.NAMES:
            stale = changed and name in services.SLURM
            _start_or_repair(layout, name, restart=stale)
            if name == "slurmdbd":
                accounts.make_accounts(layout)
        _return_node(layout)
        config.write_env(layout)
        return layout


def down(root: Path) -> list[str]:
    """Stops the cluster, its jobs first. Returns the names of the daemons that were running."""
    layout = remembered(root.absolute())
    if layout is None:
        return []
    with _locked(layout.root):
        if daemons.running_pid(layout, "slurmctld") and daemons.running_pid(layout, "slurmd"):
            _end_jobs(layout)
        return [name for name in reversed(services.NAMES) if daemons.stop(layout, name)]


def remove(root: Path) -> None:
    """Stops the cluster and deletes all it wrote."""
    down(root)
    layout = remembered(root.absolute())
    if layout is not None:
        shutil.rmtree(layout.public)
    shutil.rmtree(root, ignore_errors=True)


def _end_jobs(layout: Layout, timeout_s: float = 30.0) -> None:
    """Cancels all jobs and waits until their epilogs have run, so that no process or region is left behind."""
    environment = services.clean_environment(layout)
    for user in ("root", *accounts.USERS):
        services.succeeds(("scancel", f"--user={user}"), environment)
    gone = daemons.wait_until(lambda: services.answer(("squeue", "-h"), environment) == "", timeout_s)
    if not gone:
        print(f"some jobs did not end in {timeout_s:.0f} s; stopping the daemons all the same")


def _usable_ports(layout: Layout) -> Layout:
    """The layout, on new ports when something that is not ours listens on one of them."""
    for name, port in layout.ports.items():
        if daemons.running_pid(layout, name) is None and _is_taken(port):
            for daemon in reversed(services.SLURM):
                daemons.stop(layout, daemon)
            return with_new_ports(layout)
    return layout


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does: TIME_WAIT is no obstacle
        try:
            one.bind(("0.0.0.0", port))
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


def _return_node(layout: Layout) -> None:
    """Puts a drained or down node back to work: in a demo nobody else will."""
    environment = services.clean_environment(layout)
    state = services.answer(("sinfo", "-h", "-N", "-o", "%T"), environment) or ""
    if any(word in state for word in ("drain", "down", "fail")):
        services.succeeds(("scontrol", "update", f"nodename={config.NODE}", "state=resume"), environment)


def _make_homes(layout: Layout) -> None:
    for user in ("root", *accounts.USERS):
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise ClusterError(f"this machine has no user '{user}', which Debian's base-passwd package makes") from None
        home = layout.home / user
        home.mkdir(mode=0o755, exist_ok=True)
        os.chown(home, entry.pw_uid, entry.pw_gid)
