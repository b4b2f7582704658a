# SPDX-License-Identifier: Apache-2.0
"""The file of the GPUs out of service, <state_dir>/drained-gpus.json. Root writes it; it survives a reboot.

It does not exist while all GPUs are in service: a prolog looks for the file only.
"""

from __future__ import annotations

from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hami_hpc.core.out_of_service import DrainedGpu

NAME = "drained-gpus.json"


def path_of(state_dir: str) -> str:
    return f"{state_dir}/{NAME}"


def read(state_dir: str) -> tuple[DrainedGpu, ...]:
    """Returns the GPUs out of service. Raises NodeError for a file that cannot be read or was not written by root."""
    from hami_hpc.core.out_of_service import from_json
    from hami_hpc.node import root_file

    path = path_of(state_dir)
    text = root_file.read(path, _advice(path))
    try:
        return () if text is None else from_json(text)
    except ValueError as error:
        raise NodeError(f"{path} is damaged ({error}). {_advice(path)}") from error


def write(state_dir: str, gpus: Sequence[DrainedGpu]) -> None:
    """Replaces the file, whole or not at all; removes it when no GPU is out of service. Raises NodeError."""
    from hami_hpc.core.out_of_service import to_json
    from hami_hpc.node import root_file

    root_file.write(path_of(state_dir), to_json(gpus) if gpus else "")


def _advice(path: str) -> str:
    return (
        f"No GPU counts as out of service until it can be read. Delete {path}, then run hami-hpc gpu drain for each "
        "GPU that is to stay out"
    )
