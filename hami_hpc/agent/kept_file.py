# SPDX-License-Identifier: Apache-2.0
"""A small file that is read at each look, and stays open in between."""

from __future__ import annotations

import os
import stat

KEPT_MAX = 256  # of one kind; the rest is opened at each look
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class KeptFile:
    """A regular file, opened without following a link at its end, and never blocking. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, _FLAGS)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise OSError(f"{path} is not a regular file")

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def read(self, size: int, offset: int = 0) -> bytes:
        """Returns `size` bytes from `offset` on, or fewer where the file ends."""
        return os.pread(self._fd, size, offset)
