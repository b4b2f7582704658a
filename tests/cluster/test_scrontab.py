# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm starts again and again by a user's table (scrontab): each run has its slice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import config, daemons, jobs, node, services
from harness.layout import Layout
from test_requests import total_mib

pytestmark = pytest.mark.slurm_from("25.05")  # Debian's older packages have no scrontab
USER = "games"
TWO_RUNS_S = 200  # one each minute


@pytest.fixture
def with_tables(restored: Layout) -> Iterator[Layout]:
    daemons.stop(restored, "slurmctld")
    config.write(restored.slurm_conf, f"{restored.slurm_conf.read_text()}ScronParameters=enable\n")
    daemons.start(restored, services.describe(restored, "slurmctld"))
    jobs.wait(restored, lambda: services.nodes_answer(restored), "the nodes to register", 60)
    yield restored
    jobs.run_as(restored, USER, ("scrontab", "-r"))


def install(layout: Layout, *lines: str) -> jobs.Done:
    """Makes these lines the user's table. Returns what scrontab said."""
    return jobs.run_as(layout, USER, ("scrontab", "-"), stdin="".join(f"{line}\n" for line in lines))


def test_each_run_of_a_job_by_scrontab_has_its_slice(with_tables: Layout) -> None:
    output = with_tables.home / USER / "each-minute"
    output.unlink(missing_ok=True)
    options = f"#SCRON --partition=gpu --gres=vgpu:mem=8G,cores=20 --output={output} --open-mode=append"
    done = install(with_tables, options, "* * * * * slice; srun slice")
    assert done.status == 0, done.out + done.err

    def totals() -> list[int]:
        return total_mib(output.read_text()) if output.exists() else []

    jobs.wait(with_tables, lambda: len(totals()) >= 4, "two runs of a job and a step", TWO_RUNS_S)
    assert set(totals()) == {8192}
    assert jobs.run_as(with_tables, USER, ("scrontab", "-r")).status == 0
    node.wait_until_clean(with_tables)


def test_a_bad_request_in_a_table_is_refused_with_what_to_write(with_tables: Layout) -> None:
    done = install(with_tables, "#SCRON --partition=gpu --gres=vgpu:mem=8G,cores=500", "* * * * * slice")
    assert done.status != 0
    assert "cores" in done.out + done.err, done.out + done.err
    assert "Example" in done.out + done.err, done.out + done.err
