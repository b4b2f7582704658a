# SPDX-License-Identifier: Apache-2.0
"""Calls the rules of what a process used of a GPU's time, and what that cost others, by ctypes, as arbitration.py does
the rest (native/interposer/arbitration/use.h). Times in ns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from arbitration import LIBRARY, constant

SAVE_NS = constant("use.h", "HAMI_SAVE_NS")


class _Switch(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_int64),
        ("on", ctypes.c_bool),
        ("after_others", ctypes.c_bool),
        ("pid", ctypes.c_uint32),
    )


class _Presence(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("elapsed", "on", "used", "others", "slice")),
        ("arrivals", ctypes.c_uint32),
        ("paused", ctypes.c_int64),
    )


class _Sample(ctypes.Structure):
    _fields_ = (("at", ctypes.c_int64), ("outstanding", ctypes.c_bool))


class _Use(ctypes.Structure):
    _fields_ = (
        ("on", ctypes.c_bool),
        ("saves", ctypes.c_bool),
        ("on_since", ctypes.c_int64),
        ("at", ctypes.c_int64),
        ("there", ctypes.c_int64),
        ("came", ctypes.c_int64),
        ("used", ctypes.c_int64),
        ("sampled", ctypes.c_bool),
        ("idle", ctypes.c_bool),
        ("idle_at", ctypes.c_int64),
    )


_I64 = ctypes.c_int64
_lib = ctypes.CDLL(str(LIBRARY))
_lib.hami_use_begin.restype, _lib.hami_use_begin.argtypes = None, (ctypes.POINTER(_Use), _I64)
_lib.hami_use_of_stay.restype, _lib.hami_use_of_stay.argtypes = _I64, (_I64,)
_lib.hami_use_costs.restype, _lib.hami_use_costs.argtypes = _I64, (ctypes.POINTER(_Presence),)
_lib.hami_use_count.restype = _I64
_lib.hami_use_count.argtypes = (
    ctypes.POINTER(_Use),
    ctypes.POINTER(_Switch),
    ctypes.c_size_t,
    ctypes.POINTER(_Sample),
    ctypes.c_size_t,
    _I64,
)


class Use:
    """struct hami_use: the time that one process used, counted from its switches and samples."""

    def __init__(self, now_ns: int) -> None:
        self._use = _Use()
        _lib.hami_use_begin(self._use, now_ns)

    def count(
        self,
        switches: Sequence[tuple[int, bool]],
        samples: Sequence[tuple[int, bool]],
        now_ns: int,
        after_others: Callable[[int], bool] = lambda at: False,
    ) -> int:
        """Returns the time used since the last count, ns. switches: (at, on); samples: (at, outstanding)."""
        on = (_Switch * len(switches))(*(_Switch(at, yes, yes and after_others(at)) for at, yes in switches))
        outstanding = (_Sample * len(samples))(*(_Sample(at, yes) for at, yes in samples))
        return int(_lib.hami_use_count(self._use, on, len(switches), outstanding, len(samples), now_ns))

    @property
    def there_ns(self) -> int:
        """Of the time of the last count, what it was on the engine, at work or not."""
        return int(self._use.there)

    @property
    def came_ns(self) -> int:
        """When it last came to the engine after others; 0: it did not."""
        return int(self._use.came)

    @property
    def used_ns(self) -> int:
        """What it used since then."""
        return int(self._use.used)


def of_stay(stay_ns: int) -> int:
    """Returns how much of another's stay, which an arrival ended, it was at work, ns."""
    return int(_lib.hami_use_of_stay(stay_ns))


def costs(
    arrivals: int,
    used_ns: int,
    others_ns: int,
    elapsed_ns: int,
    *,
    on_ns: int = 0,
    paused_ns: int = 0,
    slice_ns: int = 20_000_000,
) -> int:
    """Returns what it cost others that a process came to the engine so often after them, ns: struct hami_presence."""
    presence = _Presence(elapsed_ns, max(on_ns, used_ns), used_ns, others_ns, slice_ns, arrivals, paused_ns)
    return int(_lib.hami_use_costs(presence))
