# SPDX-License-Identifier: Apache-2.0
"""An access control list by which one user reads a file of root's, whatever group that user is in.

A file that belonged to the user could be changed, and grown until its directory is full. As the kernel takes it:
linux/posix_acl_xattr.h and posix_acl.h.
"""

from __future__ import annotations

import os

_VERSION, _NO_ID = 2, 0xFFFFFFFF
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_READ, _WRITE = 4, 2


def let_read(fd: int, uid: int) -> None:
    """Lets root write and read the open file, and its group and `uid` read it. Raises OSError where the file system has
    no access control lists, OverflowError for a number that is no uid."""
    entries = (
        (_USER_OBJ, _READ | _WRITE, _NO_ID),
        (_USER, _READ, uid),
        (_GROUP_OBJ, _READ, _NO_ID),
        (_MASK, _READ, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    packed = [_little(tag, 2) + _little(rights, 2) + _little(owner, 4) for tag, rights, owner in entries]
    os.setxattr(fd, "system.posix_acl_access", _little(_VERSION, 4) + b"".join(packed))


def _little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")
