# SPDX-License-Identifier: Apache-2.0
"""Calls the rules of sharing a GPU's time (native/interposer/arbitration), as a job's processes do, by ctypes: budgets,
terms, parts. parting.py: what processes say of themselves; using.py: what they used; fitting.py: how timeslices fit the
others.

The library is build/native/libhami-arbitration.so, or that of the build that HAMI_TEST_BUILD names. Times in ns, shares
in percent, as in the headers. Pure: the same arguments give the same results.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("HAMI_TEST_BUILD") or ROOT / "build/native") / "libhami-arbitration.so"
ARBITRATION = ROOT / "native/interposer/arbitration"
POLICIES = {"cap": 0, "burst": 1, "none": 2}
FOREVER = 2**63 - 1


def constant(header: str, name: str) -> int:
    """Returns a number that a header of the rules defines. Raises LookupError when it defines none."""
    match = re.search(rf"^#define {name} (\d+)", (ARBITRATION / header).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise LookupError(f"{header} defines no number {name}")
    return int(match[1])


ROUND_NS = constant("budget.h", "HAMI_ROUND_NS")
LEFT_EVERY_NS = constant("terms.h", "HAMI_LEFT_EVERY_NS")
LEFT_LATE_NS = constant("terms.h", "HAMI_LEFT_LATE_NS")
SHUT_NS_MOST = constant("budget.h", "HAMI_SHUT_NS_MOST")
COUNT_NS_SEVERAL = constant("budget.h", "HAMI_COUNT_NS_SEVERAL")
FULL = constant("terms.h", "HAMI_PART_FULL")
ANY_NUMBER = 2**32 - 1


class _Terms(ctypes.Structure):
    _fields_ = (
        ("cores_percent", ctypes.c_uint32),
        ("of_server", ctypes.c_bool),
        ("policy", ctypes.c_uint32),
        ("slice_us", ctypes.c_uint32),
        ("latency", ctypes.c_bool),
        ("beyond", ctypes.c_bool),
        ("floor_percent", ctypes.c_uint32),
        ("latency_others", ctypes.c_uint32),
        ("latency_above", ctypes.c_uint32),
        ("turn_begin", ctypes.c_uint32),
        ("turn_length", ctypes.c_uint32),
        ("others_least_percent", ctypes.c_uint32),
        ("only_other_percent", ctypes.c_uint32),
        ("others_capped", ctypes.c_uint32),
        ("in_step", ctypes.c_bool),
        ("step_begin", ctypes.c_uint32),
        ("greedy", ctypes.c_bool),
        ("beside_slice_us", ctypes.c_uint32),
        ("latency_cores", ctypes.c_uint32),
    )


class _Part(ctypes.Structure):
    _fields_ = (("rank", ctypes.c_uint32), ("count", ctypes.c_uint32))


class _Visit(ctypes.Structure):
    _fields_ = (("stay", ctypes.c_int64), ("usual", ctypes.c_int64))


class _Count(ctypes.Structure):
    _fields_ = (
        ("since", ctypes.c_int64),
        ("now", ctypes.c_int64),
        ("used", ctypes.c_int64),
        ("several", ctypes.c_bool),
    )


_I64, _U32 = ctypes.c_int64, ctypes.c_uint32
_lib = ctypes.CDLL(str(LIBRARY))
_lib.hami_budget_half.restype, _lib.hami_budget_half.argtypes = _I64, (_U32,)
_lib.hami_budget_use.restype = _lib.hami_budget_credit.restype = _I64
_lib.hami_budget_use.argtypes = (_I64, ctypes.POINTER(_Count), _U32)
_lib.hami_budget_credit.argtypes = (_I64, _I64, ctypes.c_bool, _U32)
_lib.hami_budget_rested.restype = ctypes.c_bool
_lib.hami_budget_rested.argtypes = (_I64, ctypes.POINTER(_Count))
_lib.hami_budget_repaid.restype, _lib.hami_budget_repaid.argtypes = _I64, (_I64, _I64, _U32)
_lib.hami_budget_shut.restype = ctypes.c_bool
_lib.hami_budget_shut.argtypes = (_I64, ctypes.c_bool, ctypes.c_bool, _U32)
_lib.hami_budget_wait.restype, _lib.hami_budget_wait.argtypes = _I64, (_I64, ctypes.c_bool, ctypes.c_bool, _U32)
_lib.hami_budget_in_step.restype = _I64
_lib.hami_budget_in_step.argtypes = (ctypes.c_bool, _U32, _U32)
_lib.hami_terms_timeslice_us.restype = _U32
_lib.hami_terms_timeslice_us.argtypes = (ctypes.POINTER(_Terms), _U32)
_lib.hami_terms_at_once.restype, _lib.hami_terms_at_once.argtypes = _U32, (ctypes.POINTER(_Terms),)
_lib.hami_terms_latency_share.restype, _lib.hami_terms_latency_share.argtypes = _U32, (ctypes.POINTER(_Terms),)
_lib.hami_terms_cap.restype, _lib.hami_terms_cap.argtypes = _U32, (ctypes.POINTER(_Terms),)
_lib.hami_terms_turn.restype = ctypes.c_bool
_lib.hami_terms_turn.argtypes = (ctypes.POINTER(_Terms), ctypes.c_bool, _I64, _I64, ctypes.POINTER(_I64))
_lib.hami_terms_open.restype = ctypes.c_bool
_lib.hami_terms_open.argtypes = (ctypes.POINTER(_Terms), ctypes.c_bool, _I64, _I64, ctypes.POINTER(_I64))
_lib.hami_part_open.restype = ctypes.c_bool
_lib.hami_part_open.argtypes = (ctypes.POINTER(_Terms), ctypes.POINTER(_Part), _I64, ctypes.POINTER(_I64))
_lib.hami_part_context.restype = _U32
_lib.hami_part_context.argtypes = (
    ctypes.POINTER(_Terms),
    ctypes.POINTER(_Part),
    _U32,
    _I64,
    ctypes.POINTER(_I64),
)
_lib.hami_part_sharers.restype = _U32
_lib.hami_part_sharers.argtypes = (ctypes.POINTER(_Terms), ctypes.POINTER(_Part), _U32)
_lib.hami_part_one_context.restype = ctypes.c_bool
_lib.hami_part_one_context.argtypes = (ctypes.POINTER(_Terms), ctypes.POINTER(_Part), _U32)
_lib.hami_terms_waits.restype = ctypes.c_bool
_lib.hami_terms_waits.argtypes = (ctypes.POINTER(_Terms), ctypes.c_bool, _I64, ctypes.POINTER(_Visit))
_lib.hami_terms_has_long_rounds.restype = ctypes.c_bool
_lib.hami_terms_has_long_rounds.argtypes = (ctypes.POINTER(_Terms),)
_lib.hami_terms_copy_timeslice_us.restype = _U32
_lib.hami_terms_copy_timeslice_us.argtypes = (ctypes.POINTER(_Terms),)
_lib.hami_terms_others_timeslice_us.restype = _U32
_lib.hami_terms_others_timeslice_us.argtypes = (ctypes.POINTER(_Terms),)
_lib.hami_terms_other_percent.restype = _U32
_lib.hami_terms_other_percent.argtypes = (ctypes.POINTER(_Terms), _U32)


def budget_half(percent: int) -> int:
    """Returns half of the credit, ns, that may be saved or owed; percent 1 to 99."""
    return int(_lib.hami_budget_half(percent))


def budget_shut(credit_ns: int, shut: bool, percent: int, contended: bool = False) -> bool:
    """Returns whether a tenant is shut that was ``shut`` before."""
    return bool(_lib.hami_budget_shut(credit_ns, shut, contended, percent))


def budget_wait(credit_ns: int, shut: bool, percent: int, contended: bool = False) -> int:
    """Returns how long, ns, that stays so at least."""
    return int(_lib.hami_budget_wait(credit_ns, shut, contended, percent))


def budget_in_step(shut: bool, duty_permille: int, percent: int) -> int:
    """Returns what is added to the credit, ns, of a tenant that works in step, where its budget decides."""
    return int(_lib.hami_budget_in_step(shut, duty_permille, percent))


@dataclass
class Budget:
    """A budget as the usage record keeps it; full at the beginning. ``several``: processes use it."""

    percent: int
    several: bool = False
    full_at: int = 0
    now: int = 0  # of the last count
    shut: bool = False  # for those who keep it here
    rested: bool = False

    def use(self, since_ns: int, now_ns: int, used_ns: int) -> int:
        """Takes what a process used between two counts of its own. Returns the credit, ns."""
        count = _Count(since_ns, now_ns, used_ns, self.several)
        self.rested = self.rested or bool(_lib.hami_budget_rested(self.full_at, count))
        self.full_at = int(_lib.hami_budget_use(self.full_at, count, self.percent))
        self.now = now_ns
        return self.credit

    def go_on(self, elapsed_ns: int, used_ns: int) -> int:
        """The same for the only process, after so much time."""
        return self.use(self.now, self.now + elapsed_ns, used_ns)

    def decide(self, contended: bool = False) -> bool:
        """Decides whether its processes are paused, as region/budget.c does."""
        shut = budget_shut(self.credit, self.shut, self.percent, contended)
        if shut and not self.shut and self.rested and not contended:
            self.full_at = int(_lib.hami_budget_repaid(self.full_at, self.now, self.percent))
        self.shut, self.rested = shut, self.rested and not shut
        return shut

    @property
    def credit(self) -> int:
        return int(_lib.hami_budget_credit(self.full_at, self.now, self.several, self.percent))


@dataclass(frozen=True)
class Terms:
    """struct hami_terms; percentages, and permille of ROUND_NS."""

    cores_percent: int
    policy: str = "burst"
    latency: bool = False
    floor_percent: int = 0
    latency_others: int = 0
    turn_begin: int = 0
    turn_length: int = 0
    others_least_percent: int = 0
    others_capped: int = 0
    slice_us: int = 0
    latency_above: int = 0
    in_step: bool = False
    step_begin: int = 0
    beside_slice_us: int = 0
    greedy: bool = False
    latency_cores: int = 0
    of_server: bool = False
    beyond: bool = False
    only_other_percent: int = 0

    def _struct(self) -> _Terms:
        return _Terms(
            self.cores_percent,
            self.of_server,
            POLICIES[self.policy],
            self.slice_us,
            self.latency,
            self.beyond,
            self.floor_percent,
            self.latency_others,
            self.latency_above,
            self.turn_begin,
            self.turn_length,
            self.others_least_percent,
            self.only_other_percent,
            self.others_capped,
            self.in_step,
            self.step_begin,
            self.greedy,
            self.beside_slice_us,
            self.latency_cores,
        )

    def latency_share(self) -> int:
        """Returns the share of a latency-critical tenant beside others of its kind, percent."""
        return int(_lib.hami_terms_latency_share(self._struct()))

    def timeslice_us(self, sharers: float = 1) -> int:
        """Returns the timeslice of one of so many processes, or contexts, us; 0: the driver's own."""
        return int(_lib.hami_terms_timeslice_us(self._struct(), round(FULL * sharers)))

    def at_once(self) -> int:
        """Returns how many processes can divide the timeslice; ANY_NUMBER: all."""
        return int(_lib.hami_terms_at_once(self._struct()))

    def other_percent(self, sharers: float = 1) -> int:
        """Returns the cores of the only other tenant; 0: there is none, or are several."""
        return int(_lib.hami_terms_other_percent(self._struct(), round(FULL * sharers)))

    def cap(self) -> int:
        """Returns the most that the tenant may use, percent."""
        return int(_lib.hami_terms_cap(self._struct()))

    def has_long_rounds(self) -> bool:
        """Returns whether timeslices are longer than usual; then who waits for others counts as contended."""
        return bool(_lib.hami_terms_has_long_rounds(self._struct()))

    def copy_timeslice_us(self) -> int:
        """Returns the timeslice of what copies, us; 0: the driver's own."""
        return int(_lib.hami_terms_copy_timeslice_us(self._struct()))

    def others_timeslice_us(self) -> int:
        """Returns the shortest timeslice of the others, us; 0: timeslices are fixed."""
        return int(_lib.hami_terms_others_timeslice_us(self._struct()))

    def open(self, shut: bool, since_ns: int, now_ns: int) -> tuple[bool, int]:
        """Returns whether the tenant is open whose budget says ``shut``, or not, since then, and when that changes."""
        until = _I64()
        return bool(_lib.hami_terms_open(self._struct(), shut, since_ns, now_ns, until)), until.value

    def part(self, rank: int, count: int, now_ns: int) -> tuple[bool, int]:
        """Returns whether it is the part of the process with this number of so many, and until when."""
        until = _I64()
        return bool(_lib.hami_part_open(self._struct(), _Part(rank, count), now_ns, until)), until.value

    def sharers(self, process: tuple[int, int], sharers: int) -> int:
        """Returns of how many processes, permille, those that are open together make use of a timeslice."""
        return int(_lib.hami_part_sharers(self._struct(), _Part(*process), sharers))

    def one_context(self, process: tuple[int, int], count: int) -> bool:
        """Returns whether so many contexts of the process (number, of so many) are open one at a time."""
        return bool(_lib.hami_part_one_context(self._struct(), _Part(*process), count))

    def context(self, process: tuple[int, int], count: int, now_ns: int) -> tuple[int, int]:
        """Returns which of ``count`` contexts of the process (number, of so many) is open, and until when."""
        until = _I64()
        return int(_lib.hami_part_context(self._struct(), _Part(*process), count, now_ns, until)), until.value

    def waits(self, opens: bool, late_ns: int, stay_ns: int, usual_ns: int) -> bool:
        """Returns whether a change that is so late waits on; another is on the engine since ``stay_ns`` (0: none)."""
        return bool(_lib.hami_terms_waits(self._struct(), opens, late_ns, _Visit(stay_ns, usual_ns)))

    def turn(self, now_ns: int, yields: bool = False, longer_ns: int = 0) -> tuple[bool, int]:
        """Returns whether the tenant may work at ``now_ns`` of the common clock, and when that changes."""
        until = _I64()
        return bool(_lib.hami_terms_turn(self._struct(), yields, longer_ns, now_ns, until)), until.value
