# SPDX-License-Identifier: Apache-2.0
"""Latency-critical jobs that want more than their cores: what the agent writes into their records, whatever happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from node_testbed import UID, Node, job_environment, names_in
from test_crash import all_lines

from hami_hpc.agent import latency_beyond
from hami_hpc.agent.latency_beyond import PERIOD_S, LatencyBeyond, make
from hami_hpc.agent.slices import Slices
from hami_hpc.contract import constants as c
from hami_hpc.core.records import pack_limits
from hami_hpc.errors import NodeError
from hami_hpc.node import neighbours
from hami_hpc.stages import common
from hami_hpc.stages.prolog import prolog

GREEDY, SERVICE, BATCH, LATE = 7, 8, 9, 10
CORES = {GREEDY: "40", SERVICE: "20", BATCH: "30", LATE: "5"}
FIELDS = ("latency_beyond", "latency_others", "turn_length_permille", "latency_cores")
BY_THEMSELVES = {GREEDY: (0, 1, 950, 60), SERVICE: (0, 1, 950, 60), BATCH: (0, 2, 0, 0)}
AS_ANY_OTHER = {GREEDY: (1, 1, 571, 0), SERVICE: (0, 0, 0, 0), BATCH: (0, 1, 429, 0)}


@dataclass
class Site:
    """A node with two latency-critical jobs and a best-effort one on a GPU; `wants` are the jobs that want more."""

    node: Node
    now: int = 1_700_000_000 * 10**9
    wants: set[int] = field(default_factory=lambda: {GREEDY})
    starved: set[int] = field(default_factory=set)  # of these, who has nothing of the GPU
    used: int = 0  # by an MPS server, ns

    def agent(self) -> LatencyBeyond:
        return LatencyBeyond(self.node.settings, lambda: self.now)

    def begin(self, *job_ids: int, best_effort: int = BATCH) -> None:
        for job_id in job_ids:
            given = {c.ENV_CLASS: "be" if job_id == best_effort else "lc", c.ENV_CORES: CORES[job_id]}
            prolog(self.node.settings, job_environment(job_id, 1024, **given))

    def look(self, agent: LatencyBeyond, times: int = 6) -> str:
        problem = ""
        for _ in range(times):
            self.say()
            problem = agent.once()
        return problem

    def say(self) -> None:
        """The jobs say what they want, a period later."""
        self.now += int(PERIOD_S * 10**9)
        for job_id in self.wants:
            used = 0 if job_id in self.starved else self.now - 1_600_000_000 * 10**9
            self.node.write_usage(job_id, more_unix_ns=self.now - 1, time_used=used)

    def path(self, job_id: int, name: str = c.FILE_JOB_LIMITS) -> Path:
        return self.node.jobs / str(job_id) / name

    def told(self) -> dict[int, tuple[int, ...]]:
        """Returns what the records say, each of them stable."""
        records = {int(name): self.path(int(name)).read_bytes() for name in self.node.names() if name.isdigit()}

        def number(data: bytes, name: str) -> int:
            offset, width, _kind = c.LIMITS_FIELDS[name]
            return int.from_bytes(data[offset : offset + width], "little")

        assert [job_id for job_id, data in records.items() if number(data, "sequence") % 2] == []
        return {job_id: tuple(number(data, name) for name in FIELDS) for job_id, data in sorted(records.items())}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(Node.make(tmp_path / "node"))
    site.begin(GREEDY, SERVICE, BATCH)
    assert site.told() == BY_THEMSELVES
    return site


def test_who_wants_more_has_a_turn_like_others_until_it_does_not(site: Site) -> None:
    agent = site.agent()
    assert site.look(agent) == ""
    assert site.told() == AS_ANY_OTHER
    seen = Slices(site.node.settings.run_dir)
    assert [one.beyond for one in seen.look()[0]] == [True, False, False]
    site.wants.clear()
    assert site.look(agent) == ""
    assert site.told() == BY_THEMSELVES
    assert [one.beyond for one in seen.look()[0]] == [False, False, False]


def test_what_the_agent_said_of_a_job_outlives_it_and_the_stages_of_others(site: Site) -> None:
    site.look(site.agent())
    site.begin(LATE)
    assert site.told()[GREEDY][0] == 1
    assert site.node.epilog(LATE) == 0
    assert site.told() == AS_ANY_OTHER
    agent = site.agent()
    site.look(agent, 20)
    assert site.told() == AS_ANY_OTHER
    site.wants.clear()
    site.look(agent)
    assert site.told() == BY_THEMSELVES


def test_the_only_latency_critical_job_is_one_beside_others_that_want_nothing(site: Site) -> None:
    site.look(site.agent())
    assert site.node.epilog(SERVICE) == 0
    assert site.told() == {GREEDY: (1, 0, 571, 0), BATCH: (0, 0, 429, 0)}
    site.look(site.agent(), 20)
    assert site.told() == {GREEDY: (0, 0, 0, 0), BATCH: (0, 1, 0, 0)}
    assert site.node.epilog(BATCH) == 0
    site.look(site.agent(), 20)
    assert site.told() == {GREEDY: (0, 0, 0, 0)}


def test_the_only_latency_critical_job_gives_way_to_one_that_lacks_what_it_asked_for(site: Site) -> None:
    assert site.node.epilog(SERVICE) == 0
    site.wants.add(BATCH)
    agent = site.agent()
    site.look(agent, 20)
    assert site.told() == {GREEDY: (0, 0, 0, 0), BATCH: (0, 1, 0, 0)}, "it has what it asked for"
    site.starved.add(BATCH)
    site.look(agent, 20)
    assert site.told() == {GREEDY: (1, 0, 571, 0), BATCH: (0, 0, 429, 0)}
    assert site.node.epilog(BATCH) == 0
    assert site.told() == {GREEDY: (0, 0, 0, 0)}, "it is alone"


def test_where_all_want_more_nobody_is_latency_critical(site: Site) -> None:
    site.wants.add(SERVICE)
    agent = site.agent()
    site.look(agent, 12)
    assert [row[:2] for row in site.told().values()] == [(1, 0), (1, 0), (0, 0)]


def test_an_agent_that_is_told_to_end_gives_all_their_place_back_and_says_nothing_more(site: Site) -> None:
    agent = site.agent()
    site.look(agent)
    assert agent.end() == ""
    assert site.told() == BY_THEMSELVES
    site.look(agent)
    assert site.told() == BY_THEMSELVES


@pytest.mark.own_process
def test_after_an_agent_killed_at_any_line_the_next_one_tells_all_the_same(site: Site) -> None:
    agent = site.agent()

    def before() -> None:
        nonlocal agent
        fresh = site.agent()
        site.wants.clear()
        site.look(fresh)
        assert site.told() == BY_THEMSELVES
        site.wants.add(GREEDY)
        agent = site.agent()
        site.look(agent, 1)
        site.now += int(PERIOD_S * 10**9)
        site.node.write_usage(GREEDY, more_unix_ns=site.now - 1)

    before()
    agent.once()
    assert site.told() == AS_ANY_OTHER
    found = set()
    for line in all_lines(lambda: print(agent.once(), end=""), before):
        site.agent().once()
        told = site.told()
        assert told in (AS_ANY_OTHER, BY_THEMSELVES), f"killed at {line}"
        found.add(told == AS_ANY_OTHER)
    assert found == {False, True}


OVERSOLD = "[vgpu]\nmemory_scaling = 2\n[agent]\n[classes.be]\nswap = true\n"


def oversell(site: Site) -> None:
    """Memory is oversold, and a latency-critical job waits for room on the GPU: its user may say anything of it."""
    site.node.config.write_text(site.node.config.read_text() + OVERSOLD)
    site.begin(LATE)
    neighbours.write_swap(site.node.settings.run_dir, site.node.grants()[LATE], c.SWAP_WAIT)
    site.wants = {LATE}


def test_a_job_that_waits_for_room_keeps_no_other_from_being_taken(site: Site) -> None:
    oversell(site)
    agent = site.agent()
    site.look(agent)
    site.wants.add(GREEDY)
    site.look(agent, 20)
    assert site.told()[GREEDY][0] == 1


def test_where_the_others_wait_for_room_nothing_is_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    oversell(site)
    assert site.node.epilog(SERVICE) == 0
    site.wants.add(GREEDY)
    agent = site.agent()
    site.look(agent, 1)  # the first one makes good what a killed agent left
    monkeypatch.setattr(common, "open_ledger", lambda _settings: pytest.fail("nobody is beside it who wants more"))
    assert site.look(agent, 20) == ""


def test_a_job_that_is_off_the_gpu_lacks_nothing_there(site: Site) -> None:
    site.node.config.write_text(site.node.config.read_text() + "[classes.be]\nswap = true\n")
    assert [site.node.epilog(job_id) for job_id in (SERVICE, BATCH)] == [0, 0]
    site.begin(BATCH)
    grant, agent = site.node.grants()[BATCH], site.agent()

    def look() -> int:
        for _ in range(12):
            site.node.write_usage(BATCH, more_unix_ns=site.now, time_used=0)
            site.look(agent, 1)
        return site.told()[GREEDY][0]

    assert look() == 1
    neighbours.write_swap(site.node.settings.run_dir, grant, c.SWAP_OUT)
    assert look() == 0
    neighbours.write_swap(site.node.settings.run_dir, grant, c.SWAP_IN)
    assert look() == 1


def begin_as_mps_client(site: Site, job_id: int) -> None:
    site.begin(job_id, best_effort=job_id)
    client = site.node.grants()[job_id]._replace(mode="mps")
    with contextlib.closing(common.open_ledger(site.node.settings)) as ledger:
        ledger.remove(client)
        ledger.restore([client])
    site.path(job_id).write_bytes(pack_limits(client))


def test_the_only_latency_critical_job_gives_way_to_an_mps_server_that_lacks_what_its_jobs_asked_for(
    site: Site,
) -> None:
    """Each of its two clients says how much the server had: more than itself asked for, and less than both did."""
    assert [site.node.epilog(job_id) for job_id in (SERVICE, BATCH)] == [0, 0]
    begin_as_mps_client(site, BATCH)
    begin_as_mps_client(site, LATE)
    agent = site.agent()

    def look(percent: int) -> int:
        for _ in range(12):
            site.used += int(PERIOD_S * 10**7) * percent
            for job_id in (BATCH, LATE):
                site.node.write_usage(job_id, more_unix_ns=site.now, time_used=site.used)
            site.look(agent, 1)
        return site.told()[GREEDY][0]

    assert look(35) == 0
    assert look(31) == 1, "they asked for 30 and 5"


@pytest.mark.parametrize("has_agent", [True, False])
def test_who_is_left_beside_clients_of_an_mps_server_alone_has_its_place_back(site: Site, has_agent: bool) -> None:
    """They want nothing, and are no reason to give way."""
    assert site.node.epilog(SERVICE) == 0
    begin_as_mps_client(site, LATE)
    site.wants, site.starved = {GREEDY, BATCH}, {BATCH}
    agent = site.agent()
    site.look(agent, 12)
    assert site.told()[GREEDY][0] == 1
    assert site.node.epilog(BATCH) == 0
    site.wants.remove(BATCH)
    assert (site.look(agent, 6) if has_agent else agent.end()) == ""
    assert site.told()[GREEDY][0] == 0


def test_with_very_many_jobs_no_file_stays_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_beyond, "KEPT_MAX", 2)
    agent, before = site.agent(), names_in(Path("/proc/self/fd"))
    site.look(agent)
    assert site.told() == AS_ANY_OTHER
    assert names_in(Path("/proc/self/fd")) == before


def shorten(path: Path) -> None:
    os.truncate(path, 100)


def link_it(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def fill(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("how", [shorten, link_it, fifo, fill, Path.unlink])
def test_what_a_user_does_to_their_own_file_touches_no_other_job(site: Site, how: Callable[[Path], None]) -> None:
    how(site.path(SERVICE, c.FILE_USAGE))
    assert site.look(site.agent()) == ""
    assert site.told()[GREEDY][0] == 1
    assert site.told()[SERVICE][0] == 0


def test_a_job_whose_record_root_did_not_write_is_none_of_several(site: Site) -> None:
    os.chown(site.path(SERVICE), UID, UID)
    assert "job 8 was left as it is" in site.look(site.agent())
    assert site.told()[GREEDY][0] == 0


def test_where_the_ledger_cannot_be_opened_that_is_the_problem_and_it_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_settings: object) -> None:
        raise NodeError("the ledger is damaged")

    agent = site.agent()
    lines: list[str] = []
    repeated = make(agent, lines.append)
    site.wants.clear()
    site.look(agent)
    site.wants.add(GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(common, "open_ledger", refuse)
        for _ in range(10):
            site.say()
            repeated.once()
        assert site.told() == BY_THEMSELVES
    assert len(lines) == 1
    assert "the ledger is damaged" in lines[0]
    assert site.look(agent) == ""
    assert site.told() == AS_ANY_OTHER


def test_a_record_that_is_left_alone_is_reported_once_however_often_others_change(
    site: Site,
) -> None:
    shorten(site.path(BATCH))
    lines: list[str] = []
    repeated = make(site.agent(), lines.append)
    for i in range(60):
        site.now += int(PERIOD_S * 10**9)
        if i % 6 < 2:
            site.node.write_usage(GREEDY, more_unix_ns=site.now - 1)
        repeated.once()
    assert len(lines) == 1
    assert lines[0].endswith("(tried again each 0.5 s)")
