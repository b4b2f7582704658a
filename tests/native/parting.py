# SPDX-License-Identifier: Apache-2.0
"""Calls the rules by which a process says how much it works and uses of its timeslices (native/interposer/arbitration,
parts.h), by ctypes. Pure: the same arguments give the same results."""

from __future__ import annotations

import ctypes

from arbitration import LIBRARY, constant

PART_BUSY = constant("parts.h", "HAMI_PART_BUSY")
_U32, _I64 = ctypes.c_uint32, ctypes.c_int64

_lib = ctypes.CDLL(str(LIBRARY))
_lib.hami_part_worked.argtypes = (_U32, ctypes.c_bool)
_lib.hami_part_filled.argtypes = (_U32, _I64, _I64)
_lib.hami_part_counts.argtypes = (_U32,)
_lib.hami_part_settled.argtypes = (_U32, _U32)
for _name in ("worked", "filled", "counts", "settled"):
    getattr(_lib, f"hami_part_{_name}").restype = _U32


def worked(before: int, works: bool) -> int:
    """Returns of how many of its samples something had work, permille, after one more."""
    return int(_lib.hami_part_worked(before, works))


def filled(before: int, stay_ns: int, timeslice_ns: int) -> int:
    """Returns how much of its timeslices a process uses, permille, after one more stay."""
    return int(_lib.hami_part_filled(before, stay_ns, timeslice_ns))


def counts(filled_permille: int) -> int:
    """Returns for how much of a process one counts that says so, permille."""
    return int(_lib.hami_part_counts(filled_permille))


def settled(before: int, now: int) -> int:
    """Returns how many divide a timeslice by a new count, permille."""
    return int(_lib.hami_part_settled(before, now))
