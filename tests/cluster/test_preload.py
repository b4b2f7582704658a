# SPDX-License-Identifier: Apache-2.0
"""preload = "ldso", the default: no change of the environment takes the fence away, in any kind of step.

Where tasks cannot have mounts of their own (a container without CAP_SYS_ADMIN, a root directory that is no mount
point) the harness sets "env", and these tests show that "ldso" is refused there, with what to do.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import jobs, node
from harness.config import driver_environment, preload_mode, simulated_kernel, write
from harness.layout import Layout
from test_requests import total_mib

USER = "games"
REQUEST = ("--ntasks=2", "--gres=vgpu:mem=4G,cores=25")
IS_FENCED = """#!/bin/sh
if env -i cat /proc/self/maps | grep -q libhami-hpc.so; then echo fenced; else echo open; fi
"""


def text_of(layout: Layout, script: str, *wanted: str) -> str:
    """What a job of 4 GiB prints. ./is_fenced says whether a program without any environment has the interposer."""
    jobs.write_script(layout, USER, "is_fenced", IS_FENCED)
    job = jobs.submit(layout, USER, *REQUEST, script=script)
    jobs.wait_for_state(layout, job, *(wanted or ("COMPLETED",)))
    return jobs.output(layout, USER, job)


def set_preload(layout: Layout, mode: str) -> None:
    """What slurmstepd reads at the next step's start."""
    plugstack = layout.etc / "plugstack.conf.d" / "hami-hpc.conf"
    text = plugstack.read_text()
    for other in ("ldso", "env"):
        text = text.replace(f"preload={other}", f"preload={mode}")
    write(plugstack, text)


def check_refused(layout: Layout) -> None:
    """Where the default cannot be: a job in that mode fails with the reason and the setting for such nodes."""
    set_preload(layout, "ldso")
    text = text_of(layout, "./is_fenced", "FAILED")
    assert "open" not in text
    for part in ("is not started", 'preload = "env"'):
        assert part in text, text


AROUND = "printf '#!/bin/sh\\n./is_fenced >said\\n' >around; chmod +x around;"
KINDS = {
    "batch": "./is_fenced",
    "srun": "srun -n1 ./is_fenced",
    "two tasks": "srun -n2 ./is_fenced | uniq",
    "pty": "sleep 4 | script -qec 'srun -n1 --pty ./is_fenced' /dev/null | tr -d '\\r'",
    "task prolog": f"{AROUND} srun -n1 --task-prolog=$PWD/around true; cat said",
    "without gpu": "srun -n1 --gres=none ./is_fenced",
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_task_has_the_interposer_without_any_environment(kind: str, restored: Layout) -> None:
    if preload_mode() == "env":
        check_refused(restored)
    else:
        text = text_of(restored, KINDS[kind])
        assert text.split() == ["fenced"], text


def test_salloc_with_an_interactive_step_is_fenced(restored: Layout) -> None:
    if preload_mode() == "env":
        return check_refused(restored)
    jobs.write_script(restored, USER, "is_fenced", IS_FENCED)
    salloc = "salloc --gres=vgpu:mem=4G,cores=25"
    shell = f"(echo ./is_fenced; sleep 5; echo exit) | script -qec '{salloc}' /dev/null"
    done = jobs.run_as(restored, USER, ("sh", "-c", shell), extra={"SHELL": "/bin/sh"})
    assert re.search(r"^(\S*[$#] )?fenced\r?$", done.text, re.MULTILINE), done.text
    return None


def test_the_limit_is_found_whatever_the_environment_says(restored: Layout) -> None:
    """No environment, and one that names another record: each gets the step's own limit and the job's usage file."""
    if preload_mode() == "env":
        return check_refused(restored)
    driver = " ".join(f"{name}={value}" for name, value in driver_environment(restored).items())
    preload = f"LD_PRELOAD={restored.interposer}:{simulated_kernel(restored)}"
    bare = f"env -i {driver} {preload} {restored.bin}/slice --use 16"
    forged = "cp -r $(dirname $HAMI_HPC_LIMITS) forged; HAMI_HPC_LIMITS=$PWD/forged/job.limits slice --use 16"
    text = text_of(restored, f"{bare}; srun -n1 --gres=vgpu:mem=1G,cores=5 {bare}; rm -rf forged; {forged}")
    assert total_mib(text) == [4096, 1024, 4096], text
    # Without the simulated kernel behind the interposer nothing is charged, and what is not charged stays closed.
    text = text_of(restored, f"env -i {driver} {restored.bin}/slice --use 16; echo status $?")
    assert "status 1" in text, text
    return None


def test_the_other_mode_works_where_it_is_set(restored: Layout) -> None:
    """preload = "env" is for nodes whose tasks cannot have mounts of their own."""
    set_preload(restored, "env")
    text = text_of(restored, "slice --use 16; ./is_fenced")
    assert total_mib(text) == [4096]
    assert text.endswith("open\n")


def test_what_the_security_page_says_it_does_not_stop(restored: Layout) -> None:
    """docs/security.md: a task epilog, LD_PRELOAD's libraries going first, a user namespace of the user's own."""
    if preload_mode() == "env":
        return check_refused(restored)
    text = text_of(restored, f"{AROUND} srun -n1 --task-epilog=$PWD/around true; sleep 1; cat said")
    assert text == "open\n"
    first = "/usr/lib/x86_64-linux-gnu/libm.so.6"
    listed = text_of(restored, f"env -i LD_PRELOAD={first} LD_TRACE_LOADED_OBJECTS=1 /bin/true")
    assert [word for word in listed.split() if word in (first, str(restored.interposer))] == [
        first,
        str(restored.interposer),
    ]
    over = "unshare -Urm sh -c 'mount --bind /dev/null /etc/ld.so.preload && ./is_fenced' || echo no namespace"
    assert text_of(restored, over).splitlines()[-1] in ("open", "no namespace")
    return None


def test_nothing_of_a_tasks_mounts_is_seen_outside(restored: Layout) -> None:
    if preload_mode() == "env":
        return check_refused(restored)
    job = jobs.submit(restored, USER, *REQUEST, script="cat /proc/self/mountinfo; sleep 3")
    jobs.wait(restored, lambda: "/run/hami-hpc/self" in jobs.output(restored, USER, job), "the task's mounts")
    assert "/run/hami-hpc/self" not in Path("/proc/self/mountinfo").read_text()
    return None


@pytest.mark.findings("uncounted", "memory_over")
def test_what_a_user_writes_over_the_charges_is_believed_as_the_security_page_says(cluster: Layout) -> None:
    """If this fails because the second process is refused, take the point out of docs/security.md."""
    script = (
        "usage=${HAMI_HPC_LIMITS%/*}/shared/usage; cp $usage fresh; slice --use 3000 --until believed >first & "
        "until grep -qs ok first; do sleep 0.1; done; slice --use 3000 >second; echo second $?; "
        "cat fresh 1<>$usage; slice --use 3000 >third; echo third $?; touch believed; wait; "
        "rm believed first second third fresh"
    )
    job = jobs.submit(cluster, USER, *REQUEST, script=script)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert jobs.output(cluster, USER, job) == "second 3\nthird 0\n"
    assert not node.drain_reason(cluster)
