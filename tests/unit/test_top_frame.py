# SPDX-License-Identifier: Apache-2.0
"""The frames of `hami-hpc top`: they fit every terminal, and show what matters first."""

from __future__ import annotations

import pytest
from agent_states import GPU_BYTES, make_event, make_gpu, make_job, make_state

from hami_hpc.core import gpu_rows, top_frame
from hami_hpc.core.agent_state import AgentState
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import MISSING_USAGE
from hami_hpc.core.tables import columns_of
from hami_hpc.core.top_frame import ASCII, BLOCKS, Screen, bar

NAMES = {5: "games", 9: "山田太郎花子研究室"}


def frame(state: AgentState, screen: Screen, note: str = "") -> list[str]:
    rows = tuple(gpu_rows.of_state(state, lambda uid: NAMES.get(uid, f"user{uid}")))
    shown = top_frame.frame("node1  2 GPUs", state, rows, note, screen)
    lines = ["".join(text for text, _ in line) for line in shown]
    assert {style for line in shown for _, style in line} <= {"", "bold", "dim", "red", "green", "yellow", "bold red"}
    assert max(columns_of(line) for line in lines) <= screen.columns, "no line is wider than the terminal"
    if screen.rows:
        assert len(lines) <= screen.rows, "nor are there more than it has"
    return lines


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 160, 300])
@pytest.mark.parametrize("rows", [0, 4, 10, 24, 60])
@pytest.mark.parametrize(("gpus", "jobs"), [(1, 0), (2, 3), (8, 80)])
def test_a_frame_fits_every_terminal(columns: int, rows: int, gpus: int, jobs: int) -> None:
    event = make_event("memory_above_grant", 100, "kill", "job 100 used more than its grant " * 9)
    state = make_state(gpus, jobs, events=(event,) * 5)
    note = "the agent last looked 12 s ago: it is stopped or stuck, and this is what it saw then"
    lines = frame(state, Screen(columns, rows, BLOCKS), note)
    if not rows:
        assert sum(line.lstrip().startswith(tuple(f"{i} " for i in range(8))) for line in lines) >= gpus + jobs


def test_on_a_narrow_terminal_users_findings_and_use_are_shown() -> None:
    state = make_state()
    state = state._replace(jobs=(*state.jobs, make_job(103, 1, findings=("memory_above_grant",))))
    lines = frame(state, Screen(60, 24, ASCII))
    assert lines[0] == "node1  2 GPUs"
    assert lines[2].split() == ["0", "#...........", "7.0/16.0/139.8", "==" + "." * 10, "0/20"]
    head = next(index for index, line in enumerate(lines) if line.startswith("GPU") and "JOB" in line)
    assert lines[head].split() == ["GPU", "JOB", "USER", "ASK%", "GOT%", "GRANT", "USED", "FINDINGS"]
    assert lines[head + 1].split()[:2] == ["1", "103"], "a job with findings comes first"
    assert lines[head + 1].split()[-1].startswith("memory_above_g")
    assert any("山田太郎花~" in line for line in lines)


def test_where_one_line_is_left_for_jobs_it_says_how_many_there_are() -> None:
    state = make_state()
    lines = next(lines for rows in range(4, 24) if "more:" in (lines := frame(state, Screen(80, rows, ASCII)))[-1])
    assert lines[-2].startswith("GPU")
    assert lines[-1] == f"and {len(state.jobs) + len(state.others)} more: hami-hpc ps"


def test_a_lost_gpu_is_said_to_be() -> None:
    lines = frame(make_state(8, 80), Screen(80, 24, BLOCKS))
    assert "  3 LOST: GPU is lost" in lines
    assert any(line.startswith("and ") and line.endswith("more: hami-hpc ps") for line in lines)


def test_events_are_shown_newest_first() -> None:
    state = make_state(events=(make_event("started", 0, "", "2 GPUs"), make_event("no_interposer", 7, "kill", "pid 9")))
    lines = frame(state, Screen(80, 24, BLOCKS))
    hours = [frame(state, Screen(80, 24, BLOCKS, offset))[-1][:9] for offset in (0, 3600, -86400)]
    assert hours[0] == hours[2] != hours[1]
    assert [line[9:] for line in lines[-2:]] == ["no_interposer job 7 [kill]: pid 9", "started: 2 GPUs"]


def test_bars_are_of_the_gpus_own_jobs_and_the_clock_is_that_of_the_event() -> None:
    gpus = (make_gpu(0, GPU_BYTES // 2), make_gpu(1, 0, busy_percent=50.0))
    jobs = (make_job(101, 0, cores_percent=25), make_job(102, 1, cores_percent=75))
    events = (make_event("started", 0, "", "2 GPUs")._replace(time_unix_ns=1_790_000_061_999_999_999),)
    lines = frame(make_state(events=events)._replace(gpus=gpus, jobs=jobs), Screen(80, 24, ASCII))
    assert [line.split()[-1] for line in lines[2:4]] == ["0/25", "50/75"]
    assert lines[3].split()[-2] == "###########=====......", "half of the time used, three quarters asked for"
    assert lines[-1].startswith("14:14:21 started")


def test_a_note_is_wrapped_and_whole() -> None:
    note = "no agent has looked in this boot, so nobody finds who evades the limits"
    shown = top_frame.frame("node1", None, [], note, Screen(24, 24, BLOCKS))
    lines = ["".join(text for text, _ in line) for line in shown]
    assert lines[1:5] == ["no agent has looked in", "this boot, so nobody", "finds who evades the", "limits"]


def test_a_bar_shows_what_is_used_then_granted_then_neither() -> None:
    assert bar(0.25, 0.5, 8, BLOCKS) == "██▒▒····"
    assert bar(0.75, 0.5, 8, ASCII) == "######.."
    assert bar(2, 3, 4, ASCII) == "####"
    assert bar(-1, 0, 4, ASCII) == "...."


def test_a_terminal_without_these_letters_gets_ascii() -> None:
    assert top_frame.ASCII.isascii()
    assert bar(0.5, 1, 4, ASCII) == "##=="


def test_a_gpu_whose_jobs_have_findings_has_a_red_bar() -> None:
    state = make_state()
    state = state._replace(jobs=(*state.jobs, make_job(103, 1, findings=("no_interposer",))))
    shown = top_frame.frame("", state, [], "", Screen(80, 0, BLOCKS))
    assert [line[1][1] for line in shown[2:4]] == ["green", "red"]


def test_power_model_and_peak_are_shown_where_there_is_room() -> None:
    lines = frame(make_state(8, 1), Screen(120, 24, BLOCKS))
    assert "NVIDIA H200 141GB H~" in lines[7]
    assert lines[2].endswith(" 40 C  100 W")
    assert "PEAK" in "".join(lines)
    assert "PEAK" not in "".join(frame(make_state(8, 1), Screen(80, 24, BLOCKS)))


def test_bars_begin_below_their_heading_however_long_the_models_name_is() -> None:
    head, *lines = frame(make_state(8, 1), Screen(120, 24, ASCII))[1:10]
    shown = [line for line in lines if "LOST" not in line]
    assert len({line[4:24].rstrip() for line in shown}) == 2, "a short name and a long one"
    for line in shown:
        before, bar_begins = line[: head.index("MEMORY")], line[head.index("MEMORY")]
        assert before.endswith("  ")
        assert bar_begins in ASCII


def test_without_an_agent_there_are_jobs_and_the_note_alone() -> None:
    shown = top_frame.frame("node1  0 jobs", None, [], "the agent does not run", Screen(60, 24, BLOCKS))
    texts = ["".join(text for text, _ in line) for line in shown]
    assert texts[:3] == ["node1  0 jobs", "the agent does not run", ""]
    assert texts[-1] == "no job and no process on these GPUs"


def test_what_jobs_count_themselves_says_nothing_of_how_many_processes_they_have() -> None:
    grant = Grant(7, 1000, "GPU-1", 0, 1000, "h200", 400, 50, "std", "cap", "share", 1)
    (row,) = gpu_rows.of_usage([(grant, MISSING_USAGE)], 5, str)
    assert (row.processes, row.user, row.granted_bytes) == (-1, "1000", 400 << 20)
    assert row.findings == ("usage record is missing",)
    counted = MISSING_USAGE._replace(state="ok", gpu_busy_ns=30, used_bytes=5, peak_bytes=9)
    (row,) = gpu_rows.of_usage([(grant, counted)], 121, str)
    assert (row.busy_percent, row.used_bytes, row.peak_bytes, row.findings) == (25.0, 5, 9, ())


def test_a_gpus_last_error_is_below_the_gpus_for_a_day() -> None:
    state = make_state(8, 3)
    hour_ns = 3600 * 10**9
    gpus = [gpu._replace(last_fault="Xid 31: GPU memory page fault" * 3, last_fault_unix_ns=1) for gpu in state.gpus]
    gpus[1] = gpus[1]._replace(last_fault="Xid 79: GPU has fallen off the bus", last_fault_unix_ns=90 * hour_ns)
    state = state._replace(gpus=tuple(gpus), time_unix_ns=100 * hour_ns)
    shown = [line for line in frame(state, Screen(80, 40, BLOCKS)) if "Xid" in line]
    assert shown == ["    GPU 1 18:00:00 Xid 79: GPU has fallen off the bus"]
    frame(state._replace(time_unix_ns=2), Screen(20, 10, BLOCKS))


def test_who_wants_more_than_its_cores_is_shown_first_and_is_no_error() -> None:
    state = make_state()
    state = state._replace(jobs=(*state.jobs, make_job(104, 1, beyond_cores=1)))
    rows = tuple(gpu_rows.of_state(state, str))
    lines = top_frame.frame("node1", state, rows, "", Screen(160, 24, ASCII))
    (found,) = [line for line in lines if line and "wants more than its cores" in line[0][0]]
    assert found[0][1] == "yellow"
    assert lines[lines.index(found) - 1][0][0].startswith("GPU")
