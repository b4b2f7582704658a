# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/node/events.py and event_reader.py: what writes and reads a node's events, whatever goes wrong."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from harness.mounting import can_mount
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import ROOT, Node, job_environment

from hami_hpc.core.event_kinds import COMMON, FIELDS, KINDS
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, event_reader, events
from hami_hpc.node.event_reader import CHUNK, EventReader, parse
from hami_hpc.stages.reconcile import reconcile


@pytest.fixture
def syslog(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, text: lines.append(text))
    return lines


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROTATE_BYTES", 4000)
    monkeypatch.setattr(events, "MAX_BYTES", 5000)


def texts(folder: Path) -> list[str]:
    """Returns the texts of all events, oldest first."""
    reader = EventReader(str(folder))
    found: list[str] = []
    while lines := reader.read():
        found += [line.event["text"] for line in lines if line.event is not None]
    return found


def write(folder: Path, text: str, **more: int) -> None:
    events.write(str(folder), "agent", "started", text=text, **more)


def test_a_file_system_without_owners_and_modes_loses_no_event_and_no_descriptor(
    tmp_path: Path, syslog: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", fail)
    monkeypatch.setattr(os, "fchmod", fail)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        events.write(str(tmp_path), "agent", "started", 12345, text=f"event {number}")
    assert texts(tmp_path) == ["event 0", "event 1", "event 2"]
    assert (len(list(Path("/proc/self/fd").iterdir())), syslog) == (opened, [])


@given(st.dictionaries(st.sampled_from(["text", "job_id", "action"]), st.text(max_size=40) | st.integers(0, 2**63 - 1)))
def test_a_line_is_ascii_and_json_reads_it_back(values: dict[str, int | str]) -> None:
    line = events.to_line(values)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == values


def test_bytes_that_are_no_text_become_question_marks_and_long_texts_are_cut() -> None:
    assert json.loads(events.to_line({"text": "a\udc80b"})) == {"text": "a?b"}
    assert len(json.loads(events.to_line({"text": "x" * 10_000}))["text"]) == events.TEXT_MAX
    assert len(events.to_line(dict.fromkeys(FIELDS, "\n" * 10_000))) < 100_000 < CHUNK


def test_the_file_is_roots_and_the_agents_group_may_read_it(tmp_path: Path) -> None:
    os.umask(0o077)
    write(tmp_path, "one")
    status = (tmp_path / events.NAME).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o640, os.getegid())
    events.write(str(tmp_path), "agent", "started", 60, text="two")
    write(tmp_path, "three")
    assert (tmp_path / events.NAME).stat().st_gid == 60
    os.umask(0o022)


def test_the_group_stays_when_a_full_file_is_renamed(tmp_path: Path, small: None) -> None:
    events.write(str(tmp_path), "agent", "started", 60, text="one")
    for number in range(60):
        write(tmp_path, f"event {number}")
    assert [path.stat().st_gid for path in sorted(tmp_path.glob("*.jsonl*"))] == [60, 60]


def test_both_files_together_are_bounded_and_the_newest_events_stay(tmp_path: Path, small: None) -> None:
    for number in range(500):
        write(tmp_path, f"event {number}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [events.NAME, events.OLD, events.LOCK]
    assert all(path.stat().st_size < 5000 for path in tmp_path.iterdir())
    found = texts(tmp_path)
    assert found == [f"event {number}" for number in range(500 - len(found), 500)]


def test_the_bounds_are_those_that_the_documents_say() -> None:
    assert 2 * events.MAX_BYTES <= 16 << 20
    assert events.ROTATE_BYTES < events.MAX_BYTES


def crowd(folder: str, name: int, count: int) -> None:
    events.ROTATE_BYTES, events.MAX_BYTES = 200_000, 400_000
    for number in range(count):
        events.write(folder, "agent", "started", text=f"{name}-{number}")


def test_of_many_writers_at_once_no_event_is_lost_or_mixed_and_one_renames(tmp_path: Path) -> None:
    """3200 events of some 95 bytes: the file is renamed once, and both together hold all of them."""
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        pool.starmap(crowd, [(str(tmp_path), name, 400) for name in range(8)])
    found = texts(tmp_path)
    assert (tmp_path / events.OLD).stat().st_size >= 200_000
    assert sorted(found) == sorted(f"{name}-{number}" for name in range(8) for number in range(400))


def test_a_process_that_waits_with_the_lock_loses_the_right_to_rename_once_another_file_is_there(
    tmp_path: Path, small: None
) -> None:
    """Two that find the file full: the second would rename the new file over the old one."""
    path = str(tmp_path / events.NAME)
    for number in range(40):
        write(tmp_path, f"event {number}")
    late = os.open(path, os.O_RDWR)
    Path(path).rename(f"{path}.1")
    write(tmp_path, "new")
    assert events._rotate(path, late)
    os.close(late)
    assert texts(tmp_path)[-1] == "new"
    assert len(texts(tmp_path)) == 41


def test_a_stopped_process_that_holds_the_lock_keeps_nobody_waiting_and_the_bound_holds(
    tmp_path: Path, small: None, syslog: list[str]
) -> None:
    for number in range(40):
        write(tmp_path, f"event {number}")
    with (tmp_path / events.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for number in range(60):
            write(tmp_path, f"later {number}")
        assert (tmp_path / events.NAME).stat().st_size <= 5000
        assert syslog
        assert all("cannot be written (it is full" in line and "later" in line for line in syslog)
    write(tmp_path, "afterwards")
    assert texts(tmp_path)[-1] == "afterwards"


def test_nobody_who_may_read_the_events_keeps_them_from_being_written(
    tmp_path: Path, small: None, syslog: list[str]
) -> None:
    """By a lock on the file, which takes a descriptor for reading alone."""
    write(tmp_path, "before")
    with (tmp_path / events.NAME).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for number in range(60):
            write(tmp_path, f"event {number}")
    assert syslog == []
    assert texts(tmp_path)[-1] == "event 59"
    assert stat.S_IMODE((tmp_path / events.LOCK).stat().st_mode) == 0o600


def test_half_a_line_of_a_crash_is_no_event_and_spoils_none(tmp_path: Path) -> None:
    write(tmp_path, "before")
    with (tmp_path / events.NAME).open("a") as file:
        file.write('{"time_unix_ns":1,"kind":"star')
    write(tmp_path, "after")
    assert texts(tmp_path) == ["before", "after"]


def test_a_full_disk_loses_the_event_to_syslog_and_the_next_one_is_whole(
    tmp_path: Path, syslog: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "before")
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:20]))
    write(tmp_path, "cut off")
    monkeypatch.setattr(os, "write", real)
    write(tmp_path, "after")
    assert texts(tmp_path) == ["before", "after"]
    (line,) = syslog
    assert "cannot be written (the disk is full)" in line
    assert "cut off" in line


@pytest.mark.parametrize("obstacle", ["file", "link", "pipe", "folder", "others", "uid"])
def test_what_is_in_the_way_fails_nothing_and_is_named_in_syslog(
    tmp_path: Path, syslog: list[str], obstacle: str
) -> None:
    state = tmp_path / "state"
    path = state / events.NAME
    if obstacle == "file":
        state.write_text("")
    else:
        state.mkdir()
    if obstacle == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif obstacle == "pipe":
        os.mkfifo(path)
    elif obstacle == "folder":
        path.mkdir()
    elif obstacle in ("others", "uid"):
        path.write_text("")
        path.chmod(0o666 if obstacle == "others" else 0o640)
        os.chown(path, 65534 if obstacle == "uid" else 0, -1)
    write(state, "lost")
    (line,) = syslog
    assert '"text":"lost"' in line
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_state_directory_is_made(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", "one")
    assert texts(tmp_path / "a" / "b") == ["one"]


def test_a_writer_that_is_killed_at_any_moment_leaves_a_file_that_all_can_use(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.append(sys.argv[1]); from hami_hpc.node import events; "
        "events.ROTATE_BYTES = 20000; events.MAX_BYTES = 40000\n"
        "while True: events.write(sys.argv[2], 'agent', 'started', text='x' * 100)"
    )
    for round_ in range(12):
        with subprocess.Popen([sys.executable, "-c", code, str(ROOT), str(tmp_path)]) as process:
            try:
                process.wait(0.15 + round_ * 0.013)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        write(tmp_path, f"after {round_}")
        assert texts(tmp_path)[-1] == f"after {round_}"


def test_a_reader_goes_on_across_a_rename_and_after_a_restart_without_one_event_twice(
    tmp_path: Path, small: None
) -> None:
    reader, seen = EventReader(str(tmp_path)), []
    for number in range(100):
        write(tmp_path, f"event {number}")
        if number % 7 == 0:
            reader = EventReader(str(tmp_path), reader.position)
            while lines := reader.read():
                seen += [line.text for line in lines]
            assert not reader.missed
    while lines := reader.read():
        seen += [line.text for line in lines]
    assert [json.loads(text)["text"] for text in seen] == [f"event {number}" for number in range(100)]


def test_a_file_that_was_empty_when_it_was_opened_gives_its_events_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer makes the file and then writes to it; a reader may open it in between."""
    Path(events.path_of(str(tmp_path))).touch(0o640)
    open_file = event_reader._open

    def open_before_the_first_event(path: str) -> object:
        file = open_file(path)
        if file is not None:
            write(tmp_path, "first")
        return file

    reader = EventReader(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(event_reader, "_open", open_before_the_first_event)
        assert len(reader.read()) == 1
    assert (reader.read(), reader.missed) == ([], False)


def test_a_reader_whose_file_is_gone_says_so_and_begins_with_the_oldest(tmp_path: Path, small: None) -> None:
    write(tmp_path, "first")
    reader = EventReader(str(tmp_path))
    reader.to_end()
    for number in range(200):
        write(tmp_path, f"event {number}")
    reader = EventReader(str(tmp_path), reader.position)
    lines = reader.read()
    assert reader.missed
    assert lines[0].text == EventReader(str(tmp_path)).read()[0].text


def test_an_inode_that_is_used_again_is_not_taken_for_the_old_file(tmp_path: Path) -> None:
    write(tmp_path, "old" * 20)
    reader = EventReader(str(tmp_path))
    reader.to_end()
    at = reader.position
    assert at is not None
    (tmp_path / events.NAME).write_text("")
    for number in range(20):
        write(tmp_path, f"event {number}")
    assert len(EventReader(str(tmp_path), at).read()) == 20


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"kind": 3, "time_unix_ns": 1}', '{"kind": "grant"}', "[" * 10_000, "\x00"]
)
def test_a_line_that_is_no_event_is_left_out(text: str) -> None:
    assert parse(text) is None


def test_no_line_is_too_long_for_a_reader(tmp_path: Path) -> None:
    (tmp_path / events.NAME).write_text("x" * (2 * CHUNK + 5))
    write(tmp_path, "after")
    assert texts(tmp_path) == ["after"]


def read_all(node: Node) -> list[dict[str, object]]:
    return [line.event for line in EventReader(node.settings.state_dir).read() if line.event is not None]


def test_a_jobs_way_through_the_node_is_events_with_the_fields_of_the_table(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7, mem_mib=4096) == node.epilog(7) == 0
    assert node.prolog(8, gpu="0,1") == 0
    node.prolog(9)
    reconcile(node.settings, lambda: frozenset(), dry_run=False)
    found = read_all(node)
    assert [(one["kind"], one["source"], one.get("job_id")) for one in found[:5]] == [
        ("grant", "prolog", 7),
        ("grant_end", "epilog", 7),
        ("refused", "prolog", 8),
        ("grant", "prolog", 9),
        ("grant_end", "reconcile", 9),
    ]
    assert {(one["kind"], one["source"]) for one in found[5:]} == {("reconciled", "reconcile")}
    for one in found:
        kind = KINDS[str(one["kind"])]
        assert set(one) <= {*COMMON, *kind.fields}
        assert one["source"] in kind.sources
        assert set(COMMON) <= set(one)
    assert (found[0]["mem_mib"], found[0]["class"], found[1]["usage"]) == (4096, "std", "ok")
    assert found[0]["start_unix_ns"] == found[1]["start_unix_ns"]


def test_a_stage_that_fails_is_an_event_too(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    environment = job_environment(7) | {"HAMI_HPC_CLASS": "nosuch"}
    assert node.run("prolog", environment)[0] == 1
    (one,) = read_all(node)
    assert (one["kind"], one["source"], one["job_id"]) == ("node_drain", "prolog", 7)
    assert "class 'nosuch'" in str(one["text"])


@pytest.mark.parametrize("obstacle", ["a file for the directory", "a folder for the file", "a full disk"])
def test_no_job_fails_and_nothing_is_drained_where_events_cannot_be_written(tmp_path: Path, obstacle: str) -> None:
    node = Node.make(tmp_path / "node")
    state = Path(node.settings.state_dir)
    if obstacle == "a file for the directory":
        state.write_text("")
    elif obstacle == "a folder for the file":
        (state / events.NAME).mkdir(parents=True)
    else:
        state.mkdir()
        if can_mount():  # else the disk has room: nothing fails then either
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", str(state)], check=True)
            (state / "full").write_text("x" * 4096)
    assert node.run("prolog", job_environment(7)) == (0, "")
    assert list(node.grants()) == [7]
    assert node.run("epilog", job_environment(7))[0] == 0
    assert list(node.grants()) == []


def test_every_kind_has_its_fields_explained() -> None:
    for kind in KINDS.values():
        assert set(kind.fields) <= set(FIELDS)
        assert kind.doc.endswith(".")


def test_a_reader_refuses_a_file_that_is_not_roots(tmp_path: Path) -> None:
    write(tmp_path, "one")
    os.chown(tmp_path / events.NAME, 65534, -1)
    with pytest.raises(NodeError, match="root alone"):
        EventReader(str(tmp_path)).read()
