# SPDX-License-Identifier: Apache-2.0
"""The table of GPU errors beside this module (xids.tsv), and what a site does about each. Prolog and epilog do not
import this."""

from __future__ import annotations

import functools
import os
from enum import StrEnum
from typing import NamedTuple

XID_MAX = 1 << 20  # of a code that a driver reports


class Whose(StrEnum):
    """Whose fault an error is. Nothing that an application can cause frees a run, requeues a job or drains a GPU."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    DRIVER = "driver"
    UNKNOWN = "unknown"


class FaultAction(StrEnum):
    """What is done about an error, each by itself."""

    LOG = "log"
    COMMENT = "comment"
    REQUEUE = "requeue"
    UNBILLED = "unbilled"
    DRAIN = "drain"


Actions = frozenset[FaultAction]
HARMLESS = frozenset({FaultAction.LOG, FaultAction.COMMENT})


class GpuFault(NamedTuple):
    """One error. `code` is an Xid's number or the name of a condition that NVML shows; `xid` is 0 for one that no Xid
    means."""

    code: str
    whose: Whose
    actions: Actions
    name: str
    xid: int

    @property
    def title(self) -> str:
        return f"Xid {self.code}: {self.name}" if self.code.isdecimal() else self.name


class FaultPolicy(NamedTuple):
    """The site's choices: by code, else by whose fault it is, else the table's."""

    by_code: dict[str, Actions] = {}  # noqa: RUF012  never changed
    by_whose: dict[Whose, Actions] = {}  # noqa: RUF012

    def actions(self, fault: GpuFault) -> Actions:
        chosen = self.by_code.get(fault.code, self.by_whose.get(fault.whose, fault.actions))
        return chosen & HARMLESS if fault.whose is Whose.APPLICATION else chosen


@functools.cache
def table() -> dict[str, GpuFault]:
    """Returns the table by code."""
    with open(f"{os.path.dirname(os.path.abspath(__file__))}/xids.tsv", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return {
        code: GpuFault(code, Whose(whose), frozenset(map(FaultAction, actions.split("+"))), name, int(xid))
        for code, whose, actions, name, xid in rows
    }


def fault_of(code: str) -> GpuFault:
    """Returns an error by its code. One that the table does not have is nobody's known fault: it is told, no more."""
    known = table().get(code)
    if known is not None:
        return known
    xid = int(code) if code.isdecimal() else 0
    return GpuFault(code, Whose.UNKNOWN, HARMLESS, "not in this version's table", min(xid, XID_MAX))
