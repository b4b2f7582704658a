# SPDX-License-Identifier: Apache-2.0
"""Access control lists by which one user reads a file of root's, or enters a directory, whatever group that user is in.

What belonged to the user could be changed, and grown until its directory is full. As the kernel takes it:
linux/posix_acl_xattr.h and posix_acl.h.
"""

from __future__ import annotations

import os

_VERSION, _NO_ID = 2, 0xFFFFFFFF
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_READ, _WRITE, _ENTER = 4, 2, 1


def let_read(fd: int, uid: int) -> None:
    """Lets root write and read the open file, and its group and `uid` read it. Raises OSError where the file system has
    no access control lists, OverflowError for a number that is no uid."""
    _set(fd, _READ | _WRITE, uid, _READ, group=_READ)


def let_enter(path: str, uid: int) -> None:
    """Lets root do everything in a directory, `uid` list it and use what is in it, and nobody else. Raises as let_read
    does."""
    _set(path, _READ | _WRITE | _ENTER, uid, _READ | _ENTER, group=0)


def _set(file: int | str, owner: int, uid: int, rights: int, group: int) -> None:
    entries = (
        (_USER_OBJ, owner, _NO_ID),
        (_USER, rights, uid),
        (_GROUP_OBJ, group, _NO_ID),
        (_MASK, rights, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    packed = [_little(tag, 2) + _little(allowed, 2) + _little(whose, 4) for tag, allowed, whose in entries]
    os.setxattr(file, "system.posix_acl_access", _little(_VERSION, 4) + b"".join(packed))


def _little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")
