# SPDX-License-Identifier: Apache-2.0
"""Writes files whole."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, content: str | bytes, mode: int = 0o644) -> bool:
    """Writes a file whole; returns whether it was new or different."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
        return False
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    temporary.chmod(mode)
    temporary.rename(path)
    return True
