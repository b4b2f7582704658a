# SPDX-License-Identifier: Apache-2.0
"""QoS: what the settings want, what slurmdbd has, and the sacctmgr commands that make one the other. Pure.

Values are compared in one form for each kind of field. What the settings do not name is left as it is, also within a
limit on several TRES; nothing is ever deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError

NONE = "none"  # no limit of this kind
DAY_S = 86400


class Kind(Enum):
    """What a field holds, and its one form here."""

    NUMBER = "number"  # decimal digits, or NONE
    FACTOR = "factor"  # as Python's %g
    SECONDS = "seconds"  # decimal digits; sacctmgr takes seconds and prints HH:MM:SS
    TIME = "time"  # D-HH:MM:SS, or NONE
    NAMES = "names"  # sorted, with commas
    FLAGS = "flags"  # likewise, in sacctmgr's spelling
    MODE = "mode"  # lower case
    TRES = "tres"  # a limit for each TRES, in decimal digits, or NONE


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a QoS. key: in the settings. option: to set it with sacctmgr. column: to list it with sacctmgr."""

    key: str
    option: str
    column: str
    kind: Kind


# sacctmgr's man page and qos_functions.c have each of these from 22.05 to 26.05.
FIELDS = (
    Field("priority", "Priority", "Priority", Kind.NUMBER),
    Field("preempt_mode", "PreemptMode", "PreemptMode", Kind.MODE),
    Field("preempt", "Preempt", "Preempt", Kind.NAMES),
    Field("preempt_exempt_time_s", "PreemptExemptTime", "PreemptExemptTime", Kind.TIME),
    Field("grace_time_s", "GraceTime", "GraceTime", Kind.SECONDS),
    Field("usage_factor", "UsageFactor", "UsageFactor", Kind.FACTOR),
    Field("flags", "Flags", "Flags", Kind.FLAGS),
    Field("max_wall", "MaxWall", "MaxWall", Kind.TIME),
    Field("max_tres_per_job", "MaxTRESPerJob", "MaxTRES", Kind.TRES),
    Field("max_tres_per_user", "MaxTRESPerUser", "MaxTRESPU", Kind.TRES),
    Field("max_tres_per_account", "MaxTRESPerAccount", "MaxTRESPA", Kind.TRES),
    Field("grp_tres", "GrpTRES", "GrpTRES", Kind.TRES),
    Field("max_jobs_per_user", "MaxJobsPerUser", "MaxJobsPU", Kind.NUMBER),
    Field("max_jobs_per_account", "MaxJobsPerAccount", "MaxJobsPA", Kind.NUMBER),
    Field("max_submit_jobs_per_user", "MaxSubmitJobsPerUser", "MaxSubmitPU", Kind.NUMBER),
    Field("max_submit_jobs_per_account", "MaxSubmitJobsPerAccount", "MaxSubmitPA", Kind.NUMBER),
    Field("grp_jobs", "GrpJobs", "GrpJobs", Kind.NUMBER),
)
COLUMNS = ("Name", *(entry.column for entry in FIELDS))
BY_KEY = {entry.key: entry for entry in FIELDS}
# Those that Slurm enforces only where AccountingStorageEnforce has limits.
LIMITS = frozenset(entry.key for entry in FIELDS if entry.key.startswith(("max_", "grp_")))
FLAGS = (
    *("DenyOnLimit", "EnforceUsageThreshold", "NoDecay", "NoReserve", "OverPartQOS", "PartitionMaxNodes"),
    *("PartitionMinNodes", "PartitionTimeLimit", "RequiresReservation", "UsageFactorSafe"),
)
# Not suspend: a suspended job keeps its shards, even where its memory leaves the GPU.
MODES = ("cluster", "requeue", "cancel")
TRES = {
    **{name: f"gres/{name}" for name in (c.GRES_CLASS, c.GRES_MEM, c.GRES_CORES, c.GRES_SHARD, "gpu")},
    **{name: name for name in ("cpu", "node")},
}


@dataclass(frozen=True, slots=True)
class Qos:
    """A QoS by its fields: (key, TRES or "") -> value in the field's one form. Of settings: those that they name."""

    name: str
    values: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def preempts(self) -> tuple[str, ...]:
        return split(self.values.get(("preempt", ""), ""))


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of a QoS that slurmdbd has otherwise. `present` is None for a QoS that slurmdbd does not have."""

    qos: str
    key: str
    tres: str
    wanted: str
    present: str | None

    @property
    def what(self) -> str:
        """Slurm's name of the field, with the TRES."""
        return BY_KEY[self.key].option + (f"[{self.tres}]" if self.tres else "")


Command = tuple[str, ...]


def split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split(",") if name)


def joined(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


def time_text(seconds: int) -> str:
    """Returns seconds as sacctmgr prints them: 01:30:00, 1-00:00:00."""
    days, rest = divmod(seconds, DAY_S)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def time_seconds(text: str) -> int:
    """Returns the seconds of MIN, MIN:SEC, HOUR:MIN:SEC or DAYS-HOUR[:MIN[:SEC]]. Raises ValueError for other texts."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() for part in (*parts, *([days] if dash else []))):
        raise ValueError(f"'{text}' is no time")
    numbers = [int(part) for part in parts]
    if dash:
        numbers += [0] * (3 - len(numbers))
    elif len(numbers) < 3:
        numbers = [0, *numbers, *([0] if len(numbers) == 1 else [])]
    hours, minutes, seconds = numbers
    return int(days or 0) * DAY_S + hours * 3600 + minutes * 60 + seconds


def read_present(row: Mapping[str, str]) -> Qos:
    """Returns the QoS of a row of `sacctmgr list qos`, by column. Raises NodeError for a value of another form."""
    values: dict[tuple[str, str], str] = {}
    for entry in FIELDS:
        text = row[entry.column]
        try:
            if entry.kind is Kind.TRES:
                pairs = (item.partition("=") for item in text.split(",") if item)
                values |= {(entry.key, tres): amount for tres, _, amount in pairs}
            else:
                values[entry.key, ""] = _present_value(entry.kind, text)
        except ValueError as error:
            raise NodeError(f"sacctmgr prints {entry.column} of QoS {row['Name']} as '{text}': {error}") from error
    return Qos(row["Name"], values)


def _present_value(kind: Kind, text: str) -> str:
    if kind in (Kind.NAMES, Kind.FLAGS):
        return joined(split(text))
    if kind is Kind.FACTOR:
        return f"{float(text):g}"
    if kind is Kind.MODE:
        return text.lower()
    if kind is Kind.SECONDS:
        return str(time_seconds(text))
    if kind is Kind.TIME:
        return time_text(time_seconds(text)) if text else NONE
    return text or NONE


def differences(wanted: Iterable[Qos], present: Mapping[str, Qos]) -> list[Difference]:
    """Returns every value of the settings that slurmdbd does not have, QoS by QoS."""
    found = []
    for qos in wanted:
        there = present.get(qos.name)
        for (key, tres), value in qos.values.items():
            has = None if there is None else there.values.get((key, tres), NONE)
            if has != value:
                found.append(Difference(qos.name, key, tres, value, has))
    return found


@dataclass(frozen=True, slots=True)
class Compared:
    """One line of settings beside slurmdbd: None where the settings name no value, or slurmdbd has no such QoS."""

    qos: str
    field: str
    tres: str
    settings: str | None
    slurmdbd: str | None

    @property
    def differs(self) -> bool:
        return self.settings is not None and self.settings != self.slurmdbd


# What a QoS has in slurmdbd when nobody has set it; GraceTime and Priority are numbers without NONE.
_UNSET = {"priority": "0", "grace_time_s": "0", "usage_factor": "1", "preempt_mode": "cluster"}


def compare(wanted: Iterable[Qos], present: Mapping[str, Qos]) -> list[Compared]:
    """Returns every value that the settings name or that is set in slurmdbd, by QoS; the QoS of the settings first."""
    settings = {qos.name: qos.values for qos in wanted}
    rows = []
    for name in dict.fromkeys([*settings, *present]):
        want = settings.get(name, {})
        have = present[name].values if name in present else {}
        given = {at for at, value in have.items() if value not in ("", NONE, _UNSET.get(at[0]))}
        for entry in FIELDS:
            for key, tres in sorted(at for at in given | set(want) if at[0] == entry.key):
                there = have.get((key, tres), NONE) if name in present else None
                rows.append(Compared(name, entry.option, tres, want.get((key, tres)), there))
    return rows


def graced(wanted: Iterable[Qos]) -> list[str]:
    """Returns the QoS whose jobs others of `wanted` may preempt after a grace time, and that are requeued then."""
    qos = list(wanted)
    preempted = {name for each in qos for name in each.preempts}
    return [
        each.name
        for each in qos
        if each.name in preempted
        and each.values.get(("grace_time_s", ""), "0") != "0"
        and each.values.get(("preempt_mode", ""), "cluster") != "cancel"
    ]


def check_circles(wanted: Iterable[Qos], present: Mapping[str, Qos], path: str) -> None:
    """Raises NodeError for QoS that preempt each other in a circle, which slurmdbd refuses."""
    preempts = {name: qos.preempts for name, qos in present.items()}
    preempts |= {qos.name: qos.preempts for qos in wanted if ("preempt", "") in qos.values}
    for name in preempts:
        circle = _circle(preempts, name)
        if circle:
            raise NodeError(f"{path}: QoS preempt each other in a circle: {' -> '.join(circle)}")


def check_names(wanted: Iterable[Qos], present: Mapping[str, Qos], path: str) -> None:
    """Raises NodeError for a QoS that is to be preempted and is neither in the settings nor in slurmdbd."""
    wanted = tuple(wanted)
    known = {qos.name for qos in wanted} | present.keys()
    for qos in wanted:
        unknown = [name for name in qos.preempts if name not in known]
        if unknown:
            raise NodeError(
                f"{path}, table [qos.{qos.name}]: slurmdbd has no QoS '{unknown[0]}' to preempt; add [qos.{unknown[0]}]"
            )


def _circle(preempts: Mapping[str, Sequence[str]], start: str) -> tuple[str, ...]:
    """Returns a circle of QoS from `start` over those that each preempts back to it, empty when there is none."""
    ways: dict[str, tuple[str, ...]] = {start: (start,)}
    left = [start]
    while left:
        name = left.pop()
        for other in preempts.get(name, ()):
            if other == start:
                return (*ways[name], start)
            if other not in ways:
                ways[other] = (*ways[name], other)
                left.append(other)
    return ()


def plan(wanted: Sequence[Qos], present: Mapping[str, Qos]) -> list[Command]:
    """Returns the words of each sacctmgr command, in order. After them slurmdbd, as it was read, differs in nothing.

    QoS are made before one is named by Preempt. What a Preempt list loses it loses before another gains anything, so
    that no moment in between has a circle. Lists are always written whole: slurmdbd 22.05 keeps a wrong list in memory
    after `Preempt+=` and `Preempt-=` (docs/adr/027).
    """
    differing = differences(wanted, present)
    commands: list[Command] = []
    for qos in wanted:
        words = _words([d for d in differing if d.qos == qos.name and d.key != "preempt"])
        if qos.name not in present:
            commands.append(("add", "qos", f"name={qos.name}", *words))
        elif words:
            commands.append(_modify(qos.name, *words))
    preempt = [d for d in differing if d.key == "preempt"]
    for d in preempt:
        before = split(d.present or "")
        kept = [name for name in before if name in split(d.wanted)]
        if len(kept) < len(before):
            commands.append(_modify(d.qos, f"Preempt={joined(kept)}"))
    gaining = (d for d in preempt if set(split(d.wanted)) - set(split(d.present or "")))
    return [*commands, *(_modify(d.qos, f"Preempt={d.wanted}") for d in gaining)]


def _modify(name: str, *words: str) -> Command:
    return ("modify", "qos", "where", f"name={name}", "set", *words)


def _words(differing: Iterable[Difference]) -> list[str]:
    """Returns `Option=value` of each field; the TRES of one limit are one word. -1 is how sacctmgr spells no limit."""
    words: dict[str, list[str]] = {}
    for d in differing:
        if d.present is None and d.wanted in (NONE, ""):
            continue  # a new QoS has no limits
        amount = "-1" if d.wanted == NONE or (not d.wanted and d.key == "flags") else d.wanted
        words.setdefault(BY_KEY[d.key].option, []).append(f"{d.tres}={amount}" if d.tres else amount)
    return [f"{option}={','.join(values)}" for option, values in words.items()]


def line(command: Command) -> str:
    """Returns a command as a shell takes it."""
    return shlex.join(("sacctmgr", "--immediate", *command))
