# SPDX-License-Identifier: Apache-2.0
"""The daemons of a private cluster: munged, MariaDB, slurmdbd, slurmctld, a slurmd for each node, an agent for each
node with GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hami_hpc.node import agent_file, boot

from .config import PYTHON, driver_environment
from .daemons import Daemon
from .layout import CHECKOUT, ClusterError, Layout

_KINDS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "agent")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def slurm_daemons(layout: Layout) -> tuple[str, ...]:
    """Returns the names of Slurm's daemons in the order of their start; they are stopped in reverse."""
    return ("slurmdbd", "slurmctld", *layout.slurmds)


def all_daemons(layout: Layout) -> tuple[str, ...]:
    """Returns the names of all daemons in the order of their start."""
    return ("munged", "mariadbd", *slurm_daemons(layout), *agents(layout))


def agents(layout: Layout) -> dict[str, str]:
    """Returns the nodes with GPUs by the names of their agents."""
    slurmds = {name: node for name, node in layout.slurmds.items() if node in layout.gpu_nodes}
    return {name.replace("slurmd", "agent"): node for name, node in slurmds.items()}


def started_daemons(root: Path) -> list[str]:
    """Returns the names of the daemons that were started here, also by a layout that is gone, as they started."""
    folder = root / "pids"
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return sorted(names, key=lambda name: (_KINDS.index(name.partition("-")[0]), name))


def clean_environment(layout: Layout) -> dict[str, str]:
    """Returns the environment of daemons and of the administrator's commands, without the caller's variables."""
    return {"PATH": _PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", "SLURM_CONF": str(layout.slurm_conf)}


def answer(command: tuple[str, ...], environment: Mapping[str, str], timeout_s: float = 10.0) -> str | None:
    """Returns a command's output when it ends with status 0 before the timeout, else None."""
    try:
        result = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # users write any bytes into a job's name
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return result.stdout if result.returncode == 0 else None


def succeeds(command: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Returns whether a command ends with status 0 within 10 s. Discards its output."""
    return answer(command, environment) is not None


def _munged(layout: Layout, environment: dict[str, str]) -> Daemon:
    key = layout.root / "munge.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
    socket = str(layout.munge_socket)
    return Daemon(
        "munged",
        (
            # --force: a checkout or /tmp may have parents that munged calls insecure; the key itself is 0600.
            *("/usr/sbin/munged", "--foreground", "--force", f"--socket={socket}", f"--key-file={key}"),
            *(f"--pid-file={layout.root}/munged.pid", f"--seed-file={layout.root}/munged.seed"),
            f"--log-file={layout.log}/munged.log",
        ),
        lambda: succeeds(("/bin/sh", "-c", f"munge -S {socket} -n | unmunge -S {socket}"), environment),
        environment,
    )


def _mariadbd(layout: Layout, environment: dict[str, str]) -> Daemon:
    socket = f"--socket={layout.database_socket}"
    return Daemon(
        "mariadbd",
        (
            # --no-defaults: ignores the machine's database settings in /etc/mysql.
            *("/usr/sbin/mariadbd", "--no-defaults", "--user=root", f"--datadir={layout.database}", socket),
            *("--skip-networking", f"--pid-file={layout.root}/mariadbd.pid", f"--log-error={layout.log}/mariadbd.log"),
            *("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-lock-wait-timeout=900"),
            *("--innodb-flush-log-at-trx-commit=2", "--performance-schema=OFF", "--skip-log-bin"),
            "--loose-innodb-snapshot-isolation=OFF",  # on from MariaDB 11.6 on, where slurmdbd ends at some conflicts
            *(f"--init-file={layout.root}/init.sql", _own_tmpdir(layout)),
        ),
        lambda: succeeds(("mariadb-admin", "--no-defaults", socket, "--user=root", "ping"), environment),
        environment,
    )


def _own_tmpdir(layout: Layout) -> str:
    """Makes the directory for temporary tables, and returns its option. mariadbd begins by deleting those of all others
    in its own."""
    path = layout.root / "database.tmp"
    path.mkdir(mode=0o700, exist_ok=True)
    return f"--tmpdir={path}"


def make_database(layout: Layout) -> None:
    """Creates the database's files once. Raises ClusterError with the installer's output."""
    # slurmdbd would create the database, but with libmariadb 11.8.9 all queries fail on a connection without one.
    (layout.root / "init.sql").write_text("CREATE DATABASE IF NOT EXISTS slurm_acct;\n")
    if (layout.database / "made").exists():
        return
    command = (
        # --force: go on where the host's name cannot be resolved; no client here uses the name.
        *("mariadb-install-db", "--no-defaults", "--force", "--user=root", f"--datadir={layout.database}"),
        *("--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-test-db"),
        _own_tmpdir(layout),
    )
    environment = clean_environment(layout)
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(
            f"mariadb-install-db failed in {layout.database}; remove that directory and try again\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    (layout.database / "made").touch()


def describe(layout: Layout, name: str) -> Daemon:
    """Returns the Daemon of this cluster with this name."""
    environment = clean_environment(layout)
    if name == "munged":
        return _munged(layout, environment)
    if name == "mariadbd":
        return _mariadbd(layout, environment)
    if name == "slurmdbd":
        # slurmdbd.conf has no key for a database's socket; the client library reads this variable.
        with_socket = environment | {"MYSQL_UNIX_PORT": str(layout.database_socket)}
        ready = ("sacctmgr", "--noheader", "--readonly", "list", "cluster")
        return Daemon(name, ("/usr/sbin/slurmdbd", "-D"), lambda: succeeds(ready, environment), with_socket)
    if name == "slurmctld":
        return Daemon(
            name, ("/usr/sbin/slurmctld", "-D"), lambda: succeeds(("scontrol", "ping"), environment), environment
        )
    if name in layout.slurmds:
        node = layout.slurmds[name]
        command = ("/usr/sbin/slurmd", "-D", "-N", node, "-L", f"{layout.log}/{name}.log")
        # slurmd's steps and its prolog read slurm.conf where slurmd does.
        own = _gpu_node_environment(layout.at(node)) if node in layout.gpu_nodes else environment
        return Daemon(name, command, lambda: nodes_answer(layout, node), own)
    if name in agents(layout):
        return _agent(layout.at(agents(layout)[name]), name)
    raise ClusterError(f"there is no daemon '{name}'; there are {', '.join(all_daemons(layout))}")


def _gpu_node_environment(layout: Layout) -> dict[str, str]:
    """Returns the environment of a GPU node's slurmd, with what task/hami_hpc needs where nothing is installed."""
    here = {"HAMI_HPC_STAGES": str(CHECKOUT / "prolog"), "HAMI_HPC_CONFIG": str(layout.site_config)}
    return clean_environment(layout) | here


def _agent(layout: Layout, name: str) -> Daemon:
    command = (
        str(PYTHON.with_name("hami-hpc")),
        "agent",
        f"--node={layout.node}",
        f"--config={layout.site_config}",
    )
    started_ns = agent_file.now_boot_ns()

    def has_looked() -> bool:
        state = agent_file.read(str(layout.run_dir), boot.boot_id())
        return state is not None and state.boot_time_ns > started_ns

    return Daemon(name, command, has_looked, clean_environment(layout) | driver_environment(layout))


def nodes_answer(layout: Layout, *names: str) -> bool:
    """Returns whether these nodes (default: all) have registered. Until then slurmctld refuses jobs for their GPUs."""
    command = ("sinfo", "--noheader", "--Node", "--format=%T", f"--nodes={','.join(names or layout.slurmds.values())}")
    states = (answer(command, clean_environment(layout)) or "").split()
    # A trailing '*' means that slurmctld has no answer from slurmd. A drained node counts: an administrator or a prolog
    # has drained it.
    return bool(states) and not any(s.endswith("*") or s.startswith(("down", "unk")) for s in states)
