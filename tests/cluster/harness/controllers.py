# SPDX-License-Identifier: Apache-2.0
"""The cluster with two controllers: the second slurmctld waits until the first does not answer.

Slurm tells controllers apart by their host names, and both listen at SlurmctldPort. So each has a host name and an
address of its own here, in namespaces of its own, and a directory for its pid file: a slurmctld ends the one whose
number it finds there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager

from . import cluster, config, daemons, jobs, services
from .layout import Layout

FIRST, SECOND = "slurmctld", "slurmctld-2"
HOSTS = {FIRST: ("ctl1", "127.0.0.1"), SECOND: ("ctl2", "127.0.0.2")}
TIMEOUT_S = 6  # SlurmctldTimeout: how long the first may be silent
OWN = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o mode=700 none "$3"
shift 3
exec "$@"
"""


@contextmanager
def two_controllers(layout: Layout, timeout_s: int = TIMEOUT_S) -> Iterator[Layout]:
    """Runs the cluster with two controllers, and afterwards as it was."""
    pid_dir, hosts = layout.root / "controller", layout.root / "hosts"
    pid_dir.mkdir(exist_ok=True)
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in HOSTS.values()))
    text = layout.slurm_conf.read_text()
    lines = "".join(f"SlurmctldHost={name}({address})\n" for name, address in HOSTS.values())
    text, changes = re.subn(r"^SlurmctldHost=.*\n", lines, text, flags=re.MULTILINE)
    assert changes == 1
    text = re.sub(r"^SlurmctldPidFile=.*$", f"SlurmctldPidFile={pid_dir}/pid", text, flags=re.MULTILINE)
    text += f"SlurmctldTimeout={timeout_s}\nCommunicationParameters=NoCtldInAddrAny\n"
    others = ("slurmctld", *layout.slurmds)
    for name in reversed(others):
        daemons.stop(layout, name)
    try:
        config.write(layout.slurm_conf, text)
        start(layout, FIRST)
        start(layout, SECOND)
        for name in layout.slurmds:
            daemons.start(layout, services.describe(layout, name))
        yield layout
    finally:
        daemons.stop(layout, SECOND)
        daemons.stop(layout, FIRST)
        cluster.up(layout.root)


def start(layout: Layout, name: str) -> None:
    """Starts one of both; waits until it answers."""
    hosts, pid_dir = str(layout.root / "hosts"), str(layout.root / "controller")
    own = ("unshare", "--mount", "--uts", "sh", "-c", OWN, "sh", HOSTS[name][0], hosts, pid_dir)
    command = (*own, "/usr/sbin/slurmctld", "-D", "-L", f"{layout.log}/{name}.log")
    usual = services.describe(layout, "slurmctld")
    daemon = dataclasses.replace(usual, name=name, command=command, answers=lambda: is_up(layout, name))
    daemons.start(layout, daemon)


def wait_for_takeover(layout: Layout) -> None:
    """Waits until the second one answers requests, whatever the first one was asked before."""
    answers = ("timeout", "2", "squeue", "-h")
    jobs.wait(layout, lambda: jobs.run_as(layout, "root", answers).status == 0, "the second controller", 60)


def is_up(layout: Layout, name: str) -> bool:
    """Returns whether a controller answers, in control or not."""
    return f" at {HOSTS[name][0]} is UP" in shown(layout)


def shown(layout: Layout) -> str:
    """Returns what scontrol ping prints; it fails where the first does not answer."""
    command = ("sh", "-c", "scontrol ping; true")
    return services.answer(command, services.clean_environment(layout)) or ""
