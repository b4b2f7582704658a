# SPDX-License-Identifier: Apache-2.0
"""One line of what `hami-hpc doctor` reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious a finding is. WARN: vgpu jobs run and are fenced as configured, but something should be improved."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report. `advice` says what to do; it is empty for Level.OK."""

    what: str
    level: Level
    detail: str
    advice: str = ""

    @property
    def is_ok(self) -> bool:
        return self.level is Level.OK


def finding(what: str, is_ok: bool, detail: str, advice: str, otherwise: Level = Level.FAIL) -> Finding:
    """Returns a finding of level OK without advice if `is_ok`, else one of level `otherwise` with `advice`."""
    return Finding(what, Level.OK if is_ok else otherwise, detail, "" if is_ok else advice)
