# SPDX-License-Identifier: Apache-2.0
"""What people see of jobs that take turns on an oversold GPU: their notes, ps, top and usage, for the job's user,
root, and others; with the decisions of a real node by made-up looks."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_states import make_gpu, make_state
from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, UUIDS
from turns_testbed import FIRST, SECOND_JOB, STAYS, Site, away, both, site

from hami_hpc.agent.gpus import GpuLook
from hami_hpc.agent.watcher import _gpu_state
from hami_hpc.cli import main
from hami_hpc.contract import constants as c
from hami_hpc.core import standing
from hami_hpc.core.agent_state import OK, AgentState, Standing, standing_from_json, standing_to_json
from hami_hpc.core.job_sums import JobSums
from hami_hpc.node import agent_file, turn_notes
from hami_hpc.node.boot import boot_id
from hami_hpc.stages import common

__all__ = ["site"]  # the fixture
USER = 65534  # of the testbed's jobs
THIRD = 10


@pytest.fixture
def row(site: Site) -> Site:
    """The first has the GPU, the second is the next, the third the last; a fourth has no room as long as a fifth, which
    is never moved, runs."""
    site.now_s = agent_file.now_boot_ns() / 1e9 - 400
    both(site)
    site.begin(THIRD, mem="90000")
    site.look()
    site.says[THIRD] = ["wanted"]
    site.look()
    return site


def notes(site: Site) -> Path:
    return Path(turn_notes.folder(site.node.settings.run_dir))


def run(site: Site, *words: str) -> Result:
    return CliRunner().invoke(main, list(words), env={"HAMI_HPC_CONFIG": str(site.node.config)})


def state_of(site: Site) -> AgentState:
    """The agent's state with the jobs of the last look."""
    assert site.last is not None
    jobs, _whole = JobSums().update(site.last, 10**9, {}, frozenset(), {})
    gpus = (make_gpu(0, 90_000 << 20, uuid=UUIDS[0], pressure=1),)
    return make_state(1, 0, others=())._replace(gpus=gpus, jobs=jobs, standings=site.turns.standings)


def write_state(site: Site) -> None:
    Path(agent_file.folder(site.node.settings.run_dir)).mkdir(parents=True, exist_ok=True)
    agent_file.write(site.node.settings.run_dir, state_of(site))


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """Makes this process take itself for a user's, who may not read the agent's state."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    open_file: Callable[..., int] = os.open

    def refuse(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith(agent_file.NAME):
            raise PermissionError(13, "Permission denied", path)
        return open_file(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)


def test_everybody_has_a_place(row: Site) -> None:
    by_job = {one.job_id: one for one in row.turns.standings}
    assert [(by_job[job].state, by_job[job].place) for job in (FIRST, SECOND_JOB, THIRD)] == [
        (standing.ON, 0),
        (standing.WAITS, 1),
        (standing.WAITS, 2),
    ]
    assert (by_job[THIRD].waiting, by_job[THIRD].on_gpu, by_job[THIRD].unmovable) == (2, 1, 0)
    turn_s = 3 * 100_000 / 1024
    now_ns = int(row.now_s * 1e9)
    assert (by_job[SECOND_JOB].due_boot_ns - now_ns) / 1e9 == pytest.approx(turn_s, abs=5)
    assert by_job[THIRD].due_boot_ns > by_job[SECOND_JOB].due_boot_ns


def test_each_that_is_not_on_the_gpu_has_a_note_that_its_user_alone_reads(row: Site) -> None:
    assert sorted(path.name for path in notes(row).iterdir()) == sorted(map(str, (SECOND_JOB, THIRD)))
    assert stat.S_IMODE(notes(row).stat().st_mode) == 0o711
    for path in notes(row).iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert (mode & 0o007, path.stat().st_uid) == (0, 0)
        access = os.getxattr(path, "system.posix_acl_access")
        assert USER.to_bytes(4, "little") in access
        assert not re.search(r"\b(7|8)\b", path.read_text().replace(f'"job_id":{path.name}', "")), "no other job's id"


def test_notes_are_written_only_when_something_changes(row: Site) -> None:
    def written() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in notes(row).iterdir()}

    before = written()
    for _ in range(5):
        row.look(0.5)
    assert written() == before
    os.utime(notes(row), (1, 1))
    row.look(0.5)
    assert notes(row).stat().st_mtime > 1, "but the folder says that somebody decides"
    row.says[SECOND_JOB] = []
    row.look(0.5)
    assert written() != before


def test_a_note_goes_when_its_job_comes_or_ends(row: Site) -> None:
    row.look(1000)
    row.leaves(FIRST)
    row.look()
    row.comes(SECOND_JOB)
    row.look()
    assert sorted(path.name for path in notes(row).iterdir()) == sorted(map(str, (FIRST, THIRD)))
    assert row.node.epilog(THIRD) == 0
    row.look()
    assert [path.name for path in notes(row).iterdir()] == [str(FIRST)]


def test_a_new_agent_removes_what_it_does_not_know(row: Site) -> None:
    (notes(row) / "99").write_text("{}")
    (notes(row) / "98.new").write_text("{}")
    row.turns = type(row.turns)(row.node.settings, lambda: row.last, lambda: int(row.now_s * 1e9))
    row.look()
    assert sorted(path.name for path in notes(row).iterdir()) == sorted(map(str, (SECOND_JOB, THIRD)))


def test_an_emptied_run_directory_gets_its_notes_again(row: Site) -> None:
    for path in notes(row).iterdir():
        path.unlink()
    notes(row).rmdir()
    for _ in range(2):
        row.look()
    assert len(list(notes(row).iterdir())) == 2


def test_a_note_that_cannot_be_written_stops_no_turn_and_leaves_no_old_one(
    row: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(turn_notes, "_write", full)
    row.look(1000)
    assert row.order(FIRST) == c.SWAP_TURN
    row.leaves(FIRST)
    row.look()
    assert row.order(SECOND_JOB) == c.SWAP_IN
    (grant,) = (one for job, one in row.node.grants().items() if job == THIRD)
    assert turn_notes.standing_of(row.node.settings.run_dir, grant).place == 0, (
        "no place that it does not have any more"
    )


def test_what_is_no_note_of_this_run_is_none(row: Site) -> None:
    run_dir, grant = row.node.settings.run_dir, row.node.grants()[SECOND_JOB]
    path = notes(row) / str(SECOND_JOB)
    assert turn_notes.read(run_dir, grant) is not None
    assert turn_notes.read(run_dir, grant._replace(created_unix_ns=1)) is None
    text = path.read_text()
    for wrong in (
        "",
        "{",
        "[]",
        text.replace(boot_id(), "other"),
        text.replace('"place":1', '"place":"x"'),
        "[" * 4000,
    ):
        path.write_text(wrong)
        assert turn_notes.read(run_dir, grant) is None
    path.write_text(text)
    os.utime(notes(row), (1, 1))
    assert turn_notes.read(run_dir, grant) is None, "no agent has decided for long"
    os.utime(notes(row))
    path.unlink()
    os.mkfifo(path)
    assert turn_notes.read(run_dir, grant) is None
    one = Standing(7, 1, "GPU", "waits", 5)
    assert standing_from_json(standing_to_json(one, "b"), "b") == one


def test_ps_shows_root_all_turns_and_what_waits_for_what(row: Site) -> None:
    write_state(row)
    result = run(row, "ps")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["GPU", "JOB", "PROCESSES", "TURN"]
    turns = {int(line.split()[1]): line.split()[3:6] for line in lines[1:4]}
    assert turns[FIRST][0] == "on"
    assert (turns[SECOND_JOB][0], turns[SECOND_JOB][2]) == ("waits", "1/2")
    assert (turns[THIRD][0], turns[THIRD][2]) == ("waits", "2/2")
    assert "GPU 0: 1 on it, 2 wait; 62 % of its memory in use, pressure 1/3" in lines
    assert any(line.startswith(f"job {SECOND_JOB}: waits for the GPU for ") for line in lines)
    told = json.loads(run(row, "ps", "--format", "json").stdout)
    states = {one["job_id"]: one["standing"] for one in told["rows"]}
    assert (states[THIRD]["place"], states[THIRD]["state"]) == (2, "waits")


def test_ps_shows_a_user_their_own_turn_and_sums_of_others(row: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, USER)
    own = run(row, "ps")
    assert f"job {THIRD}: waits for the GPU for " in own.stdout
    assert "number 2 of 2 in the row, 1 job on the GPU; its turn comes within" in own.stdout
    assert "GPU 0: " not in own.stdout
    monkeypatch.undo()
    as_user(monkeypatch, 4711)
    other = run(row, "ps")
    assert len(other.stdout.splitlines()) == 1, "another user sees nothing of it"


def test_without_an_agent_a_user_is_told_that_nobody_decides(row: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(notes(row), (1, 1))
    as_user(monkeypatch, USER)
    shown = run(row, "ps").stdout
    assert f"job {SECOND_JOB}: waits for the GPU: no agent (hami-hpc agent) decides whose turn it is" in shown
    assert " on " in next(line for line in shown.splitlines() if line.split()[1:2] == [str(FIRST)])


def test_top_shows_the_turns_on_80_and_120_columns(row: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(row)
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = run(row, "top", "--once").stdout
        assert "TURN" in shown
        assert "GPU 0: 1 on it, 2 wait; " in shown
        assert all(len(line) <= int(columns) for line in shown.splitlines())
        assert ("CLASS" in shown) == (columns == "120")


def test_top_says_why_a_job_stays_and_what_one_without_room_lacks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.now_s = agent_file.now_boot_ns() / 1e9 - 2000
    both(site)
    site.look()
    site.look(1000)
    site.says[FIRST] = ["busy"]
    site.look(60)
    site.look()
    by_job = {one.job_id: one for one in site.turns.standings}
    assert (by_job[FIRST].state, by_job[SECOND_JOB].state) == (standing.STAYS, standing.ROOM)
    write_state(site)
    monkeypatch.setenv("COLUMNS", "200")
    shown = run(site, "top", "--once").stdout
    assert f"job {FIRST} stays on the GPU for " in shown
    assert "though its turn was over: its work on the GPU does not end within 2 s" in shown
    lacks = 100_000 - (GPU_MIB - 100_000)
    assert f"it lacks {lacks:,} MiB even without the jobs that can be moved" in shown


def test_usage_tells_a_user_the_place_in_the_row(row: Site) -> None:
    shown = run(row, "usage", str(SECOND_JOB)).stdout
    assert "  turn     waits for the GPU for " in shown
    assert "next of 2 in the row, 1 job on the GPU" in shown
    told = json.loads(run(row, "usage", str(THIRD), "--format", "json").stdout)
    assert told["moved"]["standing"]["place"] == 2
    assert told["host"]
    assert "  turn " not in run(row, "usage", str(FIRST)).stdout
    on = json.loads(run(row, "usage", str(FIRST), "--format", "json").stdout)
    assert on["moved"]["standing"]["state"] == "on"


def test_one_whose_turn_is_over_just_now_is_not_asked_why_it_is_still_there(row: Site) -> None:
    row.look(1000)
    shown = run(row, "usage", str(FIRST)).stdout
    assert "its turn is over: its memory leaves the GPU" in shown
    assert "is it stopped?" not in shown


def test_on_a_node_that_is_not_oversold_nothing_is_said_of_turns(row: Site) -> None:
    text = row.node.config.read_text().replace("memory_scaling = 3\nturn_s = 60\n", "")
    row.node.config.write_text(text)
    assert "TURN" in run(row, "ps").stdout, "who waits goes on waiting"
    shutil.rmtree(notes(row))
    assert json.loads(run(row, "usage", str(FIRST), "--format", "json").stdout)["moved"]["standing"] is None
    assert "TURN" not in run(row, "ps").stdout


def test_the_state_file_says_the_same_to_those_who_may_read_it(site: Site) -> None:
    away(site)
    write_state(site)
    state = agent_file.read(site.node.settings.run_dir, boot_id())
    assert state is not None
    assert state.standings == site.turns.standings
    assert len(state.standings) == 2, "one for each slice"
    site.silent = frozenset({UUIDS[0]})
    site.look()
    assert site.turns.standings == state.standings, "of a GPU that does not answer what was known stays"
    assert STAYS not in {one.job_id for one in state.standings}


def test_the_agents_state_says_how_much_of_a_gpu_is_sold(site: Site) -> None:
    """Of memory_scaling = 3 a slice has 90 % of a GPU at most: 3 / 0.9 of its time are sold."""
    ledger = common.open_ledger(site.node.settings)
    inventory = ledger.inventory()
    ledger.close()
    assert inventory
    for gpu in inventory:
        look = GpuLook(gpu, OK)
        assert _gpu_state(look, None, site.turns).sold_percent == 334
        assert _gpu_state(look, None, None).sold_percent == 100
        assert _gpu_state(look._replace(gpu=gpu._replace(model="gone")), None, site.turns).sold_percent == 100
