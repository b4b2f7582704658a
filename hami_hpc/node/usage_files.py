# SPDX-License-Identifier: Apache-2.0
"""Reads the usage files of a job's directory, which its user can write: nothing here fails for what is in them."""

from __future__ import annotations

from hami_hpc.core.grant import Grant
from hami_hpc.core.records import (
    DAMAGED_USAGE,
    MISSING_USAGE,
    USAGE_FILE_SIZE,
    Usage,
    parse_usage,
    total_usage,
    usage_file,
)
from hami_hpc.node.job_dirs import USAGE_NAME, read_bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def read_usage(directory: str, grant: Grant, now_unix_ns: int) -> Usage:
    """Returns the usage of one slice so far: "missing" when the file cannot be read, "damaged" when its content is
    invalid.

    Never fails: a file that a user wrote must not stop the prolog, the epilog or reconcile.
    """
    data = read_bounded(f"{directory}/{usage_file(grant.slice_index)}", USAGE_FILE_SIZE, None)
    if data is None and not grant.slice_index:
        data = read_bounded(f"{directory}/{USAGE_NAME}", USAGE_FILE_SIZE, None)  # the path in older versions
    if data is None:
        return MISSING_USAGE
    try:
        return parse_usage(data, grant.most_mem() << 20, now_unix_ns - grant.created_unix_ns, grant.created_unix_ns)
    except Exception:  # a bug in hami_hpc that this content triggers: only this usage is lost
        return DAMAGED_USAGE


def read_total(directory: str, grants: Sequence[Grant], now_unix_ns: int) -> Usage:
    """Returns what all slices of a job used so far. Never fails."""
    return total_usage([read_usage(directory, grant, now_unix_ns) for grant in grants])
