# SPDX-License-Identifier: Apache-2.0
"""What a site's settings make of small requests, from submit to the grant: max_tenants, default_cores = "proportional",
and the GPUs that a partition's nodes have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from harness import config, jobs, node
from harness.layout import ClusterError, Layout

USER = "games"
TENANTS = 'max_tenants = 2\ndefault_cores = "proportional"\n'


@pytest.fixture
def small_site(restored: Layout) -> Iterator[Layout]:
    """A cluster where no more than two slices are on a GPU, and whose largest node has two GPUs."""
    text = config.site_toml(restored).replace("[vgpu]\n", f"[vgpu]\n{TENANTS}")
    text = text.replace("[partitions.gpu]\n", "[partitions.gpu]\ngpus = 2\n")
    config.write(restored.site_config, text)
    config.render(restored)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")


def submit(layout: Layout, request: str) -> int:
    return jobs.submit(layout, USER, f"--gres={request}", script="sleep 300")


def test_no_more_slices_than_max_tenants_are_on_a_gpu_however_small(small_site: Layout) -> None:
    for request in ("vgpu:mem=1G", "vgpu:mem=1G,cores=1", "vgpu:mem=1M", "vgpu:mem=1%"):
        jobs.wait_for_state(small_site, submit(small_site, request), "RUNNING")
    jobs.wait(small_site, lambda: len(node.grants(small_site)) == 4, "four grants")
    granted = node.grants(small_site)
    assert set(Counter(grant.gpu_uuid for grant in granted).values()) == {2}
    # 279 of 559 shards are 49 % of the GPU's time; what a request says is what it gets.
    held = [(grant.mem_mib, grant.cores_percent) for grant in granted]
    assert sorted(held) == [(1, 49), (1024, 1), (1024, 49), (1280, 49)]
    last = submit(small_site, "vgpu:mem=1M,cores=1")
    tried = ("Resources", "Priority")
    jobs.wait(small_site, lambda: jobs.job_facts(small_site, last)["Reason"] in tried, "Slurm to try the job", 30, last)
    assert jobs.state(small_site, last) == "PENDING"
    jobs.admin(small_site, "scancel", str(granted[0].job_id))
    jobs.wait_for_state(small_site, last, "RUNNING")


def test_slices_without_cores_have_the_time_that_their_memory_is_of_the_gpu(small_site: Layout) -> None:
    job = submit(small_site, "vgpu:mem=107520M")  # 420 of 559 shards
    jobs.wait_for_state(small_site, job, "RUNNING")
    jobs.wait(small_site, lambda: bool(node.grants(small_site)), "the grant")
    assert [(grant.mem_mib, grant.cores_percent) for grant in node.grants(small_site)] == [(107520, 75)]


@pytest.mark.parametrize("count", [0, -1, 2, 3, 17, 10**30])
def test_a_count_that_is_none_or_that_no_node_has_is_one_line(small_site: Layout, count: int) -> None:
    with pytest.raises(ClusterError) as caught:
        submit(small_site, f"vgpu:{count}:mem=1G")
    text = str(caught.value)
    assert text.count("hami_hpc: ") == 1, text
    assert f"'{count}' is not a count" in text or "a count of " in text, text
