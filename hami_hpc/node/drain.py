# SPDX-License-Identifier: Apache-2.0
"""Drains the node with the reason why its prolog or epilog failed: without it `sinfo -R` shows "Prolog error" only.

Called only when a stage fails, because a command that asks slurmctld would slow down the start of each job. slurmctld
keeps the reason of a node that is drained already, so this reason stays when slurmd reports the failure (22.05:
node_mgr.c, validate_node_specs and _drain_node).
"""

from __future__ import annotations

import os
import stat
import time

from hami_hpc.core.contexts import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_S = 5.0
REASON_MAX = 400
ANCESTORS = 8
USUAL_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin")
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def drain_node(environment: Mapping[str, str], reason: str) -> None:
    """Drains this node with `reason`, if slurmd started this process and scontrol exists. Ignores every failure."""
    node = environment.get("SLURMD_NODENAME", "")
    if not node or not NAME_CHARACTERS.issuperset(node):
        return
    program = find_scontrol()
    if program is None:
        return
    scontrol_environment = {"PATH": "/usr/bin:/bin"}
    slurm_conf = environment.get("SLURM_CONF", "")
    if slurm_conf.startswith("/"):
        scontrol_environment["SLURM_CONF"] = slurm_conf
    command = (program, "update", f"nodename={node}", "state=drain", f"reason={plain(reason)}")
    with suppress(OSError):
        _run_bounded(command, scontrol_environment)


def plain(reason: str) -> str:
    """Returns the reason as one line of printable ASCII without double quotes, which scontrol would remove."""
    clean = "".join(ch if " " <= ch <= "~" and ch != '"' else "'" if ch == '"' else "?" for ch in reason)
    return clean if len(clean) <= REASON_MAX else clean[: REASON_MAX - 3] + "..."


def _run_bounded(command: tuple[str, ...], environment: dict[str, str]) -> None:
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    child = os.posix_spawn(command[0], command, environment, file_actions=quiet)
    end = time.monotonic() + TIMEOUT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return
        time.sleep(0.01)


def find_scontrol() -> str | None:
    """Returns the path of scontrol: beside the slurmd that started this process, else in one of USUAL_FOLDERS. Skips a
    file that a user can replace."""
    for folder in (*_folders_of_slurmd(), *USUAL_FOLDERS):
        path = f"{folder}/scontrol"
        with suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022:
                return path
    return None


def _folders_of_slurmd() -> Iterator[str]:
    """Yields the folders where slurmd's commands can be: that of the slurmd above this process, and `bin` beside it."""
    process = os.getppid()
    for _ in range(ANCESTORS):
        if process <= 1:
            return
        try:
            folder, _, name = os.readlink(f"/proc/{process}/exe").rpartition("/")
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                process = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if name.startswith("slurmd"):
            yield folder
            yield f"{folder.rpartition('/')[0]}/bin"
            return
