# SPDX-License-Identifier: Apache-2.0
"""mount(2) and umount2(2) by the C module of ctypes alone: 0.5 ms of a stage, of which all but 0.1 is that module's
import, where mount(8) or umount(8) takes 1.5 to 1.9 (docs/adr/075).

`are_usable` says whether to call them: CPython does not document the C module, so they are used in the releases with
which tests/unit/test_mount_calls.py has run, and mount(8) elsewhere. As there, the caller reads from the mounts whether
a call worked.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _ctypes as c_types
except ImportError:
    c_types = None  # type: ignore[assignment]

TRIED_BEFORE = (3, 14)
USED = ("CFuncPtr", "FUNCFLAG_CDECL", "_SimpleCData", "dlopen", "dlsym")
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
SOURCE, TMPFS = b"hami-hpc", b"tmpfs"

are_usable = sys.version_info < TRIED_BEFORE and all(hasattr(c_types, name) for name in USED)


def mount_tmpfs(path: str, options: str) -> None:
    """Mounts a tmpfs on a directory: nosuid, nodev, noexec, and with these options of its own."""
    _call("mount", "zzzLz", SOURCE, os.fsencode(path), TMPFS, MS_NOSUID | MS_NODEV | MS_NOEXEC, options.encode())


def detach(path: str) -> None:
    """Unmounts what was mounted last on a directory, also while processes use it."""
    _call("umount2", "zi", os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW)


def _call(name: str, types: str, *arguments: bytes | int) -> None:
    """Calls a function of the C library; `types` are ctypes' letters of its arguments."""
    base: Any = c_types._SimpleCData
    kinds = {letter: type(letter, (base,), {"_type_": letter}) for letter in {*types, "i"}}
    signature = {
        "_flags_": c_types.FUNCFLAG_CDECL,
        "_restype_": kinds["i"],
        "_argtypes_": tuple(kinds[letter] for letter in types),
    }
    function: Any = type(name, (c_types.CFuncPtr,), signature)
    library = c_types.dlopen(None, 0)  # type: ignore[arg-type]  # as ctypes.CDLL(None): the C library
    function(c_types.dlsym(library, name))(*arguments)
