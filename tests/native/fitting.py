# SPDX-License-Identifier: Apache-2.0
"""Calls the rules by which timeslices fit the others on a GPU (slice.h and greed.h of
native/interposer/arbitration), by ctypes, as arbitration.py does the rest. Times in ns, where no name says us."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass

from arbitration import LIBRARY, constant

MUCH = constant("slice.h", "HAMI_SLICE_MUCH")
THRASH_NS = constant("slice.h", "HAMI_STAY_NS_THRASH")


class _Level(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("now", "told")),
        *((name, ctypes.c_int64) for name in ("since", "used")),
    )


class _Slice(ctypes.Structure):
    _fields_ = (
        ("mode", ctypes.c_uint32),
        ("thrashes", ctypes.c_bool),
        ("level", _Level),
        *(
            (name, ctypes.c_int64)
            for name in ("used", "others", "worked", "unused", "tiny", "returns", "met", "thrashed", "wants")
        ),
        ("doublings", ctypes.c_uint32),
        *((name, ctypes.c_int64) for name in ("yielded", "longer", "left", "left_used")),
        *((name, ctypes.c_int64) for name in ("missed", "wary", "wary_length", "trusts")),
        ("returns_trying", ctypes.c_uint32),
        ("pressed_trying", ctypes.c_uint32),
        ("settled", ctypes.c_bool),
        ("light_looking", ctypes.c_int64),
    )


class _Seen(ctypes.Structure):
    _fields_ = (
        ("now", ctypes.c_int64),
        ("elapsed", ctypes.c_int64),
        ("used", ctypes.c_int64),
        ("begun", ctypes.c_int64),
        ("begun_used", ctypes.c_int64),
        ("caps", ctypes.c_uint32),
        ("capped", ctypes.c_bool),
        ("others_least_percent", ctypes.c_uint32),
        ("other_percent", ctypes.c_uint32),
        ("held_back", ctypes.c_bool),
        ("can_yield", ctypes.c_bool),
        *((name, ctypes.c_uint32) for name in ("samples", "outstanding")),
        *((name, ctypes.c_int64) for name in ("others", "worked", "unused")),
        *((name, ctypes.c_uint32) for name in ("tiny", "returns", "met", "pressed", "thrashed")),
        ("got", ctypes.c_int64),
    )


class _Work(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("elapsed", "used", "others")),
        *((name, ctypes.c_uint32) for name in ("samples", "outstanding")),
    )


class _Greed(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("used", "wants")),
        *((name, ctypes.c_bool) for name in ("over", "greedy", "yields", "over_cores", "more")),
    )


_I64, _U32 = ctypes.c_int64, ctypes.c_uint32
_lib = ctypes.CDLL(str(LIBRARY))
_lib.hami_slice_step.restype = None
_lib.hami_slice_step.argtypes = (ctypes.POINTER(_Slice), ctypes.POINTER(_Seen), _U32, _U32)
_lib.hami_greed_step.restype = None
_lib.hami_greed_step.argtypes = (ctypes.POINTER(_Greed), ctypes.POINTER(_Work), _U32, _U32)
_lib.hami_slice_next.restype, _lib.hami_slice_next.argtypes = _I64, (ctypes.POINTER(_Slice), _I64)
_lib.hami_slice_instant.restype, _lib.hami_slice_instant.argtypes = _I64, (_I64,)
_lib.hami_slice_instant_came.restype = ctypes.c_bool
_lib.hami_slice_instant_came.argtypes = (_I64, _I64)
_lib.hami_slice_yields.restype = ctypes.c_bool
_lib.hami_slice_yields.argtypes = (ctypes.POINTER(_Slice),)
_lib.hami_slice_longer.restype, _lib.hami_slice_longer.argtypes = _I64, (ctypes.POINTER(_Slice),)
_lib.hami_slice_us.restype, _lib.hami_slice_us.argtypes = _U32, (ctypes.POINTER(_Slice), _U32)
_lib.hami_slice_others.restype, _lib.hami_slice_others.argtypes = _I64, (ctypes.POINTER(_Slice), _U32)
_lib.hami_slice_tiny.restype, _lib.hami_slice_tiny.argtypes = _I64, (_I64,)
_lib.hami_slice_worked.restype, _lib.hami_slice_worked.argtypes = _I64, (_I64, _I64)
_lib.hami_slice_unused.restype, _lib.hami_slice_unused.argtypes = _I64, (_I64, _I64)


@dataclass(frozen=True)
class Seen:
    """struct hami_seen."""

    now_ns: int
    elapsed_ns: int
    used_ns: int = 0
    begun_ns: int = 0
    begun_used_ns: int = 0
    caps: int = 0
    capped: bool = False
    others_least_percent: int = 0
    other_percent: int = 0
    held_back: bool = False
    can_yield: bool = True
    samples: int = 0
    outstanding: int = 0
    others_ns: int = 0
    worked: int = 0
    unused: int = 0
    tiny: int = 0
    returns: int = 0
    met: int = 0
    pressed: int = 0
    thrashed: int = 0


MODES = ("shares", "looks", "tries", "yields")


class Slice:
    """struct hami_slice: how much a tenant shortens its timeslices beside others that have little to do."""

    def __init__(self) -> None:
        self._slice = _Slice()

    @property
    def mode(self) -> str:
        return MODES[self._slice.mode]

    @property
    def level(self) -> int:
        return int(self._slice.level.now)

    @property
    def yields(self) -> bool:
        return bool(_lib.hami_slice_yields(self._slice))

    @property
    def longer_ns(self) -> int:
        """By how much the turn of one that yields is longer."""
        return int(_lib.hami_slice_longer(self._slice))

    def step(self, seen: Seen, cores_percent: int, longest_us: int) -> None:
        """Takes what was seen since the last step."""
        values = astuple(seen)
        _lib.hami_slice_step(self._slice, _Seen(*values), cores_percent, longest_us)

    def timeslice_us(self, longest_us: int) -> int:
        """Returns the timeslice where the terms' is ``longest_us``."""
        return int(_lib.hami_slice_us(self._slice, longest_us))

    def next_ns(self, now_ns: int) -> int:
        """Returns when to step at the latest."""
        return int(_lib.hami_slice_next(self._slice, now_ns))

    def others_ns(self, longest_us: int) -> int:
        """Returns the timeslice of another who shares alike, where the other's terms say ``longest_us``."""
        return int(_lib.hami_slice_others(self._slice, longest_us))


class Greed:
    """struct hami_greed: whether a latency-critical tenant wants more than it asked for."""

    def __init__(self) -> None:
        self._greed = _Greed()

    @property
    def over(self) -> bool:
        return bool(self._greed.over)

    @property
    def greedy(self) -> bool:
        return bool(self._greed.greedy)

    @property
    def yields(self) -> bool:
        return bool(self._greed.yields)

    @property
    def means(self) -> tuple[int, int]:
        """How much was used, ns a second, and how often work was outstanding, permille."""
        return int(self._greed.used), int(self._greed.wants)

    @property
    def more(self) -> bool:
        return bool(self._greed.more)

    def step(
        self,
        elapsed_ns: int,
        used_ns: int,
        share_percent: int,
        cores_percent: int | None = None,
        samples: int = 0,
        outstanding: int = 0,
        others_ns: int = 1000,
    ) -> None:
        """Takes what was seen since the last step. ``cores_percent``: of the job, if that is not its share."""
        work = _Work(elapsed_ns, used_ns, others_ns, samples, outstanding)
        cores = share_percent if cores_percent is None else cores_percent
        _lib.hami_greed_step(self._greed, work, share_percent, cores)


def instant_ns(now_ns: int) -> int:
    """Returns the first instant after ``now_ns`` at which timeslices are changed."""
    return int(_lib.hami_slice_instant(now_ns))


def instant_came(instant_ns: int, now_ns: int) -> bool:
    """Returns whether the instant has come, or the clock was set back since it was told."""
    return bool(_lib.hami_slice_instant_came(instant_ns, now_ns))


def slice_tiny_ns(timeslice_ns: int) -> int:
    """Returns how short a stay is tiny for somebody of this timeslice."""
    return int(_lib.hami_slice_tiny(timeslice_ns))


def slice_worked(stay_ns: int, longest_ns: int) -> int:
    """Returns how much of another's stay was work, ns."""
    return int(_lib.hami_slice_worked(stay_ns, longest_ns))


def slice_unused(stay_ns: int, timeslice_ns: int) -> int:
    """Returns how much of a timeslice a stay left unused, thousandths."""
    return int(_lib.hami_slice_unused(stay_ns, timeslice_ns))
