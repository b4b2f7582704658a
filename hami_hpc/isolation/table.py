# SPDX-License-Identifier: Apache-2.0
"""The table of isolation backends. To add one, write a module beside share.py and add a row here.

slurm-plugins/spank/backend.c has the part of each backend that runs in steps.
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.isolation import mig, mps, share

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hami_hpc.isolation.backend import Backend

# By mode, see [request.modes] of the contract.
BACKENDS: Mapping[str, Backend] = {"share": share, "mps": mps, "mig": mig}

# Modes in which a job can have several slices of a node, each on a GPU of its own.
WITH_SEVERAL_SLICES = frozenset({"share"})

# How the interposer keeps the share of time in modes that keep it themselves: MPS does by multiprocessors.
POLICY_OF_MODE: Mapping[str, str] = {"mps": "none"}


def backend_of(mode: str) -> Backend:
    """Returns the backend of a mode. Raises NodeError for a mode that this version does not support."""
    if mode not in BACKENDS:
        raise NodeError(f"this version of hami_hpc does not support mode={mode}, only {', '.join(BACKENDS)}")
    return BACKENDS[mode]


def check_modes(modes: Sequence[str], path: str) -> None:
    """Raises NodeError when the settings in the file `path` offer a mode that this version does not support."""
    unknown = [mode for mode in modes if mode not in BACKENDS]
    if unknown:
        raise NodeError(
            f"{path}: modes offers {', '.join(unknown)}, but this version supports only {', '.join(BACKENDS)}. "
            "Remove it from modes in [vgpu], then run hami-hpc render"
        )


def mode_of_job(modes: Sequence[str], constraints: str) -> str:
    """Returns the mode of a job: the one of the node's modes that its features name, else the node's first.

    `constraints` are the job's features as in its credential: job_submit adds one for each mode=MODE.
    """
    requested = (mode for mode in modes if names_mode(mode, constraints))
    return next(requested, modes[0])


def names_mode(mode: str, constraints: str) -> bool:
    """Returns whether a job's features name the mode, so that Slurm sends it only to nodes that have its feature."""
    words = "".join(ch if ch.isalnum() or ch in "_-" else " " for ch in constraints).split()
    return c.FEATURE_MODE.format(mode=mode) in words
