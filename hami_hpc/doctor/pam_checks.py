# SPDX-License-Identifier: Apache-2.0
"""Checks whether sessions that pam_slurm_adopt lets into jobs with a slice are limited (docs/adr/101)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hami_hpc.core.finding import Finding, Level
from hami_hpc.doctor.facts import Facts
from hami_hpc.render.spank_paths import pam_module

FOLDER = Path("/etc/pam.d")  # of this node; a test has another
SERVICE = "sshd"
ADOPT, OURS, SYSTEMD = "pam_slurm_adopt.so", "pam_hami_hpc.so", "pam_systemd.so"
MUST = ("required", "requisite")
DEPTH_MAX = 16
_LINE = re.compile(r"-?(\w+)\s+(\[[^\]]*\]|\S+)\s+(\S+)\s*(.*)")
PLACE = f"as the first session line of {FOLDER}/{SERVICE}"


class Line(NamedTuple):
    """One module's line of a service, with those of its includes in their places. `where` is FILE:NUMBER."""

    kind: str
    control: str
    module: str
    arguments: tuple[str, ...]
    where: str

    @property
    def name(self) -> str:
        return Path(self.module).name


def lines_of(name: str, depth: int = 0) -> Iterator[Line]:
    """Yields the lines of a service's file in PAM's order; none where it cannot be read."""
    path = FOLDER / name
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if depth > DEPTH_MAX:
        return
    for number, line in enumerate(text.replace("\\\n", "  ").splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if words.startswith("@include"):
            for other in words.split()[1:]:
                yield from lines_of(other, depth + 1)
        elif (found := _LINE.fullmatch(words)) is not None:
            kind, control, module, rest = found.groups()
            if control in ("include", "substack"):
                yield from (one for one in lines_of(module, depth + 1) if one.kind == kind.lower())
            else:
                yield Line(kind.lower(), control, module, tuple(rest.split()), f"{path}:{number}")


def adopts() -> bool:
    """Returns whether sshd lets users into their jobs."""
    return any(line.name == ADOPT for line in lines_of(SERVICE))


def check_sshd(facts: Facts) -> Iterator[Finding]:
    """Checks the line of hami_hpc's module where sshd lets users in by pam_slurm_adopt; elsewhere there is nothing."""
    if not adopts():
        return
    settings = facts.settings
    wanted = {"run_dir": settings.run_dir, "interposer": settings.interposer, "preload": settings.preload}
    arguments = " ".join(f"{key}={value}" for key, value in wanted.items())
    advice = f"write 'session required {pam_module(settings.interposer)} {arguments}' {PLACE}"
    sessions = [line for line in lines_of(SERVICE) if line.kind == "session"]
    own = next((line for line in sessions if line.name == OURS), None)
    if own is None:
        detail = f"{FOLDER}/{SERVICE} has no {OURS}: sessions of pam_slurm_adopt see the GPU without limits"
        yield Finding(SERVICE, Level.WARN, detail, advice)
    elif own.module.startswith("/") and not Path(own.module).exists():
        detail = f"{own.where}: {own.module} does not exist, so nobody can log in"
        yield Finding(SERVICE, Level.FAIL, detail, f"install hami_hpc again, or {advice}")
    else:
        wrong = _wrong(own, wanted)
        yield (
            Finding(SERVICE, Level.WARN, f"{own.where}: {wrong}", advice)
            if wrong
            else Finding(SERVICE, Level.OK, own.where)
        )
    yield from _check_systemd(sessions, own)


def _check_systemd(sessions: list[Line], own: Line | None) -> Iterator[Finding]:
    """Warns of pam_systemd, wherever it is: it moves the session to a cgroup of logind's, after the account phase."""
    systemd = next((line for line in sessions if line.name == SYSTEMD), None)
    if systemd is None:
        return
    takes = "takes sessions out of their job's cgroup, where that is of version 2"
    limits = "are not limited"
    if own is not None and sessions.index(own) < sessions.index(systemd):
        limits = "can open every GPU, and go on after the job"
    advice = f"take {SYSTEMD} out of {FOLDER}/{SERVICE} and what it includes (SchedMD's page of pam_slurm_adopt)"
    yield Finding(SERVICE, Level.WARN, f"{systemd.where}: pam_systemd {takes}: they {limits}", advice)


def _wrong(own: Line, wanted: dict[str, str]) -> str:
    """Returns by what a session could begin without limits; "" for nothing."""
    if own.control not in MUST:
        return f"{own.control}, so a session begins though its limits cannot be enforced"
    given = dict(argument.partition("=")[::2] for argument in own.arguments)
    others = [f"{key}={given.get(key, '(not there)')}" for key, value in wanted.items() if given.get(key) != value]
    if others:
        return f"{', '.join(others)} is not what the settings have"
    return ""


CHECKS = (("sshd", check_sshd),)
