# SPDX-License-Identifier: Apache-2.0
"""The daemons of a private cluster: munged, MariaDB, slurmdbd, slurmctld, a slurmd for each of two nodes, the agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from hami_hpc.node import agent_file, boot

from .config import NODES, PYTHON, driver_environment
from .daemons import Daemon
from .layout import ClusterError, Layout

# In the order of their start; they are stopped in reverse.
SLURM = ("slurmdbd", "slurmctld", *NODES)
NAMES = ("munged", "mariadbd", *SLURM)
ALL = (*NAMES, "agent")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    if name in NODES:
        command = ("/usr/sbin/slurmd", "-D", "-N", NODES[name], "-L", f"{layout.log}/{name}.log")
        return Daemon(name, command, lambda: nodes_answer(layout, NODES[name]), environment)
    if name == "agent":
        return _agent(layout, environment)
    raise ClusterError(f"there is no daemon '{name}'; there are {', '.join(NAMES)}")


def _agent(layout: Layout, environment: dict[str, str]) -> Daemon:
    command = (
        str(PYTHON.with_name("hami-hpc")),
        "agent",
        f"--node={NODES['slurmd']}",
        f"--config={layout.site_config}",
    )
    started_ns = agent_file.now_boot_ns()

    def has_looked() -> bool:
        state = agent_file.read(str(layout.run_dir), boot.boot_id())
        return state is not None and state.boot_time_ns > started_ns

    return Daemon("agent", command, has_looked, environment | driver_environment(layout))


def nodes_answer(layout: Layout, *names: str) -> bool:
    """Returns whether these nodes (default: all) have registered. Until then slurmctld refuses jobs for their GPUs."""
    command = ("sinfo", "--noheader", "--Node", "--format=%T", f"--nodes={','.join(names or NODES.values())}")
    states = (answer(command, clean_environment(layout)) or "").split()
    # A trailing '*' means that slurmctld has no answer from slurmd. A drained node counts: an administrator or a prolog
    # has drained it.
    return bool(states) and not any(s.endswith("*") or s.startswith(("down", "unk")) for s in states)
