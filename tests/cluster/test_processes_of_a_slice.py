# SPDX-License-Identifier: Apache-2.0
"""max_processes from the settings to the line on a task's standard error, and the agent behind it (ADR 067)."""

from __future__ import annotations

import pytest
from harness import config, jobs
from harness.agent import events_since, log_size
from harness.layout import Layout

from hami_hpc.contract import constants as c

USER = "games"
SMALL = ("--gres=vgpu:mem=2G,cores=10", "--ntasks=2")
# Frees all slots of the job's usage file, as its user can.
FIRST_SLOT = (c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT) // c.USAGE_SLOT_SIZE
FORGE = (
    f'dd if=/dev/zero of="$(dirname $HAMI_HPC_LIMITS)/{c.FILE_USAGE}" bs={c.USAGE_SLOT_SIZE} seek={FIRST_SLOT} '
    f"count={c.USAGE_SLOT_COUNT} conv=notrunc 2>/dev/null"
)


@pytest.fixture
def limited(restored: Layout) -> Layout:
    """A cluster where one process uses a slice, and any number one of class be."""
    text = config.site_toml(restored).replace("[vgpu]\n", "[vgpu]\nmax_processes = 1\n")
    config.write(restored.site_config, text.replace("[classes.be]\n", "[classes.be]\nmax_processes = 0\n"))
    return restored


def ended(layout: Layout, script: str, *options: str) -> str:
    job = jobs.submit(layout, USER, *SMALL, *options, script=script)
    jobs.wait_for_state(layout, job, "COMPLETED", "FAILED")
    return jobs.output(layout, USER, job)


def test_a_process_more_gets_no_gpu_whatever_step_it_is_of(limited: Layout) -> None:
    script = """
slice --use 100 --hold 100 >first & first=$!
until grep -q MiB first; do sleep 0.1; done
slice --use 100; echo second $?
srun --overlap -n1 slice --use 100; echo step $?
kill -9 $first; wait $first
srun --overlap -n1 slice --use 100; echo third $?
srun -n2 slice --use 100 --hold 4; echo ranks $?
"""
    text = ended(limited, script)
    assert "second 1\n" in text, text
    assert "step 1\n" in text, text
    assert "third 0\n" in text, text
    assert "ranks 1\n" in text, text
    assert text.count("as many processes of this job use its slice as class std allows (max_processes = 1)") == 3, text
    assert "ranks 0\n" in ended(limited, "srun -n2 slice --use 100 --hold 4; echo ranks $?", "--qos=be")


@pytest.mark.findings("processes_over", "uncounted")
def test_who_frees_places_in_the_record_is_found_by_the_agent(limited: Layout) -> None:
    start = log_size(limited)
    script = f"""
slice --use 100 --hold 12 >first &
until grep -q MiB first; do sleep 0.1; done
# Its keeper takes a place too, when it begins: again, should that have been after.
for try in 1 2 3; do
  {FORGE}
  slice --use 100 --hold 7; second=$?
  [ $second = 0 ] && break
done
echo second $second
wait
"""
    text = ended(limited, script)
    assert "second 0\n" in text, text
    found = [event for event in events_since(limited, start) if event.kind == "processes_over"]
    assert [event.action for event in found] == ["warn"], text
    assert "has 2 processes on GPU GPU-" in found[0].text
    assert f"{found[0].text}. This is recorded." in text, text
