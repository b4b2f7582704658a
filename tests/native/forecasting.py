# SPDX-License-Identifier: Apache-2.0
"""Calls the rules by which the next request of a program is expected (native/interposer/arbitration/forecast.h), by
ctypes, as arbitration.py does the rest. Times in ns."""

from __future__ import annotations

import ctypes

from arbitration import LIBRARY, constant

TAKE_NS = constant("forecast.h", "HAMI_FORECAST_TAKE_NS")
LOSS = constant("forecast.h", "HAMI_FORECAST_LOSS")
LEAST = constant("forecast.h", "HAMI_FORECAST_LEAST")
NS_LEAST = constant("forecast.h", "HAMI_FORECAST_NS_LEAST")
NS_MOST = constant("forecast.h", "HAMI_FORECAST_NS_MOST")


class _Guess(ctypes.Structure):
    _fields_ = (("at", ctypes.c_int64), ("error", ctypes.c_int64))


class _Forecast(ctypes.Structure):
    _fields_ = (
        ("last", ctypes.c_int64),
        ("period", ctypes.c_int64),
        ("seen", ctypes.c_uint32),
        ("skipped", ctypes.c_bool),
        ("by_last", _Guess),
        ("by_rhythm", _Guess),
    )


_lib = ctypes.CDLL(str(LIBRARY))
_lib.hami_forecast_note.restype = None
_lib.hami_forecast_note.argtypes = (ctypes.POINTER(_Forecast), ctypes.c_int64)
_lib.hami_forecast_next.restype = ctypes.c_bool
_lib.hami_forecast_next.argtypes = (
    ctypes.POINTER(_Forecast),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_int64),
)


class Forecast:
    """Of one program."""

    def __init__(self) -> None:
        self.state = _Forecast()

    def note(self, begun: int) -> None:
        _lib.hami_forecast_note(ctypes.byref(self.state), begun)

    def next(self) -> tuple[int, int] | None:
        """Returns from when and until when the next request is expected; None: it is not."""
        begin, end = ctypes.c_int64(), ctypes.c_int64()
        expected = _lib.hami_forecast_next(ctypes.byref(self.state), ctypes.byref(begin), ctypes.byref(end))
        return (begin.value, end.value) if expected else None
