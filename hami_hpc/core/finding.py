# SPDX-License-Identifier: Apache-2.0
"""One line of what `hami-hpc doctor` reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """WARN: vgpu jobs run and are fenced as configured, and something could be better. It fails nothing."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report. `advice` is what to do, empty when all is well."""

    what: str
    level: Level
    detail: str
    advice: str = ""

    @property
    def is_ok(self) -> bool:
        return self.level is Level.OK


def finding(what: str, is_ok: bool, detail: str, advice: str, otherwise: Level = Level.FAIL) -> Finding:
    """OK without advice, or `otherwise` with it."""
    return Finding(what, Level.OK if is_ok else otherwise, detail, "" if is_ok else advice)
