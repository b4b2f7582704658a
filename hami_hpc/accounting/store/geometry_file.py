# SPDX-License-Identifier: Apache-2.0
"""STORE/geometry.json: the sizes of slices with which the store's records were made.

Whoever changes shard_mib or memory_scaling has to say since when in rates.toml ([[geometry]]). The file is there to
notice that this was forgotten: else jobs of before would be priced as if they had held slices of today's sizes.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the memory of a shard and of a whole GPU is (docs/architecture.md, Units)."""

    shard_mib: int
    memory_scaling: float


def read(root: Path) -> Geometry | None:
    """Returns what the store remembers; None if nothing, or if the caller may not read the store.

    Raises AccountingError for a damaged file.
    """
    path = root / "geometry.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("version") != VERSION:
            raise ValueError("another version")
        geometry = Geometry(**fields)
        if type(geometry.shard_mib) is not int or not isinstance(geometry.memory_scaling, float):
            raise ValueError("no numbers")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # who may not read the store makes bills of other records
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AccountingError(
            f"{path} cannot be read ({error}); restore it, or delete it if shard_mib and memory_scaling are those "
            "with which the store's jobs ran"
        ) from error
    return geometry


def remember(root: Path, geometry: Geometry) -> None:
    """Keeps the geometry in a store that has records, if it is another one and the store can be written."""
    if not (root / "manifest.json").exists() or read(root) == geometry:
        return
    text = json.dumps({"version": VERSION, **asdict(geometry)}) + "\n"
    with contextlib.suppress(OSError):
        _replace(root / "geometry.json", text)


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=".geometry-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        Path(name).rename(path)
    except OSError:
        Path(name).unlink()
        raise
