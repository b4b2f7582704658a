# SPDX-License-Identifier: Apache-2.0
"""Builds SQL for the terms of billing, the credit rules and the resources that sum_held_time counts. Pure.

Names: r the run, p what it holds, s the segment, d the run's disturbances, where there is a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami_hpc.accounting.pricing.gpu_share import PPM
from hami_hpc.accounting.pricing.segment import Segment, TermsCase
from hami_hpc.accounting.store.database import literal

# Modes of what is charged for beside GPUs, by the resource before a slash.
RESOURCE_MODES = {"cpu": "cpu", "mem": "mem", "license": "license"}
# What an hour of one is called, by mode.
RESOURCE_UNITS = {"cpu": "CPU-hours", "mem": "GiB-hours", "license": "licence-hours"}
# A condition in rates.toml -> SQL.
_FIELDS = {
    "cluster": "r.cluster",
    "account": "r.account",
    "user": "r.username",
    "partition": "r.partition",
    "qos": "r.qos",
    "model": "p.model",
    "mode": "p.mode",
    "class": "p.class",
}
NODE_FAULTS = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED")


def case_numbers(segments: Sequence[Segment]) -> list[int]:
    """Returns for each segment a number of its cases: the same for the same cases."""
    distinct = _case_lists(segments)
    return [distinct.index(segment.cases) for segment in segments]


def minimum(segments: Sequence[Segment]) -> str:
    """Returns the shortest time billed for a run."""
    return _by_case(segments, lambda case: str(case.minimum_s), "s.minimum_s")


def billable(segments: Sequence[Segment], has_disturbed: bool) -> str:
    """Returns whether a run costs anything."""

    def by_terms(states: str, disturbed: str, gpu_fault: str) -> str:
        return f"NOT list_contains({states}, state)" + (
            f" AND NOT ({disturbed} AND coalesce(d.disturbed, false))"
            f" AND NOT ({gpu_fault} AND coalesce(d.gpu_fault, false))"
            if has_disturbed
            else ""
        )

    def by_case(case: TermsCase) -> str:
        states = f"[{', '.join(map(literal, case.unbilled_states))}]::VARCHAR[]"
        return f"({by_terms(states, str(case.unbilled_disturbed), str(case.unbilled_gpu_fault))})"

    plain = by_terms("s.unbilled", "s.unbilled_disturbed", "s.unbilled_gpu_fault")
    return _by_case(segments, by_case, f"({plain})")


def rule(rules: Mapping[int, str]) -> str:
    """Returns the index of the credit rule that applies to a run, -1 for none. rules: conditions, the first counts."""
    cases = " ".join(f"WHEN list_contains(s.rules, {i}) AND {condition} THEN {i}" for i, condition in rules.items())
    return f"CASE {cases} ELSE -1 END" if cases else "-1"


def rule_condition(on: str, from_percent_ppm: int, where: Mapping[str, str], has_disturbed: bool) -> str:
    """Returns the condition of a credit rule. on: its cause. from_percent_ppm: of requests, in millionths."""
    causes = {
        "node_fault": f"r.state IN ({', '.join(map(literal, NODE_FAULTS))})",
        "gpu_fault": "coalesce(d.gpu_fault, false)",
        "disturbed": "coalesce(d.disturbed, false)",
        "slo_miss": f"coalesce(d.slo_miss_ppm, -1) >= {from_percent_ppm}",
    }
    cause = causes[on] if on == "node_fault" or has_disturbed else "false"
    return " AND ".join([f"({cause})", *_equal(where)])


def resource_runs(resources: Sequence[str]) -> str:
    """Returns SQL for the runs of ``active_all``, one row for each resource that they hold, which is the struct p.

    share: the number in millionths; of memory GiB, half to even. counts: whether the run counts on this line: a run
    without GPUs does on that of its first resource.
    """
    counted = "held = ''"
    structs = []
    for resource in resources:
        mode = RESOURCE_MODES[resource.partition("/")[0]]
        if mode == "license":
            name = resource.partition("/")[2]
            count = f"TRY_CAST(regexp_extract(licenses, {literal(f'(?:^|;){_escaped(name)}=([0-9]+)')}, 1) AS HUGEINT)"
            share = f"coalesce({count}, 0) * {PPM}"
        else:
            share = f"cpus::HUGEINT * {PPM}" if mode == "cpu" else _GIB
        structs.append(
            f"{{'model': {literal(resource)}, 'mode': {literal(mode)}, 'class': '', 'share': ({share})::HUGEINT, "
            f"'counts': {counted}}}"
        )
        counted += f" AND NOT coalesce(({share}) > 0, false)"
    return f"(SELECT *, unnest([{', '.join(structs)}]) AS p FROM active_all)"


# mem_mib * 10^6 / 1024 = mem_mib * 15625 / 16, half to even.
_NUMBER = "mem_mib::HUGEINT * 15625"
_GIB = f"({_NUMBER}) // 16 + if(({_NUMBER}) % 16 > 8 OR (({_NUMBER}) % 16 = 8 AND (({_NUMBER}) // 16) % 2 = 1), 1, 0)"


def _escaped(name: str) -> str:
    """Returns a licence's name for a regular expression."""
    return "".join(letter if letter.isalnum() or letter == "_" else f"\\x{{{ord(letter):x}}}" for letter in name)


def _case_lists(segments: Sequence[Segment]) -> list[tuple[TermsCase, ...]]:
    found: list[tuple[TermsCase, ...]] = []
    for segment in segments:
        if segment.cases not in found:
            found.append(segment.cases)
    return found


def _by_case(segments: Sequence[Segment], value: Callable[[TermsCase], str], plain: str) -> str:
    whens = [
        f"WHEN {' AND '.join([f's.cases = {number}', *_equal(case.where)])} THEN {value(case)}"
        for number, cases in enumerate(_case_lists(segments))
        for case in cases
    ]
    return f"CASE {' '.join(whens)} ELSE {plain} END" if whens else plain


def _equal(where: Mapping[str, str]) -> list[str]:
    return [f"{_FIELDS[name]} = {literal(value)}" for name, value in where.items()]
