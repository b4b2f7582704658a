# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/event_feed.py and hooks.py: each hook gets each event once, in order, and only what root alone can
write is run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from node_testbed import ROOT

from hami_hpc.agent import event_feed, hooks
from hami_hpc.agent.event_feed import Feed, read_position
from hami_hpc.node import events
from hami_hpc.node.event_reader import Line, Position

Reports = list[tuple[str, str, int]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory for hooks: pytest's own is below one that others can write."""
    path = Path(f"/root/.hami-hooks-{os.getpid()}")
    path.mkdir(mode=0o755)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def make_hook(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def write(state: Path, text: str, kind: str = "started") -> None:
    events.write(str(state), "agent", kind, text=text)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def line_of(text: str, kind: str = "started") -> Line:
    event = {"kind": kind, "time_unix_ns": 1, "text": text}
    return Line(json.dumps(event), event, (1, 2, 3))  # type: ignore[arg-type]


def hook(folder: Path, name: str, reports: Reports, timeout_s: float = 10.0) -> hooks.Hook:
    return hooks.Hook(str(folder), name, lambda *words: reports.append(words), timeout_s)


def test_a_hook_gets_the_event_on_its_input_and_the_kind_as_argument_in_a_clean_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SECRET", "x")
    reports: Reports = []
    make_hook(folder, "show", f'{{ echo "$@"; pwd; cat; env; }} >{folder}/out')
    hook(folder, "show", reports).take(line_of("hello", "gpu_fault"))
    lines = (folder / "out").read_text().splitlines()
    assert lines[:2] == ["gpu_fault", "/"]
    assert json.loads(lines[2])["text"] == "hello"
    assert not any(line.startswith(("SECRET", "LD_PRELOAD", "HAMI", "SLURM")) for line in lines)
    assert reports == []


UNTRUSTED = ["others", "group", "owner", "folder", "folder's owner", "link", "no program", "pipe", "missing"]


@pytest.mark.parametrize("how", UNTRUSTED)
def test_what_another_than_root_could_write_is_not_run_and_said_once(folder: Path, tmp_path: Path, how: str) -> None:
    reports: Reports = []
    inner = folder / "hooks.d"
    inner.mkdir()
    path = make_hook(inner, "mine", f"touch {folder}/ran")
    if how == "others":
        path.chmod(0o757)
    elif how == "group":
        path.chmod(0o775)
    elif how == "owner":
        os.chown(path, 65534, -1)
    elif how == "folder":
        inner.chmod(0o777)
    elif how == "folder's owner":
        os.chown(folder, 65534, -1)
    elif how == "link":  # to where a user can write
        tmp_path.chmod(0o777)
        target = shutil.move(path, tmp_path / "mine")  # another file system, perhaps
        path.symlink_to(target)
    elif how == "no program":
        path.chmod(0o644)
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path, 0o755)
    elif how == "missing":
        path.unlink()
    tried = hook(inner, "mine", reports)
    for _ in range(3):
        tried.take(line_of("x"))
    assert not (folder / "ran").exists()
    ((kind, text, _),) = reports
    assert (kind, text.startswith("hook mine is not run: ")) == ("hook_refused", True), text


def test_a_hook_is_refused_anew_after_it_ran(folder: Path) -> None:
    reports: Reports = []
    path = make_hook(folder, "mine", f"echo x >>{folder}/ran")
    tried = hook(folder, "mine", reports)
    for mode in (0o757, 0o755, 0o757, 0o757):
        path.chmod(mode)
        tried.take(line_of("x"))
    assert (folder / "ran").read_text() == "x\n"
    assert [kind for kind, _, _ in reports] == ["hook_refused", "hook_refused"]


def test_a_hook_that_takes_too_long_is_killed_with_its_group(folder: Path) -> None:
    reports: Reports = []
    make_hook(folder, "slow", f"sleep 1000 & echo $! >{folder}/child; echo $$ >{folder}/self; wait")
    begin = time.monotonic()
    hook(folder, "slow", reports, 0.5).take(line_of("x"))
    assert time.monotonic() - begin < 5
    for name in ("child", "self"):
        pid = int((folder / name).read_text())
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())  # type: ignore[misc]
    assert reports == [("hook_failed", "hook slow was killed after 0.5 s with an event started", 1)]


def test_a_hook_that_fails_is_said_when_it_begins_to_and_again_after_it_worked(folder: Path) -> None:
    reports: Reports = []
    make_hook(folder, "fail", f"test -e {folder}/ok")
    failing = hook(folder, "fail", reports)
    for _ in range(5):
        failing.take(line_of("x"))
    (folder / "ok").touch()
    failing.take(line_of("x"))
    (folder / "ok").unlink()
    failing.take(line_of("x"))
    assert [text for _, text, _ in reports] == ["hook fail ended with status 1 with an event started"] * 2


def test_a_hook_that_reads_nothing_does_no_harm(folder: Path) -> None:
    reports: Reports = []
    make_hook(folder, "deaf", "exec <&-; exit 0")
    for _ in range(20):
        hook(folder, "deaf", reports).take(line_of("x" * 400))
    assert reports == []


def test_events_about_hooks_start_no_hook(folder: Path) -> None:
    make_hook(folder, "mine", f"touch {folder}/ran")
    hook(folder, "mine", []).take(line_of("x", "hook_failed"))
    assert not (folder / "ran").exists()


def test_copies_of_editors_and_hidden_files_are_no_hooks(folder: Path) -> None:
    packagers = ("a.dpkg-old", "a.dpkg-new", "a.rpmsave", "a.rpmnew")
    for name in ("b", "a", ".hidden", "a~", "a.bak", "a.swp", "#a#", "a b", "x" * 65, "a.sh", *packagers):
        (folder / name).touch()
    assert hooks.names(str(folder)) == ("a", "a.sh", "b")


def test_events_that_a_slow_hook_was_not_given_are_reported_with_their_number(folder: Path) -> None:
    reports: Reports = []
    hook(folder, "mine", reports).drop(3)
    assert reports == [("hook_dropped", "hook mine is too slow: it was not given 3 event(s)", 3)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path


def feed(place: Path, take: Callable[[Line], None], dropped: Callable[[int], None] = lambda _n: None) -> Feed:
    return Feed(str(place / "state"), str(place / "position"), take, dropped)


def texts_of(seen: list[Line]) -> list[str]:
    return [str(line.event["text"]) for line in seen if line.event]


def test_every_event_is_given_once_and_in_order_over_restarts(place: Path) -> None:
    seen: list[Line] = []
    for round_ in range(4):
        write(place / "state", f"while the agent is down {round_}")
        running = feed(place, seen.append)
        running.start()
        write(place / "state", f"while it runs {round_}")
        until(lambda count=2 * round_ + 2: len(seen) >= count)  # type: ignore[misc]
        running.end()
        running.join(5)
    assert texts_of(seen) == [f"while {what} {n}" for n in range(4) for what in ("the agent is down", "it runs")]


def test_without_a_position_what_is_older_is_left_out_and_stays_out(place: Path) -> None:
    write(place / "state", "old")
    seen: list[Line] = []
    running = feed(place, seen.append)
    running.since_ns = time.time_ns()
    running.start()
    until(lambda: read_position(running.path) is not None)
    running.end()
    running.join(5)
    write(place / "state", "new")
    running = feed(place, seen.append)
    running.since_ns = time.time_ns()
    running.start()
    until(lambda: len(seen) == 1)
    running.end()
    running.join(5)
    assert texts_of(seen) == ["new"]


@pytest.mark.parametrize("text", ["", "1 2", "x y z", "1 2 3 4", "9" * 500])
def test_a_damaged_position_counts_as_none(place: Path, text: str) -> None:
    (place / "position").write_text(text)
    assert read_position(str(place / "position")) is None


def test_the_position_of_a_hook_is_not_that_of_one_with_new_behind_its_name(place: Path) -> None:
    event_feed.write_position(str(place / "mail.new"), Position(1, 2, 3))
    event_feed.write_position(str(place / "mail"), Position(1, 2, 99))
    assert read_position(str(place / "mail.new")) == Position(1, 2, 3)
    assert sorted(path.name for path in place.iterdir() if path.is_file()) == ["mail", "mail.new"]


def test_a_taker_that_is_too_slow_gets_the_newest_and_what_it_missed_is_counted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "WAITING_MAX", 10)
    seen: list[Line] = []
    drops: list[int] = []
    for number in range(100):
        write(place / "state", f"event {number}")
    running = feed(place, seen.append, drops.append)
    running.start()
    until(lambda: len(seen) >= 10)
    running.end()
    running.join(5)
    assert texts_of(seen) == [f"event {number}" for number in range(90, 100)]
    assert drops == [90]


def test_a_taker_that_raises_keeps_nothing_from_the_next_event(place: Path) -> None:
    seen: list[Line] = []

    def take(line: Line) -> None:
        seen.append(line)
        raise RuntimeError

    dropped: list[int] = []
    running = feed(place, take, dropped.append)
    running.start()
    for number in range(3):
        write(place / "state", f"event {number}")
    until(lambda: len(seen) == 3 and dropped != [])
    assert dropped == [1], "the others are reported a minute later"
    running.end()
    running.join(5)


def test_the_thread_of_a_taker_that_hangs_does_not_keep_the_agent_from_its_end(place: Path) -> None:
    running = feed(place, lambda _line: None)
    running.start()
    assert running._thread is not None
    assert running._thread.daemon
    running.end()
    running.join(5)


def test_a_full_run_directory_costs_no_event(place: Path) -> None:
    seen: list[Line] = []
    running = feed(place, seen.append)
    running.path = str(place / "nowhere" / "position")
    running.start()
    write(place / "state", "one")
    until(lambda: len(seen) == 1)
    time.sleep(0.7)
    assert texts_of(seen) == ["one"]
    running.end()
    running.join(5)


def wait(release: threading.Event) -> None:
    release.wait(10)


def test_a_slow_hook_delays_no_other(place: Path) -> None:
    release = threading.Event()
    slow = feed(place, lambda _line: wait(release))
    seen: list[Line] = []
    quick = Feed(str(place / "state"), str(place / "other"), seen.append, lambda _n: None)
    for one in (slow, quick):
        one.start()
    for number in range(5):
        write(place / "state", f"event {number}")
    until(lambda: len(seen) == 5)
    release.set()
    for one in (slow, quick):
        one.end()
        one.join(5)


KILLED = """
import sys, time; sys.path.append(sys.argv[1])
from hami_hpc.agent.event_feed import Feed
out = open(sys.argv[4], "a")
def take(line):
    out.write(line.event["text"] + "\\n"); out.flush()
feed = Feed(sys.argv[2], sys.argv[3], take, lambda n: None)
feed.start(); time.sleep(60)
"""


def test_after_a_kill_at_any_moment_at_most_the_event_that_ran_is_given_again(place: Path) -> None:
    out = place / "out"
    out.touch()
    for number in range(400):
        write(place / "state", str(number))
    for round_ in range(10):
        command = [sys.executable, "-c", KILLED, str(ROOT), str(place / "state"), str(place / "position"), str(out)]
        with subprocess.Popen(command) as process:
            before = len(out.read_text().splitlines())
            until(lambda before=before: len(out.read_text().splitlines()) > before or before >= 400)  # type: ignore[misc]
            time.sleep(0.003 * round_)
            process.send_signal(signal.SIGKILL)
        if len(out.read_text().splitlines()) >= 400:
            break
    given = [int(text) for text in out.read_text().split()]
    assert sorted(set(given)) == list(range(max(given) + 1))
    assert len(given) - len(set(given)) <= 10
    assert given == sorted(given)


def test_a_hook_that_was_removed_and_comes_back_begins_with_the_events_to_come(tmp_path: Path) -> None:
    for name in ("kept", "removed", "removed.new"):
        (tmp_path / name).write_text("1 2 3")
    event_feed.forget_others(str(tmp_path), [str(tmp_path / "kept")])
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    event_feed.forget_others(str(tmp_path / "nowhere"), [])
