# SPDX-License-Identifier: Apache-2.0
"""mode=mps without a daemon: what the backend and reconcile ask of hami_hpc.node.mps, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.mounting import unmount_below
from node_testbed import GPU_MIB, UID, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Device
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import admin_log, mps, mps_daemon, nvml
from hami_hpc.node.mps_daemon import Member, MpsError, Place
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main
from hami_hpc.stages.reconcile import reconcile

PROGRAM = "/opt/control"


@dataclass
class Daemons:
    """The node's daemons: jobs by place, and what was asked of them."""

    jobs: dict[Place, dict[str, Member]] = field(default_factory=dict)
    silent: set[Place] = field(default_factory=set)
    asked: list[tuple[object, ...]] = field(default_factory=list)
    lines: tuple[str, ...] = ()
    problem: str = ""

    def hold(self, program: str, place: Place, gpu_uuid: str, member: Member, static: bool) -> tuple[str, ...]:
        assert not static, "the default of the settings"
        self.asked.append(("hold", program, place.user, gpu_uuid, member.job_id))
        if self.problem:
            raise MpsError(self.problem)
        self.jobs.setdefault(place, {})[member.name] = member
        self.silent.discard(place)
        return self.lines

    def repair(self, program: str, place: Place, gpu_uuid: str, static: bool) -> tuple[str, ...]:
        assert not static
        self.asked.append(("repair", program, place.user, gpu_uuid))
        if self.problem:
            raise MpsError(self.problem)
        self.silent.discard(place)
        return ()

    def leave(self, program: str, place: Place, member: Member) -> tuple[str, ...]:
        self.asked.append(("leave", program, place.user, member.job_id))
        if self.problem:
            raise MpsError(self.problem)
        if place not in self.jobs:
            return ()
        self.jobs[place].pop(member.name, None)
        if not self.jobs[place]:
            del self.jobs[place]
        return self.lines

    def keep_only(self, program: str, place: Place, kept: Callable[[], frozenset[str]]) -> None:
        self.asked.append(("keep_only", program, place.user))
        if self.problem:
            raise MpsError(self.problem)
        names = kept()
        self.jobs[place] = {name: job for name, job in self.jobs[place].items() if name in names}
        if not self.jobs[place]:
            del self.jobs[place]


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> Daemons:
    made = Daemons()
    for name in ("hold", "repair", "leave", "keep_only"):
        monkeypatch.setattr(mps, name, getattr(made, name))
    monkeypatch.setattr(mps, "places", lambda _run_dir: tuple(sorted(made.jobs)))
    monkeypatch.setattr(mps, "members", lambda place: tuple(made.jobs.get(place, {}).values()))
    monkeypatch.setattr(mps_daemon, "answers", lambda _program, place: place not in made.silent)
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    return made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node.make(tmp_path / "node")
    write_settings(made, "false")
    yield made
    unmount_below(tmp_path)


def write_settings(node: Node, multi_user: str) -> None:
    base = node.config.read_text().partition("[vgpu]")[0]
    node.config.write_text(
        f'{base}[vgpu]\nmodes = ["share", "mps"]\nmode_failures = 0\n'
        f'[mps]\ncontrol = "{PROGRAM}"\nmulti_user = {multi_user}\n'
    )


def run(node: Node, stage: Callable[..., int], job_id: int, **request: str) -> int:
    environment = job_environment(job_id, **request) | {"SLURM_JOB_CONSTRAINTS": "vgpu_mps"}  # type: ignore[arg-type]
    return stage(node.arguments, environment)


def done(node: Node, *running: int, dry_run: bool = False) -> list[tuple[str, str | None]]:
    results = reconcile(node.settings, lambda: frozenset(running), dry_run)
    return [(r.action.text, r.error) for r in results if r.action.kind.value == "daemon"]


def test_prolog_and_epilog_ask_for_the_users_daemon_of_the_jobs_gpu(node: Node, daemons: Daemons) -> None:
    assert run(node, prolog_main, 7) == 0
    assert daemons.asked == [("hold", PROGRAM, str(UID), UUIDS[0], 7)]
    [place] = daemons.jobs
    assert (place.run_dir, place.gpu_minor) == (node.settings.run_dir, 0)
    [member] = daemons.jobs[place].values()
    grant = node.grants()[7]
    assert member == Member(7, grant.created_unix_ns, 50, 8192)
    assert (node.jobs / "7" / c.FILE_MPS).read_text() == f"1 {place.pipe}\n"
    record = bytearray(backend_of("mps").describe(grant))
    for name, value in (("sequence", 2), ("server_cores", 50)):  # once root has told it of the others on the GPU
        offset, width, _kind = c.LIMITS_FIELDS[name]
        record[offset : offset + width] = value.to_bytes(width, "little")
    assert record == (node.jobs / "7" / c.FILE_JOB_LIMITS).read_bytes()
    assert run(node, epilog_main, 7) == 0
    assert daemons.asked[1:] == [("leave", PROGRAM, str(UID), 7), ("leave", PROGRAM, "all", 7)]
    assert daemons.jobs == {}
    assert node.record()["mode"] == "mps"


def test_one_daemon_for_all_users_has_its_own_place(node: Node, daemons: Daemons) -> None:
    write_settings(node, "true")
    assert run(node, prolog_main, 7) == 0
    assert [place.user for place in daemons.jobs] == ["all"]
    write_settings(node, "false")
    assert done(node, 7) == [], "it has a daemon, though the settings would now give it another"
    assert run(node, epilog_main, 7) == 0
    assert daemons.jobs == {}


def test_jobs_of_mode_share_have_nothing_to_do_with_mps(node: Node, daemons: Daemons) -> None:
    assert node.prolog(7) == 0
    assert node.grants()[7].policy == "cap"
    assert node.epilog(7) == 0
    assert daemons.asked == []


def test_memory_that_does_not_fit_is_refused(node: Node, daemons: Daemons) -> None:
    assert run(node, prolog_main, 7) == 0
    assert run(node, prolog_main, 8, mem_mib=str(GPU_MIB)) == 1
    assert [one[-1] for one in daemons.asked] == [7]


def test_repairs_and_crashes_are_lines_in_syslog(node: Node, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda level, text: lines.append((level, text)))
    daemons.lines = ("it was replaced",)
    assert run(node, prolog_main, 7) == 0
    assert (admin_log.WARNING, "prolog: job 7: it was replaced") in lines
    assert run(node, epilog_main, 7) == 0
    assert (admin_log.WARNING, "epilog: job 7: it was replaced") in lines


def test_a_daemon_that_cannot_be_ended_is_left_to_reconcile_and_the_usage_is_kept(node: Node, daemons: Daemons) -> None:
    assert run(node, prolog_main, 7) == 0
    daemons.problem = "it waits in the driver"
    assert run(node, epilog_main, 7) == 0
    assert node.grants() == {}, "the memory is free"
    assert (node.names(), node.spooled()) == ([], ["7.json"]), "neither waits for the daemon"
    assert daemons.jobs
    daemons.problem = ""
    done(node)
    assert daemons.jobs == {}


def test_reconcile_takes_jobs_that_are_gone_from_their_daemons(node: Node, daemons: Daemons) -> None:
    assert (run(node, prolog_main, 7), run(node, prolog_main, 8)) == (0, 0)
    [place] = daemons.jobs
    daemons.jobs[place]["6-5"] = Member(6, 5, 90, 90)
    [(text, error)] = done(node, 7, 8, dry_run=True)
    assert (text.endswith("job 6 is no longer on this node; its limits follow the others"), error) == (True, None)
    assert len(daemons.jobs[place]) == 3
    assert [error for _text, error in done(node, 7, 8)] == [None]
    assert {member.job_id for member in daemons.jobs[place].values()} == {7, 8}
    assert done(node, 7, 8) == []


def test_reconcile_stops_a_daemon_without_jobs_of_the_ledger(node: Node, daemons: Daemons) -> None:
    place = mps.place_of(node.settings.run_dir, 0, UID, multi_user=False)
    daemons.jobs[place] = {"6-5": Member(6, 5, 90, 90)}
    other = mps.place_of(node.settings.run_dir, 1, UID, multi_user=False)
    daemons.jobs[other] = {}
    texts = [text for text, _error in done(node)]
    assert len(texts) == 2
    assert all("no job needs it; it is stopped" in text for text in texts)
    assert daemons.jobs == {}


def test_reconcile_replaces_a_silent_daemon_and_starts_a_lost_one(node: Node, daemons: Daemons) -> None:
    assert (run(node, prolog_main, 7), run(node, prolog_main, 8, gpu="1")) == (0, 0)
    silent, lost = sorted(daemons.jobs)
    daemons.silent.add(silent)
    del daemons.jobs[lost]
    daemons.asked.clear()
    texts = [text for text, _error in done(node, 7, 8)]
    assert texts == [
        f"MPS daemon of {silent.pipe}: it does not answer and is replaced",
        "job 8: its MPS daemon was lost and is started",
    ]
    assert daemons.asked[0] == ("repair", PROGRAM, str(UID), UUIDS[0])
    assert [one[0::4] for one in daemons.asked[1:]] == [("hold", 8)]
    assert done(node, 7, 8) == []


def test_reconcile_starts_nothing_for_a_job_that_its_prolog_or_epilog_is_at(node: Node, daemons: Daemons) -> None:
    assert run(node, prolog_main, 7) == 0
    daemons.jobs.clear()
    (node.jobs / "7" / c.FILE_MPS).unlink()  # the epilog has released it, and its row is still there
    assert done(node, 7) == []


def test_a_daemon_that_reconcile_starts_while_the_job_ends_does_not_stay(
    node: Node, daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epilog leaves after reconcile has looked, and before it starts the daemon."""
    assert run(node, prolog_main, 7) == 0
    daemons.jobs.clear()

    def hold_late(*words: str) -> tuple[str, ...]:
        (node.jobs / "7" / c.FILE_MPS).unlink()
        return daemons.hold(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(mps, "hold", hold_late)
    assert len(done(node, 7)) == 1
    assert daemons.jobs == {}


def test_reconcile_says_what_it_could_not_do_and_goes_on(node: Node, daemons: Daemons) -> None:
    assert run(node, prolog_main, 7) == 0
    [place] = daemons.jobs
    daemons.silent.add(place)
    daemons.problem = "there is no driver"
    assert done(node, 7) == [(f"MPS daemon of {place.pipe}: it does not answer and is replaced", daemons.problem)]
