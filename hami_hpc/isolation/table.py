# SPDX-License-Identifier: Apache-2.0
"""The table of isolation backends. To add one: a module beside share.py and a row here.

The steps' side of each is in slurm-plugins/spank/backend.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.isolation import share

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from hami_hpc.isolation.backend import Backend

BACKENDS: Mapping[str, Backend] = {"share": share}  # by mode, see [request.modes] of the contract


def backend_of(mode: str) -> Backend:
    """The backend of a mode. NodeError for a mode that this version has none for."""
    if mode not in BACKENDS:
        raise NodeError(f"mode {mode} is not isolated by this version of hami_hpc, only {', '.join(BACKENDS)}")
    return BACKENDS[mode]


def check_modes(modes: Sequence[str], path: str) -> None:
    """NodeError when the settings in the file `path` offer a mode that this version has no backend for."""
    unknown = [mode for mode in modes if mode not in BACKENDS]
    if unknown:
        raise NodeError(
            f"{path}: modes offers {', '.join(unknown)}, but this version isolates by {', '.join(BACKENDS)} only. "
            "Take it out of modes in [vgpu], then run hami-hpc render"
        )


def mode_of_job(modes: Sequence[str], constraints: str) -> str:
    """Which of the node's modes a job gets: the one that its features name, else the node's first.

    `constraints` are the job's features as its credential has them: job_submit adds one for each mode=MODE.
    """
    words = "".join(ch if ch.isalnum() or ch in "_-" else " " for ch in constraints).split()
    named = (mode for mode in modes if c.FEATURE_MODE.format(mode=mode) in words)
    return next(named, modes[0])
