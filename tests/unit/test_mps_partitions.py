# SPDX-License-Identifier: Apache-2.0
"""mode=mps with a driver that has static SM partitions: each job of a daemon has multiprocessors of its own.

The daemon is the simulated one: no hardware at hand has such a driver (docs/adr/087)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mps_testbed import OTHER_UID, PROGRAM, MpsNode
from node_testbed import UID, UUIDS

from hami_hpc.node import admin_log, mps, mps_daemon, mps_partitions
from hami_hpc.node.mps_daemon import Place
from hami_hpc.stages.reconcile import reconcile

REFUSED = "Failed to fulfill the requested SM partition"


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    mps_node.set_driver()
    return mps_node


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What syslog is told."""
    said: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, text: said.append(text))
    return said


def start(node: MpsNode, job: int, cores: int, uid: int = UID, **more: str) -> int:
    return node.mps_prolog(job, uid, mem_mib=1024, HAMI_HPC_CORES=str(cores), **more)


def chunks(node: MpsNode, place: Place | None = None) -> dict[int, int]:
    """Returns the chunks of each job, as the daemon lists them."""
    place = place or node.place()
    seen = mps_partitions.listing(str(PROGRAM), place)
    assert seen is not None
    jobs = mps.members(place)
    assert seen.partitions.keys() == {mps_partitions.id_of(job) for job in jobs}
    assert all(job.partition.startswith("GPU-") for job in jobs)
    return {job.job_id: seen.partitions[mps_partitions.id_of(job)] for job in jobs}


def is_dynamic(node: MpsNode, *jobs: int) -> bool:
    """Returns whether the user's daemon has percentages, and no job a partition."""
    node.assert_one_daemon(*jobs)
    assert {job.partition for job in mps.members(node.place())} == {""}
    return not mps_daemon.is_static(node.place()) and mps_partitions.listing(str(PROGRAM), node.place()) is None


def end(node: MpsNode, *jobs: int, uid: int = UID) -> None:
    for job in jobs:
        assert node.mps_epilog(job, uid) == 0
    node.assert_nothing_is_held()
    node.assert_no_mps()


def ask(node: MpsNode, command: str) -> str:
    return mps_daemon.ask(str(PROGRAM), node.place(), command)


def done(node: MpsNode, *running: int) -> list[str]:
    """Reconciles. Returns what was done about daemons; nothing may fail."""
    results = reconcile(node.settings, lambda: frozenset(running), dry_run=False)
    assert [result.error for result in results if result.error] == []
    return [result.action.text for result in results if result.action.kind.value == "daemon"]


def test_each_job_has_a_partition_that_ends_with_it(node: MpsNode) -> None:
    assert start(node, 7, 50) == 0
    node.assert_one_daemon(7)
    assert chunks(node) == {7: 8}, "7.5 of 15 chunks, and no other job's suffer for it"
    assert start(node, 8, 50) == 0
    assert chunks(node) == {7: 8, 8: 7}
    assert start(node, 7, 50) == 0, "a prolog that runs again"
    assert chunks(node) == {7: 8, 8: 7}
    assert node.mps_epilog(7) == 0
    assert chunks(node) == {8: 7}
    end(node, 8)


def test_the_memory_limit_is_the_daemons_and_no_percentage_is(node: MpsNode) -> None:
    """NVIDIA says that percentages do not apply there."""
    assert start(node, 7, 50) == 0
    assert ask(node, "get_default_device_pinned_mem_limit 0") == "1024M"
    assert ask(node, "get_default_active_thread_percentage") == "100.0"
    ask(node, f"start_server -uid {UID}")
    assert node.mps_prolog(8, mem_mib=2048, HAMI_HPC_CORES="25") == 0
    assert ask(node, "get_default_device_pinned_mem_limit 0") == "2048M"
    assert "set_active_thread" not in (Path(node.place().log) / "control.log").read_text()
    end(node, 7, 8)


def test_four_quarters_fit_and_each_user_and_gpu_has_chunks_of_its_own(node: MpsNode) -> None:
    for job in (1, 2, 3, 4):
        assert start(node, job, 25) == 0
    assert chunks(node) == {1: 4, 2: 4, 3: 4, 4: 3}
    assert start(node, 5, 60, OTHER_UID) == 0
    assert start(node, 6, 60, gpu="1") == 0
    assert chunks(node, node.place(OTHER_UID)) == {5: 9}
    assert chunks(node, node.place(gpu=1)) == {6: 9}
    for job, uid in ((1, UID), (2, UID), (3, UID), (4, UID), (5, OTHER_UID), (6, UID)):
        assert node.mps_epilog(job, uid) == 0
    node.assert_no_mps()


def test_one_daemon_for_all_users_has_all_their_partitions(node: MpsNode) -> None:
    node.write_settings(multi_user=True)
    assert start(node, 7, 50) == 0
    assert start(node, 8, 20, OTHER_UID) == 0
    assert chunks(node, node.place(multi_user=True)) == {7: 8, 8: 3}
    assert (node.mps_epilog(7), node.mps_epilog(8, OTHER_UID)) == (0, 0)
    node.assert_no_mps()


@pytest.mark.parametrize("refused_by", ["the program", "the settings"])
def test_without_partitions_jobs_have_percentages_as_before(node: MpsNode, lines: list[str], refused_by: str) -> None:
    if refused_by == "the program":
        (node.root.parent / "sim" / "mps-static").unlink()
    else:
        node.write_settings(more='static_partitions = "never"')
    assert start(node, 7, 50) == 0
    assert is_dynamic(node, 7)
    assert ask(node, "get_default_active_thread_percentage") == "50.0"
    why = mps_partitions.why_not(str(PROGRAM), node.settings.run_dir)
    assert ("does not start a daemon with -S: Unrecognized option" in why) == (refused_by == "the program")
    end(node, 7)
    assert [line for line in lines if "partition" in line] == []


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("start-static hang", "did not start within"),
        ("start-static die", "ended with status"),
        ("lspart hang", "does not answer 'lspart'"),
        ("lspart die", "cannot be asked 'lspart'"),
        ("sm_partition refuse", REFUSED),
        ("sm_partition hang", "does not answer 'sm_partition add"),
    ],
)
def test_where_partitions_do_not_work_the_first_job_has_percentages_and_so_have_later_ones(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, lines: list[str], fault: str, why: str
) -> None:
    monkeypatch.setattr(mps_daemon, "STATIC_ANSWER_S", 0.7)
    monkeypatch.setattr(mps_daemon, "START_S", 2.0)
    node.fault(fault)
    assert start(node, 7, 50) == 0
    node.fault()
    assert is_dynamic(node, 7)
    told = [line for line in lines if "job 7: jobs with mode=mps have percentages" in line and why in line]
    assert len(told) == (not fault.startswith("start")), "a program that does not start with -S is nothing to tell"
    assert why in mps_partitions.why_not(str(PROGRAM), node.settings.run_dir)
    end(node, 7)
    assert start(node, 8, 50) == 0
    assert is_dynamic(node, 8), "it was found out in this boot, and is not tried again"
    end(node, 8)


def test_after_a_daemon_that_died_over_a_partition_the_next_ones_try_again_three_in_a_boot(
    node: MpsNode, lines: list[str]
) -> None:
    """The job has percentages at once; the daemon of the next one has partitions, unless they died three times."""
    for number in range(1, mps_partitions.DEATHS_MOST + 1):
        node.fault("sm_partition die")
        assert start(node, number, 50) == 0
        node.fault()
        assert is_dynamic(node, number)
        assert (
            sum("have percentages" in line and "cannot be asked 'sm_partition add" in line for line in lines) == number
        )
        end(node, number)
        if number < mps_partitions.DEATHS_MOST:
            assert start(node, 10 + number, 50) == 0
            assert mps_daemon.is_static(node.place()), "the daemon works again"
            end(node, 10 + number)
    assert "times: 3: " in mps_partitions.why_not(str(PROGRAM), node.settings.run_dir)
    assert start(node, 20, 50) == 0
    assert is_dynamic(node, 20)
    end(node, 20)


def test_a_gpu_without_chunks_has_percentages(node: MpsNode) -> None:
    node.set_driver(chunks=0)
    assert start(node, 7, 50) == 0
    assert is_dynamic(node, 7)
    end(node, 7)


def test_an_updated_program_is_asked_again(node: MpsNode, tmp_path: Path) -> None:
    (folder := tmp_path / "bin").mkdir(mode=0o755)
    for name in (PROGRAM.name, PROGRAM.name.replace("control", "server")):
        shutil.copy(PROGRAM.parent / name, folder / name)
    program = folder / PROGRAM.name
    node.write_settings(program=program)
    (node.root.parent / "sim" / "mps-static").unlink()
    assert start(node, 7, 50) == 0
    assert mps_partitions.why_not(str(program), node.settings.run_dir)
    end(node, 7)
    node.set_driver()
    os.utime(program, ns=(1, 1))
    assert mps_partitions.why_not(str(program), node.settings.run_dir) == ""
    assert start(node, 8, 50) == 0
    assert mps_daemon.is_static(node.place())
    end(node, 8)


def test_a_damaged_note_of_that_counts_for_nothing(node: MpsNode) -> None:
    note = Path(node.settings.run_dir) / "mps-no-partitions"
    for content in (b"", b"\xff\xfe", b"\n\n", b"/other 1 2 3\nreason\n"):
        note.write_bytes(content)
        assert mps_partitions.why_not(str(PROGRAM), node.settings.run_dir) == ""
    assert mps_partitions.why_not("/nowhere", node.settings.run_dir) == ""
    mps_partitions.note_why_not(str(PROGRAM), node.settings.run_dir, "")
    assert mps_partitions.why_not(str(PROGRAM), node.settings.run_dir) == "the reason is lost"


def test_small_jobs_that_took_all_chunks_send_the_next_one_back(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has one chunk at least, so that jobs of few cores can use up what others would need."""
    sent_back: list[int] = []

    def requeue(_environment: object, job: int, _reason: str) -> bool:
        sent_back.append(job)
        return True

    monkeypatch.setattr("hami_hpc.stages.send_back.requeue", requeue)
    node.set_driver(chunks=4)
    for job in (1, 2, 3):
        assert start(node, job, 5) == 0
    assert start(node, 4, 60) == 0, "the node stays in service"
    assert sent_back == [4]
    assert 4 not in node.grants()
    assert chunks(node) == {1: 1, 2: 1, 3: 1}
    said = capsys.readouterr().err
    assert "job 4 needs 2 of the 4 chunks of multiprocessors" in said
    assert "leave 1: each has one at least. A batch job is requeued if it may be. It was requeued" in said
    assert mps_partitions.why_not(str(PROGRAM), node.settings.run_dir) == "", "partitions work"
    assert node.mps_epilog(3) == 0
    assert start(node, 4, 60) == 0
    assert chunks(node) == {1: 1, 2: 1, 4: 2}
    end(node, 1, 2, 4)


def test_a_daemon_that_refuses_beside_others_sends_the_job_back_and_the_others_go_on(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NVIDIA documents for one version that no partition is made while clients are there."""
    monkeypatch.setattr("hami_hpc.stages.send_back.requeue", lambda *_: True)
    assert start(node, 7, 50) == 0
    pid = node.pid()
    node.fault("sm_partition refuse")
    assert start(node, 8, 25) == 0
    assert "job 8 gets no multiprocessors of its own: 'sm_partition add' of" in capsys.readouterr().err
    assert 8 not in node.grants()
    assert (node.pid(), chunks(node)) == (pid, {7: 8})
    end(node, 7, 8)
    assert start(node, 8, 25) == 0
    assert is_dynamic(node, 8), "with the next daemon there are percentages"
    end(node, 8)


def test_a_daemon_that_hangs_over_a_partition_sends_the_job_back_and_is_replaced_by_the_next_prolog(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_hpc.stages.send_back.requeue", lambda *_: True)
    monkeypatch.setattr(mps_daemon, "STATIC_ANSWER_S", 0.7)
    monkeypatch.setattr(mps_daemon, "ANSWER_S", 0.7)
    assert start(node, 7, 50) == 0
    node.fault("sm_partition hang")
    assert start(node, 8, 25) == 0, "the node stays in service"
    assert node.grants().keys() == {7}
    node.fault()
    assert start(node, 8, 25) == 0
    assert is_dynamic(node, 7, 8)
    end(node, 7, 8)


def test_a_partition_of_nobody_is_removed_by_whoever_comes_next(node: MpsNode) -> None:
    """A prolog was killed after it was made; or a user made one, if the driver lets them."""
    assert start(node, 7, 25) == 0
    text = f"MPS daemon of {node.place().pipe}: its SM partitions are not those of its jobs; they are made to agree"
    acts: tuple[Callable[[], bool], ...] = (
        lambda: start(node, 8, 25) == 0,
        lambda: node.mps_epilog(8) == 0,
        lambda: done(node, 7) == [text],
    )
    for act in acts:
        ask(node, f"sm_partition add {UUIDS[0]} 5")
        assert act()
        assert set(chunks(node).values()) == {4}
    assert done(node, 7) == []
    end(node, 7)


def test_reconcile_makes_a_partition_again_that_was_removed(node: MpsNode) -> None:
    assert start(node, 7, 50) == 0
    [old] = [mps_partitions.id_of(job) for job in mps.members(node.place())]
    ask(node, f"sm_partition rm {UUIDS[0]} {old}")
    assert len(done(node, 7)) == 1
    assert chunks(node) == {7: 8}
    assert done(node, 7) == []
    end(node, 7)


@pytest.mark.parametrize("by", ["a prolog", "reconcile", "restart"])
def test_with_a_daemon_that_was_replaced_all_jobs_have_their_chunks_again(node: MpsNode, by: str) -> None:
    for job, cores in ((1, 25), (2, 25), (3, 45)):
        assert start(node, job, cores) == 0
    before = chunks(node)
    os.kill(node.pid(), signal.SIGKILL)
    if by == "a prolog":
        assert start(node, 4, 5) == 0
    elif by == "reconcile":
        assert [text for text in done(node, 1, 2, 3) if "is replaced" in text]
    else:
        mps.restart(str(PROGRAM), node.place(), UUIDS[0], static=True)
    after = chunks(node)
    assert {job: after[job] for job in before} == before
    end(node, 1, 2, 3, *([4] if by == "a prolog" else []))


def test_a_daemon_keeps_its_way_until_its_last_job_whatever_the_settings_say(node: MpsNode) -> None:
    node.write_settings(more='static_partitions = "never"')
    assert start(node, 7, 50) == 0
    node.write_settings()
    assert start(node, 8, 25) == 0
    assert is_dynamic(node, 7, 8), "as after an update of hami_hpc"
    end(node, 7, 8)
    assert start(node, 7, 50) == 0
    node.write_settings(more='static_partitions = "never"')
    assert start(node, 8, 25) == 0
    assert chunks(node) == {7: 8, 8: 4}
    os.kill(node.pid(), signal.SIGKILL)
    assert start(node, 8, 25) == 0
    assert is_dynamic(node, 7, 8), "a new daemon is as the settings say, and nobody is given a partition of the old one"
    end(node, 7, 8)


def test_a_partition_in_use_at_the_epilog_is_removed_later(node: MpsNode) -> None:
    assert (start(node, 7, 25), start(node, 8, 25)) == (0, 0)
    with connected(node, 7) as holder:
        assert node.mps_epilog(7) == 0
        seen = mps_partitions.listing(str(PROGRAM), node.place())
        assert seen is not None
        assert len(seen.partitions) == 2, "its process still runs: slurmd ends processes before the epilog"
        holder.kill()
        holder.wait()
    assert len(done(node, 8)) == 1
    assert chunks(node) == {8: 4}
    end(node, 8)


@contextmanager
def connected(node: MpsNode, job: int) -> Iterator[subprocess.Popen[str]]:
    """Keeps a partition in use, by what a client says to the daemon (native/sim/mps/mps.h)."""
    [partition] = [one.partition for one in mps.members(node.place()) if one.job_id == job]
    script = (
        "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1] + '/control')\n"
        "s.send(('CLIENT ' + sys.argv[2] + '\\n').encode())\nprint(s.recv(99), flush=True)\ntime.sleep(60)\n"
    )
    command = ["/usr/bin/python3", "-c", script, node.place().pipe, partition]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=UID, group=UID, extra_groups=[]) as process:
        assert process.stdout is not None
        assert "SERVER" in process.stdout.readline()
        yield process
        process.kill()


def test_a_full_disk_while_a_partition_is_noted_leaves_none(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(node, 7, 25) == 0
    genuine = mps._write

    def fail(place: Place, path: str, text: str) -> None:
        if "/partition-8-" in path:
            raise OSError(28, "No space left on device", path)
        genuine(place, path, text)

    with monkeypatch.context() as patch:
        patch.setattr(mps, "_write", fail)
        assert start(node, 8, 25) == 1
    assert start(node, 8, 25) == 0
    assert chunks(node) == {7: 4, 8: 4}
    end(node, 7, 8)
