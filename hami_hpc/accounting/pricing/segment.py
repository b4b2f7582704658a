# SPDX-License-Identifier: Apache-2.0
"""A part of a billed period in which prices and terms do not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hami_hpc.accounting.times import Period


@dataclass(frozen=True, slots=True)
class TermsCase:
    """Terms of the runs that meet conditions (model, mode, partition), as Segment has those of the others."""

    where: Mapping[str, str]
    minimum_s: int
    unbilled_states: tuple[str, ...]
    unbilled_disturbed: bool
    unbilled_gpu_fault: bool
    spares_off_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the billed period in which one set of rates is valid.

    minimum_s: shortest time billed for a run. unbilled_states: runs that ended in one of these cost nothing.
    unbilled_disturbed: disturbed runs cost nothing. unbilled_gpu_fault: nor do those that met a fault of their GPU.
    number: of all segments with the same prices in the same bucket; their time is summed together. window: the time
    window that it is in, empty for none. spares_off_gpu: time off the GPU does not cost the whole price. cases: terms
    of certain runs, the first that fits. rules: indexes of the credit rules that hold.
    """

    bucket: str
    period: Period
    minimum_s: int = 0
    unbilled_states: tuple[str, ...] = ()
    unbilled_disturbed: bool = False
    unbilled_gpu_fault: bool = False
    number: int = 0
    window: str = ""
    cases: tuple[TermsCase, ...] = ()
    rules: tuple[int, ...] = ()
    spares_off_gpu: bool = False
