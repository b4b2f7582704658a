# SPDX-License-Identifier: Apache-2.0
"""The clusters of a store, so that a mistyped name becomes no cluster of its own: its jobs would be billed twice."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.store import store_files
from hami_hpc.accounting.store.database import connect


def of_store(root: Path, manifest: store_files.Manifest) -> list[str]:
    """Returns the names of the clusters that the store has jobs of, sorted."""
    con = connect(256)
    rows = con.execute(f"SELECT DISTINCT cluster FROM {store_files.records(root, manifest)} ORDER BY 1").fetchall()
    con.close()
    return [row[0] for row in rows]


def refuse_unknown(root: Path, manifest: store_files.Manifest, names: Collection[str], way: str) -> None:
    """Raises AccountingError for a name that is not a cluster of the store, unless the store has no jobs.

    way: what to do when the name is right, as "do this".
    """
    if names and (known := of_store(root, manifest)):
        refuse(names, known, f"the store {root}", way)


def refuse(names: Collection[str], known: Collection[str], where: str, way: str) -> None:
    """Raises AccountingError for a name that is not in ``known``."""
    for name in sorted(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]}? If not, {way}" if near else way
            listed = ", ".join(sorted(entry or "(none)" for entry in known))
            raise AccountingError(
                printable(f"{where} has no job of cluster {name or '(none)'}, but of {listed}; {hint}")
            )
