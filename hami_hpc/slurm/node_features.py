# SPDX-License-Identifier: Apache-2.0
"""Reads and sets the active features of one node. For what a failed prolog starts, and for commands."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from hami_hpc.errors import NodeError
from hami_hpc.slurm.failure import failed

TIMEOUT_S = 5  # a prolog waits for it, twice
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NONE = ("", "(null)")


def read(node: str, scontrol: str, env: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns a node's available and active features. Raises NodeError when slurmctld does not tell them."""
    text = _run(scontrol, env, "--oneliner", "show", "node", _checked(node))
    found = [re.search(rf" {key}=(\S*)", text) for key in ("AvailableFeatures", "ActiveFeatures")]
    if None in found:
        raise NodeError(f"scontrol show node {node} has no ActiveFeatures: does slurm.conf have that node?")
    available, active = ([] if match is None or match[1] in _NONE else match[1].split(",") for match in found)
    return tuple(available), tuple(active)


def set_active(node: str, features: Sequence[str], scontrol: str, env: Mapping[str, str]) -> None:
    """Makes `features` the node's active ones. Raises NodeError when slurmctld does not do it."""
    _run(scontrol, env, "update", f"nodename={_checked(node)}", f"activefeatures={','.join(features)}")


def _checked(node: str) -> str:
    """Returns a node's name. Raises NodeError for text that scontrol would read as several nodes or as an option."""
    if not _NAME.fullmatch(node):
        raise NodeError(f"'{node}' is no name of a node. slurmd gives it in SLURMD_NODENAME")
    return node


def _run(scontrol: str, env: Mapping[str, str], *words: str) -> str:
    try:
        done = subprocess.run(
            (scontrol, *words), env=dict(env), capture_output=True, timeout=TIMEOUT_S, check=False, cwd="/",
            encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"scontrol cannot be run or does not answer ({error})") from error
    if done.returncode != 0:
        raise failed(("scontrol", *words), done.stderr or done.stdout)
    return done.stdout
