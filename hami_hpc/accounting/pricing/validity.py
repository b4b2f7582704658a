# SPDX-License-Identifier: Apache-2.0
"""The days on which an entry of rates.toml holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class Validity:
    """The time from the start of one local day up to the start of another."""

    start: date = date.min
    end: date = date.max

    def holds_on(self, day: date) -> bool:
        """Returns whether ``day`` is in this time."""
        return self.start <= day < self.end

    def overlaps(self, other: Validity) -> bool:
        """Returns whether some day is in both."""
        return self.start < other.end and other.start < self.end


ALWAYS = Validity()
