# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog tell the administrator: whole lines in slurmd.log and syslog, and whole events."""

from __future__ import annotations

import os
import shutil
import subprocess
import syslog as syslog_module
import time
from pathlib import Path

import pytest
from agent_states import make_state
from node_testbed import ROOT, UID, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.out_of_service import DrainedGpu
from hami_hpc.errors import JobError, NodeError
from hami_hpc.isolation import share, table
from hami_hpc.node import admin_log, agent_file, drain, drained_gpus, ended_dirs, job_dirs, usage_spool
from hami_hpc.node.event_reader import EventReader
from hami_hpc.stages import common, epilog, no_room, out_of_service, prolog, reconcile

Syslog = list[tuple[int, str]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def watched(node: Node) -> Node:
    """The node, whose settings say that an agent watches it."""
    node.config.write_text(node.config.read_text() + "[agent]\n")
    return node


@pytest.fixture
def syslog(monkeypatch: pytest.MonkeyPatch) -> Syslog:
    lines: Syslog = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda level, line: lines.append((level, line)))
    return lines


def fail(*_arguments: object) -> str:
    raise NodeError("no space")


def bug(*_arguments: object) -> str:
    raise ZeroDivisionError("x")


def events_of(node: Node) -> list[dict[str, object]]:
    """The node's events, without their times."""
    found = [dict(line.event) for line in EventReader(node.settings.state_dir).read() if line.event is not None]
    for event in found:
        assert abs(int(event.pop("time_unix_ns")) - time.time_ns()) < 600 * 10**9
    return found


def test_a_grant_and_its_end_are_events_with_all_that_accounting_and_hooks_need(node: Node) -> None:
    node.prolog(7, mem_mib=4096)
    grant = node.grants()[7]
    node.write_usage(7, peak_bytes=5)
    node.epilog(7)
    record = node.record()
    begin, end = events_of(node)
    assert begin == {
        "kind": "grant",
        "source": "prolog",
        "text": "job 7 has 4096 MiB and 50 % of GPU 0",
        "job_id": 7,
        "uid": UID,
        "gpu_uuid": UUIDS[0],
        "start_unix_ns": grant.created_unix_ns,
        "mem_mib": 4096,
        "cores": 50,
        "policy": grant.policy,
        "class": "std",
    }
    fields = {name: record[name] for name in epilog.EVENT_FIELDS}
    assert end == fields | {"kind": "grant_end", "source": "epilog", "text": "job 7 has ended on GPU 0"}


def test_what_an_epilog_ends_for_an_earlier_one_is_an_event_of_an_epilog(node: Node) -> None:
    node.prolog(7)
    ended_dirs.set_aside(node.settings.run_dir, node.grants()[7])
    node.epilog(8)
    assert [(event["kind"], event["source"], event["job_id"]) for event in events_of(node)[1:]] == [
        ("grant_end", "epilog", 7)
    ]


@pytest.mark.parametrize("is_requeued", [True, False])
def test_a_refused_job_is_an_event_and_a_line_that_say_what_became_of_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_requeued: bool
) -> None:
    drained_gpus.write(node.settings.state_dir, (DrainedGpu(UUIDS[0], 0, 0, "fan", 1),))
    asked: list[object] = []

    def send_back(*arguments: object) -> bool:
        asked.append(arguments)
        return is_requeued

    monkeypatch.setattr(out_of_service, "send_back", send_back)
    assert node.prolog(7) == 0
    text = (
        f"job 7 was given GPU 0 ({UUIDS[0]}), which is out of service: fan. "
        "A batch job is requeued if it may be; submit any other again"
    )
    outcome = "It was requeued" if is_requeued else "Its steps will be refused"
    assert capsys.readouterr().err == f"{c.ERROR_PREFIX}prolog: {text}. {outcome}\n"
    action = "requeued" if is_requeued else "steps refused"
    (event,) = events_of(node)
    assert event == {"kind": "refused", "source": "prolog", "job_id": 7, "action": action, "text": text}
    assert asked == [(node.settings, job_environment(7), 7)]


@pytest.mark.parametrize("is_requeued", [True, False])
def test_a_job_for_which_its_gpu_has_no_place_is_sent_back_with_the_reason_and_holds_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_requeued: bool
) -> None:
    asked: list[object] = []

    def no_place(*_arguments: object) -> None:
        raise JobError("its GPU has no place", "E_MIG_NO_ROOM")

    def send_back(*arguments: object) -> bool:
        asked.append(arguments)
        return is_requeued

    monkeypatch.setattr(share, "prepare", no_place)
    monkeypatch.setattr(no_room, "send_back", send_back)
    assert node.prolog(7) == 0
    outcome = "It was requeued" if is_requeued else "Its steps will be refused"
    assert capsys.readouterr().err == f"{c.ERROR_PREFIX}prolog: its GPU has no place. {outcome}\n"
    action = "requeued" if is_requeued else "steps refused"
    assert events_of(node) == [
        {"kind": "refused", "source": "prolog", "job_id": 7, "action": action, "text": "its GPU has no place"}
    ]
    assert asked == [(node.settings, job_environment(7), 7, "its GPU has no place")]
    assert node.grants() == {}


def test_a_last_run_that_cannot_be_ended_is_told_and_the_job_runs(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.prolog(7)
    old = node.grants()[7]
    ended: list[tuple[object, ...]] = []

    def end_grants(*arguments: object) -> str:
        ended.append(arguments)
        raise NodeError("no space")

    monkeypatch.setattr(epilog, "end_grants", end_grants)
    assert node.prolog(7, gpu="1") == 0
    assert capsys.readouterr().err == f"{c.ERROR_PREFIX}prolog: last run of job 7: no space. Run hami-hpc reconcile\n"
    ((settings, _ledger, grants, end_unix_ns),) = ended
    assert (settings, grants) == (node.settings, (old,))
    assert old.created_unix_ns < int(str(end_unix_ns)) <= time.time_ns()
    assert node.grants()[7].gpu_uuid == UUIDS[1]


def test_a_job_that_is_refused_for_its_own_fault_is_not_requeued(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_service, "send_back", bug)
    assert node.prolog(7, gpu="0,1") == 0
    assert events_of(node)[0]["action"] == "steps refused"


@pytest.mark.parametrize(("job", "noted"), [("7", 7), ("x", 0), (None, 0)])
def test_a_stage_that_fails_is_an_event_with_its_line(node: Node, job: str | None, noted: int) -> None:
    environment = {} if job is None else {"SLURM_JOB_ID": job}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drain, "drain_node", lambda *_arguments: None)
        assert common.run("prolog", node.arguments, environment, fail) == 1  # type: ignore[arg-type]
        assert common.run("prolog", ["--config", "/none"], environment, fail) == 1  # type: ignore[arg-type]
    (event,) = events_of(node)
    line = f"{c.ERROR_PREFIX}prolog: no space"
    assert event == {"kind": "node_drain", "source": "prolog", "job_id": noted, "text": line}


def test_a_mode_that_this_version_lacks_fails_the_prolog_with_the_file_that_offers_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.config.write_text(node.config.read_text() + '[vgpu]\nmodes = ["share", "mps", "mig"]\n')
    monkeypatch.setattr(table, "BACKENDS", {"share": share})
    assert node.prolog(7) == 1
    line = (
        f"{c.ERROR_PREFIX}prolog: {node.config}: modes offers mps, mig, but this version supports only share. "
        "Remove it from modes in [vgpu], then run hami-hpc render"
    )
    assert capsys.readouterr().err == f"{line}\n"
    assert events_of(node) == [{"kind": "node_drain", "source": "prolog", "job_id": 7, "text": line}]


def test_an_epilog_that_does_not_know_its_job_fails_and_is_an_event(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert epilog.main(node.arguments, {"SLURM_JOB_ID": "x"}) == 1
    line = capsys.readouterr().err.rstrip("\n")
    assert line.startswith(f"{c.ERROR_PREFIX}epilog: SLURM_JOB_ID is 'x'")
    assert events_of(node) == [{"kind": "node_drain", "source": "epilog", "job_id": 0, "text": line}]


def test_a_prolog_beside_an_agent_that_has_not_looked_yet_or_for_a_while_says_so(watched: Node, syslog: Syslog) -> None:
    def lines() -> list[str]:
        prolog.warn_of_silent_agent(watched.settings)
        found = [line for level, line in syslog if level == admin_log.WARNING]
        syslog.clear()
        return found

    advice = "jobs are limited, but nobody finds who evades the limits. See systemctl status hami-hpc-agent"
    assert lines() == [f"prolog: the agent has not looked in this boot: {advice}"]
    for silent_s, said in ((prolog.AGENT_SILENT_S, 0), (prolog.AGENT_SILENT_S + 1, 1), (0, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agent_file, "seconds_silent", lambda run_dir, s=silent_s: (run_dir, s)[1])
            assert lines() == [f"prolog: the agent has not looked for {silent_s} s: {advice}"] * said
    agent_file.make_folder(watched.settings.run_dir)
    agent_file.write(watched.settings.run_dir, make_state())
    assert lines() == []


def test_a_job_with_whole_gpus_that_cannot_be_noted_runs_and_a_line_says_why(
    watched: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_dirs, "prepare", fail)
    told = f"{c.ERROR_PREFIX}prolog: job 7 with whole GPUs will have no usage record: no space\n"
    assert prolog.main(watched.arguments, {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "5", "SLURM_JOB_GPUS": "0"}) == 0
    assert capsys.readouterr().err == told
    assert not prolog.note_gpus(watched.settings, {"SLURM_JOB_UID": "5", "SLURM_JOB_GPUS": "0"})
    assert "prolog: job ? with whole GPUs" in capsys.readouterr().err


def test_a_record_that_the_spool_does_not_take_is_told_with_where_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.prolog(7)
    monkeypatch.setattr(usage_spool, "write", fail)
    node.epilog(7)
    waiting = usage_spool.waiting_dir(node.settings.run_dir)
    advice = "Free some space there (df), then run hami-hpc reconcile"
    assert capsys.readouterr().err == (f"{c.ERROR_PREFIX}epilog: no space; the record waits in {waiting}. {advice}\n")
    record = {"job_id": 8, "start_unix_ns": 5, "history": "0:1,1"}
    monkeypatch.setattr(usage_spool, "keep", lambda *_arguments: False)
    assert common.store_record(node.settings, record) == ""  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        f"{c.ERROR_PREFIX}epilog: no space; too many records wait, so this one is only in this message: "
        f'{{"job_id":8,"start_unix_ns":5,"history":""}}. {advice}\n'
    )


def test_an_epilog_that_can_finish_nothing_says_why_and_who_will(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.prolog(7)
    with monkeypatch.context() as patch:
        patch.setattr(common, "open_ledger", fail)
        patch.setattr(usage_spool, "write", fail)
        patch.setattr(usage_spool, "keep", fail)
        epilog.epilog(node.settings, 7, had_vgpu=True)
    assert capsys.readouterr().err == (
        f"{c.ERROR_PREFIX}epilog: job 7: no space\n"
        f"{c.ERROR_PREFIX}epilog: job 7: no space. hami-hpc reconcile will finish this\n"
    )
    assert [name.startswith(f"{job_dirs.ENDED}7-") for name in node.names()] == [True]


def test_jobs_that_could_not_be_told_of_their_neighbours_are_a_warning(
    node: Node, monkeypatch: pytest.MonkeyPatch, syslog: Syslog
) -> None:
    from hami_hpc.node import neighbours

    monkeypatch.setattr(neighbours, "update", fail)
    common.tell_neighbours("epilog", node.settings, None)  # type: ignore[arg-type]
    assert syslog == [(admin_log.WARNING, "epilog: jobs were not told who is on their GPUs: no space")]
    monkeypatch.setattr(neighbours, "update", lambda *_arguments: ("one", "two"))
    common.tell_neighbours("prolog", node.settings, None)  # type: ignore[arg-type]
    assert syslog[1:] == [(admin_log.WARNING, "prolog: one"), (admin_log.WARNING, "prolog: two")]
    syslog.clear()
    node.prolog(7)
    node.epilog(7)
    reconcile.reconcile(node.settings, frozenset, dry_run=False)
    assert [line for level, line in syslog if level == admin_log.WARNING] == [
        f"{stage}: {text}" for stage in ("prolog", "epilog", "reconcile") for text in ("one", "two")
    ]


def test_a_grant_that_a_bug_keeps_from_its_end_waits_for_an_administrator(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.prolog(7)
    with monkeypatch.context() as patch:
        patch.setattr(usage_spool, "is_spooled", bug)
        assert node.epilog(7) == 0
    reported = capsys.readouterr().err
    assert reported.startswith(f"{c.ERROR_PREFIX}epilog: job 7: unexpected ZeroDivisionError: x (")
    assert reported.endswith(f"; its run directory is now {node.names()[0]}\n")
    assert node.grants() == {}


def test_the_cluster_of_a_record_is_no_longer_than_a_name_can_be() -> None:
    longest = "c" * common.CLUSTER_NAME_MAX
    for name, read in ((longest, longest), (longest + "c", ""), ("a b", ""), ("-._", "")):
        assert common.cluster_name(os.environ | {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": name}) == read
    assert common.cluster_name({"SLURM_JOB_ID": "7"}) == ""


def test_a_slurmd_that_was_stopped_meanwhile_changes_nothing(node: Node) -> None:
    """Nobody reads standard error any more: a refused job is refused, and a record waits for a full disk as ever."""
    reader, unread = os.pipe()
    os.close(reader)

    def run(stage: str, **more: str) -> int:
        command = [str(ROOT / "prolog" / stage), *node.arguments]
        return subprocess.run(
            command, env=job_environment(7) | more, stdout=unread, stderr=unread, check=False
        ).returncode

    assert run("prolog", **{c.ENV_CORES: "900"}) == 0
    assert (node.jobs / "7" / c.FILE_REFUSED).exists()
    assert run("epilog") == 0
    assert run("prolog") == 0
    shutil.rmtree(node.root / "state")
    (node.root / "state").write_text("not a directory")
    assert run("epilog") == 0
    os.close(unread)
    node.assert_nothing_is_held()
    assert len(usage_spool.waiting(node.settings.run_dir)) == 1


def test_bytes_that_are_no_text_stop_no_line_of_syslog(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(syslog_module, "syslog", lambda _level, line: lines.append(line.encode().decode()))
    admin_log.to_syslog(admin_log.WARNING, "a user's \udcff\0 and \u00e9")
    assert lines == [f"{c.ERROR_PREFIX}a user's ?? and \u00e9"]
