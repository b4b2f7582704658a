# SPDX-License-Identifier: Apache-2.0
"""mode=mig from sbatch to the usage record: steps see their job's MIG instance, other users cannot open it, a job for
which there is no place waits in the queue, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import Layout
from test_swap_live import agent_sees

from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import JobState

USER, OTHER = "games", "news"
SMALL, WHOLE = "--gres=vgpu:mem=16G,cores=14", "--gres=vgpu:mem=130G,cores=90"
PROFILES = f"""
[gpu_models.{config.GPU_MODEL}.mig_profiles]
"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {{0,1,2,3,4,5,6}}, at most 7"
"7g.141gb" = "143104 MiB, 7/7 compute, 8/8 memory at {{0}}, at most 1"
"""
# Prints memory (MiB) and multiprocessors of each CUDA device that a process has.
CUDA = """\
import ctypes, os
cuda, count, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
if cuda.cuInit(0) == 0:
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    for index in range(count.value):
        size, units = ctypes.c_size_t(), ctypes.c_int()
        assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), index) == 0
        assert cuda.cuDeviceGetAttribute(ctypes.byref(units), 16, index) == 0
        found.append((size.value >> 20, units.value))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("NVIDIA_VISIBLE_DEVICES"), found, flush=True)
"""

# Takes the memory that CUDA shows, of so many MiB, and says what the step's record and the driver gave it.
PART = """\
import ctypes, os, struct, sys
cuda, size, address, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_void_p()
free, total, mib, taken = ctypes.c_size_t(), ctypes.c_size_t(), 1 << 20, 0
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert size.value == total.value == int(sys.argv[1]) * mib, (size.value, total.value)
while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(2 * mib)) == 0:
    taken += 2 * mib
is_all = free.value - 2 * mib < taken <= free.value
percent = struct.unpack_from("<I", open(os.environ["HAMI_HPC_LIMITS"], "rb").read(), DEVICE_PERCENT)[0]
print(f"{sys.argv[1]}: {'all of it and no more' if is_all else (taken, free.value)}, {percent} %", flush=True)
""".replace("DEVICE_PERCENT", str(c.LIMITS_FIELDS["device_percent"][0]))


@pytest.fixture
def divided(restored: Layout) -> Iterator[Layout]:
    """The cluster with both GPUs divided by MIG, and nothing else offered."""
    (restored.machine / "proc").mkdir(exist_ok=True)
    (restored.machine / "proc/devices").write_text("Character devices:\n238 nvidia-caps\n")
    settings = config.site_toml(restored).replace(
        "[paths]", f'modes = ["mig"]\n[paths]\ndriver_root = "{restored.machine}"'
    )
    config.write(restored.site_config, settings + PROFILES)
    config.render(restored)
    for name in ("slurmd", "slurmd-cpu", "slurmctld"):
        private_cluster.restart(restored, name)
    for gpu in ("0", "1"):
        assert "MIG is on" in jobs.admin(restored, "hami-hpc", "mig", "enable", gpu, "--node", "node1")
    for user in (USER, OTHER):
        (restored.home / user / "cuda.py").write_text(CUDA)
        (restored.home / user / "part.py").write_text(PART)
    yield restored
    for user in (USER, OTHER):
        jobs.admin(restored, "scancel", f"--user={user}")
    jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "the jobs to end", 60)
    jobs.wait(restored, lambda: not instances(restored), "the instances to be gone", 30)
    for gpu in ("0", "1"):
        jobs.admin(restored, "hami-hpc", "mig", "disable", gpu, "--node", "node1")


def instances(layout: Layout) -> list[dict[str, Any]]:
    listed = json.loads(jobs.admin(layout, "hami-hpc", "mig", "list", "--format", "json"))
    return [row | {"minor": gpu["minor"]} for gpu in listed for row in gpu["instances"]]


def has_its_memory(job: JobState) -> bool:
    return job.used_bytes >= 1000 << 20


def by_hand(layout: Layout, call: str) -> None:
    """Does an administrator's call of NVML for each GPU."""
    program = f"import pynvml as n; n.nvmlInit(); [n.{call} for gpu in map(n.nvmlDeviceGetHandleByIndex, (0, 1))]"
    jobs.admin(layout, str(config.PYTHON), "-c", program)


def test_steps_of_a_job_share_its_instance_and_another_user_cannot_open_it(divided: Layout) -> None:
    victim = jobs.submit(divided, OTHER, SMALL, script="rm -f end\nslice --use 1000 --until end")
    jobs.wait(divided, lambda: "ok" in jobs.output(divided, OTHER, victim), "the memory in the instance", job=victim)
    (theirs,) = instances(divided)
    assert (theirs["job_id"], theirs["is_ours"], theirs["profile"]) == (victim, True, "1g.18gb")
    script = f"python3 cuda.py; srun python3 cuda.py; CUDA_VISIBLE_DEVICES={theirs['uuid']} python3 cuda.py"
    script += "; env -u CUDA_VISIBLE_DEVICES python3 cuda.py; srun --gres=none python3 cuda.py"
    attacker = jobs.submit(divided, USER, SMALL, script=script)
    jobs.wait_for_state(divided, attacker, "COMPLETED")
    lines = jobs.output(divided, USER, attacker).splitlines()
    uuid = lines[0].split()[0]
    assert uuid.startswith("MIG-")
    assert uuid != theirs["uuid"]
    own = f"{uuid} {uuid} [(16384, 16)]"
    assert lines[:2] == [own, own], "batch step and srun"
    assert lines[2].endswith(" []"), "another user's instance cannot be opened"
    assert lines[3].endswith(" [(16384, 16)]"), "the only one that may be opened"
    assert lines[4].endswith(" []"), "a step without a GPU"
    jobs.wait(divided, lambda: agent_sees(divided, victim, has_its_memory), "the agent to see the memory", job=victim)
    (divided.home / OTHER / "end").touch()
    jobs.wait_for_state(divided, victim, "COMPLETED")
    record_path = divided.state_dir / "usage" / f"{victim}.json"
    jobs.wait(divided, record_path.exists, "the usage record", 30)
    record = json.loads(record_path.read_text())
    assert (record["mode"], record["usage"]) == ("mig", "observed")
    assert record["observed_peak_bytes"] >= 1000 << 20, "the agent found the process in the instance, and its job"


def test_steps_with_parts_of_an_instance_are_limited_to_them(divided: Layout) -> None:
    """Memory to the byte and half of the instance's time each, beside a step that has all of it, not limited."""
    part = "srun --exact --overlap -n1 --gres=vgpu:mem={mem},cores=7 {program}"
    script = "srun python3 cuda.py; "
    script += part.format(mem="4G", program="python3 part.py 4096") + "; "
    script += f"({part.format(mem='12G', program='python3 part.py 12288')}) & "
    script += part.format(mem="4G", program="python3 part.py 4096") + "; wait; srun --gres=none python3 cuda.py"
    job = jobs.submit(divided, USER, SMALL, script=script)
    jobs.wait_for_state(divided, job, "COMPLETED")
    lines = jobs.output(divided, USER, job).splitlines()
    assert lines[0].endswith(" [(16384, 16)]"), "all of the instance, and no interposer"
    assert sorted(lines[1:4]) == ["12288: all of it and no more, 50 %", *["4096: all of it and no more, 50 %"] * 2]
    assert lines[4].endswith(" []"), "a step without a GPU"


def test_a_job_without_a_place_goes_back_to_the_queue_and_the_node_stays(divided: Layout) -> None:
    """Somebody's own instances lie where slurmctld sees free shards."""
    by_hand(divided, "nvmlDeviceCreateGpuInstance(gpu, 19)")
    job = jobs.submit(divided, USER, WHOLE, script="true")
    jobs.wait(divided, lambda: jobs.job_facts(divided, job).get("Restarts") == "1", "the job to be requeued", 60, job)
    facts = jobs.admin(divided, "scontrol", "show", "job", str(job))
    assert f"AdminComment=hami_hpc: job {job} needs a MIG instance 7g.141gb on GPU" in facts
    assert "DRAIN" not in jobs.admin(divided, "sinfo", "-h", "-o", "%T").upper()
    assert [row["is_ours"] for row in instances(divided)] == [False, False]
    jobs.admin(divided, "scancel", str(job))
    by_hand(divided, "nvmlGpuInstanceDestroy(n.nvmlDeviceGetGpuInstanceById(gpu, 7))")
