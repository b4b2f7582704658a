# SPDX-License-Identifier: Apache-2.0
"""The files of modes that fail on this node, written by root in the state directory (docs/adr/056).

<state_dir>/modes-out.json       the modes that are out of the node's features; no file while there is none: prolog and
                                 epilog look for the file only
<state_dir>/mode-failures.json   failures of this boot, read and written when a backend fails; for root alone, as it
                                 names jobs
"""

from __future__ import annotations

from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hami_hpc.core.mode_outage import Failure, Outage

NAME = "modes-out.json"
FAILURES_NAME = "mode-failures.json"


def path_of(state_dir: str) -> str:
    return f"{state_dir}/{NAME}"


def failures_path_of(state_dir: str) -> str:
    return f"{state_dir}/{FAILURES_NAME}"


def read(state_dir: str) -> tuple[Outage, ...]:
    """Returns the modes that are out. Raises NodeError for a file that cannot be read or was not written by root."""
    from hami_hpc.core.mode_outage import outages_from_json
    from hami_hpc.node import root_file

    path = path_of(state_dir)
    text = root_file.read(path, _advice(path))
    try:
        return () if text is None else outages_from_json(text)
    except ValueError as error:
        raise NodeError(f"{path} is damaged ({error}). {_advice(path)}") from error


def write(state_dir: str, outages: Sequence[Outage]) -> None:
    """Replaces the file; removes it when no mode is out. Raises NodeError."""
    from hami_hpc.core.mode_outage import to_json
    from hami_hpc.node import root_file

    root_file.write(path_of(state_dir), to_json(outages) if outages else "")


def read_failures(state_dir: str) -> tuple[Failure, ...]:
    """Returns the failures, none for a file that is damaged: they begin to count anew. Raises NodeError where it cannot
    be read."""
    from hami_hpc.core.mode_outage import failures_from_json
    from hami_hpc.node import root_file

    path = failures_path_of(state_dir)
    text = root_file.read(path, f"Delete {path}")
    try:
        return () if text is None else failures_from_json(text)
    except ValueError:
        return ()


def write_failures(state_dir: str, failures: Sequence[Failure]) -> None:
    """Replaces the file; removes it when there is none. Raises NodeError."""
    from hami_hpc.core.mode_outage import to_json
    from hami_hpc.node import root_file

    root_file.write(failures_path_of(state_dir), to_json(failures) if failures else "", 0o600)


def _advice(path: str) -> str:
    return (
        f"No mode counts as out of service until it can be read. Delete {path}, then compare ActiveFeatures with "
        "AvailableFeatures (scontrol show node)"
    )
