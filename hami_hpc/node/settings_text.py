# SPDX-License-Identifier: Apache-2.0
"""Reads the text of a settings file."""

from __future__ import annotations

import os
import stat

from hami_hpc.errors import NodeError

MAX_BYTES = 1 << 20


def read_text(path: str) -> str:
    """Returns the file's text. Root reads only a file that nobody else can write.

    Raises OSError, NodeError, and ValueError for what is no text.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise NodeError(f"{path} is not a regular file of at most {MAX_BYTES} bytes")
        if os.geteuid() == 0 and (status.st_uid != 0 or status.st_mode & 0o022):
            raise NodeError(
                f"{path} belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}: root reads only "
                f"settings that root alone can write. Run: chown root {path}; chmod 0644 {path}",
            )
        content = file.read(MAX_BYTES)
    if content.startswith(b"\xef\xbb\xbf"):
        raise NodeError(f"{path} begins with a byte order mark, which TOML does not have. Save it as UTF-8 without one")
    return content.decode()
