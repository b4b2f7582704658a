# SPDX-License-Identifier: Apache-2.0
"""pyslurm as a source, without pyslurm: its recorded answers beside sacct's lines of the same moment, a stand-in that
keeps slurmdbd's rules, and what is said when pyslurm is missing or does not fit."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources import pyslurm_runs, pyslurm_source
from hami_hpc.accounting.sources.pyslurm_runs import Names, every_run, fields, het_ids, printed
from hami_hpc.accounting.sources.sacct import ASKED, DELIMITER
from hami_hpc.accounting.times import Period

RECORDS = Path(__file__).parent / "records"
NO_VAL = 4294967294


@pytest.mark.parametrize("path", sorted(RECORDS.glob("pyslurm-*.json")), ids=lambda path: path.stem)
def test_recorded_answers_of_pyslurm_become_the_lines_that_sacct_printed(path: Path) -> None:
    recorded = json.loads(path.read_text(encoding="utf-8"))
    answers = {json.dumps(call["asked"]): call["answer"] for call in recorded["calls"]}

    def ask(jobs: Sequence[str], start_s: int, end_s: int, flags: int) -> Mapping[int, pyslurm_runs.Job]:
        return {job["jobid"]: job for job in answers[json.dumps([list(jobs), start_s, end_s, flags])]}

    names = Names(*({int(number): name for number, name in recorded[kind].items()} for kind in ("tres", "qos")))
    given_lines = [_without_clock(line) for line in printed(ask, names, *recorded["request"])]
    header, *lines = (line.split(DELIMITER) for line in recorded["sacct"])
    assert tuple(header) == ASKED
    assert len(lines) > 15
    in_order = sorted(tuple(_without_clock(dict(zip(ASKED, line, strict=True))).items()) for line in lines)
    assert sorted(tuple((name, line[name]) for name in ASKED) for line in given_lines) == in_order


def _without_clock(line: dict[str, str]) -> dict[str, str]:
    """The line; the elapsed time of one without an end has gone on between sacct's answer and pyslurm's."""
    return line | ({"ElapsedRaw": ""} if line["End"] == "Unknown" else {})


@dataclass(frozen=True, slots=True)
class Row:
    """A row of slurmdbd's job table, as far as it matters which ones are answered."""

    job: int
    submit: int
    eligible: int
    end: int
    het: tuple[int, int] | None = None
    task: int | None = None

    @property
    def answer(self) -> dict[str, Any]:
        return {
            "jobid": self.job,
            "submit": self.submit,
            "eligible": self.eligible,
            "end": self.end,
            "array_task_id": NO_VAL if self.task is None else self.task,
            "array_task_str": None,
        }


class Slurmdbd:
    """slurmdbd's rules for which rows it answers and in what order (as_mysql_jobacct_process.c), and pyslurm's dict."""

    def __init__(self, rows: Sequence[Row], now: int = 10**9) -> None:
        self.rows, self.now, self.calls = rows, now, 0

    def __call__(self, jobs: Sequence[str], start_s: int, end_s: int, flags: int) -> Mapping[int, dict[str, Any]]:
        assert flags & 7 == 7
        self.calls += 1
        until_s = end_s or 10**10
        if until_s in (start_s, self.now):
            until_s += 1  # slurmdb_job_cond_def_start_end
        wanted = [row for row in self.rows if row.end >= start_s or not row.end]
        if jobs:
            wanted = [row for row in wanted if row.submit < until_s and self._is_named(row, jobs, flags)]
        else:
            wanted = [row for row in wanted if 0 < row.eligible < until_s]
        answer: list[Row] = []
        last = None
        for row in sorted(wanted, key=lambda row: (row.job, -row.submit)):
            answer.insert(0 if row.job == last else len(answer), row)
            last = row.job
        return {row.job: row.answer for row in answer}

    def _is_named(self, row: Row, jobs: Sequence[str], flags: int) -> bool:
        plain = {int(name) for name in jobs if "+" not in name}
        offsets = {tuple(map(int, name.split("+"))) for name in jobs if "+" in name}
        if flags & pyslurm_runs.WHOLE_HET_JOB:
            plain |= {one.job for one in self.rows for two in self.rows if two.job in plain and one.het and two.het
                      and one.het[0] == two.het[0]}  # fmt: skip
        led = not flags & (pyslurm_runs.ONLY_THESE_NUMBERS | pyslurm_runs.WHOLE_HET_JOB)
        return row.job in plain or row.het in offsets or bool(led and row.het and row.het[0] in plain)


TIMES = st.integers(0, 60)


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Any rows with slurmdbd's one rule, that a job was submitted once a second. Runs may overlap, follow in the same
    second, never end, never become eligible."""
    keys = draw(st.lists(st.tuples(st.integers(1, 6), TIMES), unique=True, max_size=20))
    rows = []
    for job, submit in keys:
        eligible = draw(st.sampled_from((0, submit, submit + draw(TIMES))))
        end = draw(st.sampled_from((0, submit, max(submit, eligible) + draw(TIMES))))
        rows.append(Row(job, submit + 1000, eligible and eligible + 1000, end and end + 1000))
    return rows


def _keys(runs: Sequence[pyslurm_runs.Job]) -> list[tuple[int, int]]:
    return sorted((run["jobid"], run["submit"]) for run in runs)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Slurmdbd]:
    """Whoever is in the list has its clock moved by sleeping."""
    sleepers: list[Slurmdbd] = []

    def sleep(duration_s: int) -> None:
        for one in sleepers:
            one.now += duration_s

    monkeypatch.setattr("hami_hpc.accounting.sources.pyslurm_runs.time.sleep", sleep)
    return sleepers


@given(rows=tables(), start=TIMES, length=st.integers(1, 60), now=TIMES)
@settings(max_examples=400, deadline=None)
def test_every_run_of_a_window_is_given_once(rows: list[Row], start: int, length: int, now: int) -> None:
    start_s, end_s = start + 1000, start + 1000 + length
    expected = [row for row in rows if 0 < row.eligible < end_s and (row.end >= start_s or not row.end)]
    with pytest.MonkeyPatch.context() as patch:
        slurmdbd = Slurmdbd(rows, now + 1000 if now + 1000 != end_s else 10**9)
        patch.setattr("hami_hpc.accounting.sources.pyslurm_runs.time.sleep", lambda s: setattr(slurmdbd, "now", 10**9))
        assert _keys(list(every_run(slurmdbd, (), start_s, end_s))) == sorted((row.job, row.submit) for row in expected)


@given(rows=tables(), jobs=st.sets(st.integers(1, 7), min_size=1), now=TIMES)
@settings(max_examples=200, deadline=None)
def test_every_run_of_jobs_asked_for_by_number_is_given_once(rows: list[Row], jobs: set[int], now: int) -> None:
    expected = sorted((row.job, row.submit) for row in rows if row.job in jobs)
    with pytest.MonkeyPatch.context() as patch:
        slurmdbd = Slurmdbd(rows, now + 1000)
        patch.setattr("hami_hpc.accounting.sources.pyslurm_runs.time.sleep", lambda s: setattr(slurmdbd, "now", 10**9))
        assert _keys(list(every_run(slurmdbd, sorted(jobs), 0, 0))) == expected


def test_jobs_of_one_run_are_not_asked_about_one_by_one() -> None:
    slurmdbd = Slurmdbd([Row(job, 1000 + job, 1000 + job, 2000) for job in range(1, 1001)])
    assert len(list(every_run(slurmdbd, (), 900, 3000))) == 1000
    assert slurmdbd.calls == 2  # the second for the first job of all, of which the order says nothing


def test_an_answer_in_an_order_not_known_has_every_job_asked_about() -> None:
    slurmdbd = Slurmdbd([Row(job, 1000 + job, 1000 + job, 2000) for job in (1, 2, 3, 4)])

    def ask(jobs: Sequence[str], start_s: int, end_s: int, flags: int) -> Mapping[int, pyslurm_runs.Job]:
        answer = slurmdbd(jobs, start_s, end_s, flags)
        return {job: answer[job] for job in (2, 4, 1, 3) if job in answer}

    assert len(list(every_run(ask, (), 900, 3000))) == 4
    assert slurmdbd.calls == 5


def test_a_slurmdbd_that_answers_with_later_runs_over_and_over_is_an_error(clock: list[Slurmdbd]) -> None:
    slurmdbd = Slurmdbd([Row(7, 1000, 1000, 2000)])

    def ask(jobs: Sequence[str], start_s: int, end_s: int, flags: int) -> Mapping[int, pyslurm_runs.Job]:
        return slurmdbd([], 900, 3000, flags)

    with pytest.raises(AccountingError, match=r"later runs of jobs 7 .*clock"):
        list(every_run(ask, (), 900, 3000))


def test_components_of_heterogeneous_jobs_are_found_though_their_first_has_ended_before() -> None:
    rows = [
        *(Row(30 + offset, 1500, 1500, 2000, het=(30, offset)) for offset in range(3)),
        Row(40, 1100, 1100, 1200, het=(40, 0)),  # ended before the window
        Row(41, 1100, 1100, 2000, het=(40, 1)),
        Row(50, 1500, 1500, 2000),
        Row(52, 1500, 1500, 2000, task=1),
    ]
    slurmdbd = Slurmdbd(rows)
    runs = {run["jobid"]: run for run in every_run(slurmdbd, (), 1400, 3000)}
    assert sorted(runs) == [30, 31, 32, 41, 50, 52]
    found = het_ids(slurmdbd, runs, 1400)
    assert found == {30: "30+0", 31: "30+1", 32: "30+2", 40: "40+0", 41: "40+1"}
    by_number = {run["jobid"]: run for run in every_run(slurmdbd, (31,), 0, 0)}
    assert het_ids(slurmdbd, by_number, 0)[31] == "30+1"


JOB = {
    "jobid": 9, "account": None, "user": None, "uid": 39999, "partition": "p", "qosid": NO_VAL, "requid": 5,
    "state_str": "CANCELLED", "submit": 100, "eligible": -1, "start": NO_VAL, "end": 0, "elapsed": 1,
    "suspended": 180061, "tres_alloc_str": "", "cluster": "c", "nodes": "n1", "constraints": "",
    "array_job_id": 7, "array_task_id": 3, "array_task_str": None,
}  # fmt: skip


def test_what_slurm_leaves_unset_is_printed_as_sacct_prints_it() -> None:
    line = fields(JOB, Names({}, {}), None)
    assert (line["Account"], line["User"], line["UID"], line["QOS"]) == ("", "", "39999", "")
    assert (line["Eligible"], line["Start"], line["End"]) == ("Unknown", "None", "Unknown")
    assert (line["State"], line["Suspended"], line["JobID"]) == ("CANCELLED by 5", "2-02:01:01", "7_3")
    assert fields(JOB | {"requid": -1, "qosid": 8}, Names({}, {}), None)["QOS"] == "Unknown"
    assert fields(JOB | {"uid": 0}, Names({}, {}), None)["User"] == "root"


def test_a_tres_without_a_name_is_an_error_and_never_left_out() -> None:
    names = Names({1: "cpu", 2: "mem", 3: "energy", 1001: "gres/gpu"}, {})
    held = JOB | {"tres_alloc_str": "1=4,2=100,3=18446744073709551614,1001=2"}
    assert fields(held, names, None)["AllocTRES"] == "cpu=4,gres/gpu=2,mem=100M"
    with pytest.raises(AccountingError, match="job 9 held TRES '1002=1'"):
        fields(held | {"tres_alloc_str": "1002=1"}, names, None)


def _pyslurm(jobs: Mapping[str, Sequence[Row]], asked: list[Any]) -> Any:
    """A module as pyslurm is one, for what pyslurm_source uses of it."""
    connections = itertools.count()

    class Jobs:
        def __init__(self) -> None:
            self.number = next(connections)

        def get(self, jobids: list[str], starttime: bytes, endtime: bytes, flags: int, clusters: list[str]) -> Any:
            asked.append((self.number, clusters, bool(jobids)))
            start_s, end_s = (int(time.decode().removeprefix("uts")) for time in (starttime, endtime))
            answer = Slurmdbd(jobs[clusters[0]])(jobids, start_s, end_s, flags)
            return {number: JOB | job | {"cluster": clusters[0]} for number, job in answer.items()}

    def named(**kinds: str) -> Any:
        entries = {int(number[1:]): SimpleNamespace(type_and_name=name, name=name) for number, name in kinds.items()}
        return SimpleNamespace(load=lambda *_, name_is_key: entries)

    class UnreachableError(Exception):
        pass

    database = SimpleNamespace(
        TrackableResources=named(_1="cpu"),
        QualitiesOfService=named(_1="normal"),
        QualityOfServiceFilter=lambda with_deleted: with_deleted,
    )
    return SimpleNamespace(
        __version__="22.5.3",
        RPCError=UnreachableError,
        db=database,
        settings=SimpleNamespace(LOCAL_CLUSTER="here"),
        slurmdb_clusters=lambda: SimpleNamespace(get=lambda: dict.fromkeys(jobs)),
        slurmdb_jobs=Jobs,
    )


@pytest.mark.parametrize(("wanted", "clusters"), [("", ["here"]), ("all", ["here", "there"]), ("there,", ["there"])])
def test_each_cluster_is_asked_on_its_own_since_numbers_are_its_own(
    tmp_path: Path, wanted: str, clusters: list[str]
) -> None:
    when_s = 1_800_000_000
    row = Row(5, when_s, when_s, when_s + 100)
    asked: list[Any] = []
    request = pyslurm_source.Request(str(tmp_path / "out"), (), when_s - 100, when_s + 200, wanted)
    module = _pyslurm({"here": [row, replace(row, submit=when_s - 50, end=when_s)], "there": [row]}, asked)
    pyslurm_source.write(module, request)
    lines = [line.split(DELIMITER) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()[1:]]
    told: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        told[line[ASKED.index("Cluster")]] += 1
    assert told == {name: {"here": 2, "there": 1}[name] for name in clusters}
    # A call for a window on a connection that has served one by number would still have the numbers.
    by_window = {connection for connection, _, has_numbers in asked if not has_numbers}
    assert by_window.isdisjoint({connection for connection, _, has_numbers in asked if has_numbers})


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise ModuleNotFoundError('no', name='pyslurm')", r"no module pyslurm in .*pip install git.*--source sacct"),
        (
            "raise ImportError('libslurm.so.38: cannot open')",
            r"was not built for .*libslurm\.so\.38.*sacct --version names",
        ),
        ("import os; os.write(2, b'fatal: no configuration\\n'); os._exit(1)", "pyslurm failed: fatal: no config"),
        ("import os; os._exit(3)", "pyslurm failed: status 3"),
        ("__path__ = []; __version__ = '30.1'", "no module pyslurm.settings"),
    ],
)
def test_a_pyslurm_that_is_missing_or_does_not_fit_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    (tmp_path / "pyslurm.py").write_text(module + "\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AccountingError, match=message):
        pyslurm_source.fetch(Period(1_800_000_000, 1_800_000_100), tmp_path / "out")


def test_a_slurmdbd_that_is_away_and_a_release_of_another_shape_are_said(tmp_path: Path) -> None:
    module = _pyslurm({"here": []}, [])

    def fails(error: Exception) -> Any:
        def load(*_: Any, name_is_key: bool) -> Any:
            raise error

        return SimpleNamespace(load=load)

    module.db.TrackableResources = fails(module.RPCError("Failed to get TRES"))
    with pytest.raises(AccountingError, match="slurmdbd does not answer"):
        pyslurm_source.names_of(module)
    module.db.TrackableResources = fails(TypeError("name_is_key"))
    with pytest.raises(AccountingError, match=r"pyslurm 22\.5\.3 has no TRES by number"):
        pyslurm_source.names_of(module)
