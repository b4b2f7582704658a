# SPDX-License-Identifier: Apache-2.0
"""A site without slurmdbd, as small ones are: its slurmctld starts with what render writes, and jobs have slices."""

from __future__ import annotations

import json
import re

from harness import config, daemons, jobs, node, services
from harness.layout import Layout
from test_requests import total_mib


def test_slices_need_no_slurmdbd(restored: Layout) -> None:
    for name in ("slurmd", "slurmctld", "slurmdbd"):
        daemons.stop(restored, name)
    text = re.sub(r"(?m)^AccountingStorage.*\n", "", restored.slurm_conf.read_text())
    config.write(restored.slurm_conf, text)
    config.render(restored)
    assert "AccountingStorageTRES" not in (restored.etc / "slurm-hami-hpc.conf").read_text()
    for name in ("slurmctld", "slurmd"):
        daemons.start(restored, services.describe(restored, name))
    jobs.wait(restored, lambda: services.nodes_answer(restored), "the nodes to register", 60)
    job = jobs.submit(restored, "games", "--gres=vgpu:mem=8G,cores=20", script="slice; srun slice; sleep 6")
    jobs.wait_for_state(restored, job, "RUNNING")
    waiting = jobs.submit(restored, "news", "--hold", "--gres=vgpu:mem=100G,cores=20", script="true")
    (told,) = json.loads(jobs.admin(restored, "hami-hpc", "explain", "--format=json", str(waiting)))
    assert (told["asked"]["request"], told["asked"]["service_class"]) == ("vgpu:mem=100G,cores=20", "std")
    (place,) = told["may_use"]
    assert place["lacks"] == []
    (shown,) = json.loads(jobs.admin(restored, "hami-hpc", "pool", "--format=json"))
    assert (shown["allocated_mem_mib"], shown["allocated_cores"]) == (8192, 20)
    assert [gpu["free_shards"] for gpu in shown["free_by_gpu"]] == [448, 559]
    jobs.wait_for_state(restored, job, "COMPLETED")
    assert total_mib(jobs.output(restored, "games", job)) == [8192, 8192]
    node.wait_until_clean(restored)
