# SPDX-License-Identifier: Apache-2.0
"""GPUs whose memory is oversold: what Slurm is told of them, what one slice may have, and what all may have together.

By hand, of an H200 of 143156 MiB: 90 % of it are 503 shards of 256 MiB, 128768 MiB, which is the largest slice. Three
times its memory is 429468 MiB and 1677 shards; 100 of the time for each 503 shards are 334.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, UUIDS, Node, job_environment
from resized_node import hold, resize
from test_qos_plan import SLURM_22_05

from hami_hpc.cli import main
from hami_hpc.cli.inventory_command import _shards
from hami_hpc.cli.pool_command import node_json, read_rooms
from hami_hpc.contract import constants as c
from hami_hpc.core import pool
from hami_hpc.core.grant import Grant, check_fits, whole_gpus
from hami_hpc.core.inventory import Device, Gpu
from hami_hpc.core.mixed import check_model
from hami_hpc.core.sizes import gpu_size
from hami_hpc.doctor import node_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import nvml
from hami_hpc.render.offer import make_offer
from hami_hpc.slurm import cluster_view, commands
from hami_hpc.stages import common, occupy
from hami_hpc.stages.reconcile import read_state

SLICE_MIB, SLICE_SHARDS = 128768, 503
SOLD_MIB, SOLD_SHARDS, SOLD_CORES = 429468, 1677, 334


def oversell(node: Node, scaling: float = 3.0) -> Node:
    text = node.config.read_text().replace("version = 1", f"version = 1\n[vgpu]\nmemory_scaling = {scaling}")
    node.config.write_text(f"{text}[agent]\n[classes.be]\nswap = true\n")
    return node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return oversell(Node.make(tmp_path / "node"))


def hami(node: Node, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--config", str(node.config)], catch_exceptions=False)


# --- what Slurm is told


def test_slurm_has_three_times_the_memory_of_each_gpu(node: Node) -> None:
    done = hami(node, "render", "--gpus", "h200:2", "--node", "node1", "--output", str(node.root / "etc"))
    assert done.exit_code == 0
    gres = (node.root / "etc" / "hami-hpc-gres.conf").read_text().splitlines()
    assert [line for line in gres if line.startswith("NodeName")] == [
        "NodeName=node1 Name=gpu Type=h200 File=/dev/nvidia[0-1]",
        "NodeName=node1 Name=shard Type=h200 Count=3354 File=/dev/nvidia[0-1]",
        "NodeName=node1 Name=vgpu Type=std Count=3354",
        "NodeName=node1 Name=vgpu Type=lc Count=3354",
        "NodeName=node1 Name=vgpu Type=be Count=3354",
        "NodeName=node1 Name=vgpu_mem Count=858936",
        "NodeName=node1 Name=vgpu_cores Count=668",
        f"NodeName=node1 Name=vgpu_slo Count={3354 * 60_000_000}",
        "NodeName=node1 Name=vgpu_fixed Count=1006 Flags=CountOnly",
    ]
    slurm = (node.root / "etc" / "slurm-hami-hpc.conf").read_text()
    assert "GresTypes=gpu,shard,vgpu,vgpu_mem,vgpu_cores,vgpu_slo,vgpu_fixed\n" in slurm
    assert ",vgpu_fixed:1006 " in slurm
    assert (
        "Gres=gpu:h200:2,shard:h200:3354,vgpu:std:3354,vgpu:lc:3354,vgpu:be:3354,vgpu_mem:858936,vgpu_cores:668,"
        in slurm
    )
    site = (node.root / "etc" / "hami_hpc_site.lua").read_text()
    assert '["memory_scaling"] = 3.0,' in site
    assert '["fixed"] = { "std", "lc" },' in site, "be can be moved"


def test_the_shards_that_slurm_has_are_those_of_placeholders_and_inventory(node: Node) -> None:
    gpu = Gpu(0, 0, UUIDS[0], "NVIDIA H200", "h200", GPU_MIB)
    assert occupy.shards_of(node.settings, gpu) == SOLD_SHARDS
    assert _shards(node.settings, gpu, frozenset()) == SOLD_SHARDS


def test_a_slice_weighs_its_part_of_what_is_sold(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = node.root / "slurm.conf"
    conf.write_text("ClusterName=demo\nPartitionName=gpu Nodes=node1\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setattr(commands, "version", lambda: SLURM_22_05)
    printed = hami(node, "quota", "render").stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("TRESBillingWeights=")]
    weight = float(line.rpartition("=")[2])
    assert "gres/gpu=1000," in line
    assert SOLD_SHARDS * weight == pytest.approx(1000, abs=0.01)


@pytest.fixture
def nvml_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)


def test_reconcile_knows_what_all_slices_of_a_gpu_may_have(node: Node, nvml_shows: None) -> None:
    ledger = common.open_ledger(node.settings)
    try:
        assert read_state(node.settings, ledger, frozenset).capacity_mib == dict.fromkeys(UUIDS, SOLD_MIB)
    finally:
        ledger.close()


def test_doctor_says_how_many_shards_slurm_has_and_how_many_a_slice(node: Node, nvml_shows: None) -> None:
    facts = Facts(node.settings)
    details = [finding.detail for finding in node_checks.check_driver(facts)]
    assert details[1:] == ["h200, 143156 MiB, 1677 shards, a slice has 503 at most"] * 2


# --- jobs with the whole node


@pytest.mark.parametrize(("scaling", "cores"), [(1.0, 100), (1.5, 167), (2.25, 251), (2.5, 278), (3.0, SOLD_CORES)])
@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_a_job_with_the_whole_node_is_told_by_all_cores_of_its_gpus(
    tmp_path: Path, scaling: float, cores: int, gpus: int
) -> None:
    settings = oversell(Node.make(tmp_path / "node", with_gpus=False), scaling).settings
    members = [Gpu(index, index, f"GPU-{index}", "NVIDIA H200", "h200", GPU_MIB) for index in range(gpus)]
    offer = make_offer(settings.site(), members)
    assert offer.cores_percent == gpus * cores
    listed = ",".join(map(str, range(gpus)))
    all_units = {
        c.ENV_VGPU: str(3 * offer.shards),  # of three classes
        c.ENV_CORES: str(offer.cores_percent),
        c.ENV_SLO_US: str(offer.slo_us),
        "SLURM_JOB_GPUS": listed,
    }
    per_gpu = settings.cores_of_gpu()
    assert whole_gpus(all_units, per_gpu) == listed
    for name, value in (
        (c.ENV_CORES, str(offer.cores_percent - 1)),
        (c.ENV_CORES, str(offer.cores_percent + 1)),
        (c.ENV_VGPU, "1"),
        ("SLURM_JOB_GPUS", ""),
    ):
        assert whole_gpus(all_units | {name: value}, per_gpu) == "", f"{name}={value}"
    if scaling > 1:
        assert whole_gpus(all_units | {c.ENV_CORES: str(100 * gpus)}, per_gpu) == "", "the cores of one slice for each"
        assert whole_gpus(all_units | {"SLURM_JOB_GPUS": f"{listed},{gpus}"}, per_gpu) == "", "more GPUs than cores"


def test_cores_that_are_hundreds_are_no_more_gpus_than_slurm_lists() -> None:
    """2 GPUs with 250 cores each have the cores of 5 GPUs that are not oversold."""
    units = {c.ENV_VGPU: "3000", c.ENV_CORES: "500", "SLURM_JOB_GPUS": "0,1"}
    assert whole_gpus(units, {250}) == "0,1"
    assert whole_gpus(units | {"SLURM_JOB_GPUS": "0"}, {250}) == ""
    assert whole_gpus(units | {c.ENV_CORES: "600"}, {250, 300}) == "0,1", "the site has GPUs of both"


def test_the_prolog_marks_a_job_with_the_whole_node_and_grants_all_of_one_gpu_as_a_slice(node: Node) -> None:
    whole = {"SLURM_JOB_GPUS": "0,1", c.ENV_VGPU: "10062", c.ENV_CORES: "668", c.ENV_MEM_MIB: "858936"}
    assert node.run("prolog", job_environment(7) | whole) == (0, "")
    assert (node.jobs / "7" / c.FILE_WHOLE).exists()
    assert node.prolog(8, mem_mib=SLICE_MIB, **{c.ENV_CORES: "100"}) == 0
    assert not (node.jobs / "8" / c.FILE_WHOLE).exists()
    assert node.grants()[8].mem_mib == SLICE_MIB


# --- what fits


GRANT = Grant(7, 1000, "GPU-1", 0, 1000, "h200", 900, 50, "std", "cap", "share", 1)


@pytest.mark.parametrize(("scaling", "most"), [(1.5, 1500), (2.5, 2500), (3.0, 3000)])
def test_all_slices_have_what_is_sold_at_most_and_each_one_nine_tenths_of_the_gpu(scaling: float, most: int) -> None:
    others = [GRANT._replace(job_id=8 + index, mem_mib=100) for index in range((most - 900) // 100)]
    check_fits(GRANT, others, scaling)
    with pytest.raises(NodeError, match=r"job 7 was given 901 MiB of GPU 0 .* which has 900 MiB for one slice\. total"):
        check_fits(GRANT._replace(mem_mib=901), [], scaling)
    held = most - 900
    with pytest.raises(NodeError, match=rf"needs 900 MiB of GPU 0 .*, but {held + 1} of {most} MiB are held") as caught:
        check_fits(GRANT, [*others, GRANT._replace(job_id=99, mem_mib=1)], scaling)
    assert caught.value.code == "E_HELD"


def test_three_jobs_with_all_of_a_gpu_run_at_once_and_no_fourth(node: Node) -> None:
    for job_id in (7, 8, 9):
        assert node.prolog(job_id, mem_mib=SLICE_MIB) == 0
    assert node.prolog(10, mem_mib=SLICE_MIB) == 1
    assert sorted(node.grants()) == [7, 8, 9]


def test_on_a_node_of_two_models_a_slice_larger_than_one_of_its_gpu_is_refused() -> None:
    gpus = [Gpu(index, index, f"GPU-{index}", model, model, 1000) for index, model in enumerate(("h200", "a100"))]
    check_model(GRANT, gpus, "", 3.0)
    with pytest.raises(JobError, match="job 7 has 901 MiB and was given GPU 0"):
        check_model(GRANT._replace(mem_mib=901), gpus, "", 3.0)


# --- a slice gets another size


@pytest.fixture
def resized(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Job 7 has 8 GiB of GPU 0, whose memory is oversold, and the shards of the largest slice."""
    assert node.prolog(7) == 0
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: "/usr/bin/scontrol")
    hold(monkeypatch, {0: SLICE_SHARDS})
    return node


def test_percent_of_a_running_job_are_of_the_largest_slice(resized: Node) -> None:
    assert resize(resized, "mem=100%,cores=100").startswith(f"job 7 has {SLICE_MIB} MiB and 100 %")
    assert resize(resized, "mem=50%").startswith(f"job 7 has {SLICE_SHARDS // 2 * 256} MiB")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_job_grows_only_into_memory_that_the_gpu_itself_has(resized: Node, dry_run: bool) -> None:
    assert resized.prolog(8, mem_mib=100000) == 0
    assert resized.prolog(9, mem_mib=100000, gpu="1") == 0
    room_mib = GPU_MIB - 100000
    resize(resized, f"mem={room_mib}M", dry_run=dry_run)
    words = (
        "GPU 0's memory is oversold, and growing needs room on the GPU itself: "
        f"with mem={room_mib + 1}M for job 7 its jobs would have {GPU_MIB + 1} of {GPU_MIB} MiB"
    )
    with pytest.raises(JobError, match=words):
        resize(resized, f"mem={room_mib + 1}M", dry_run=dry_run)
    assert resized.grants()[7].mem_mib == (8192 if dry_run else room_mib)


def test_a_job_shrinks_however_much_is_sold_and_grows_only_where_all_jobs_fit(resized: Node) -> None:
    for job_id in (8, 9):
        assert resized.prolog(job_id, mem_mib=SLICE_MIB) == 0
    assert resize(resized, "mem=4G,cores=40").startswith("job 7 has 4096 MiB and 40 %")
    with pytest.raises(JobError, match="growing needs room"):
        resize(resized, "mem=8G")
    with pytest.raises(JobError, match=r"growing needs room.*with cores=41 for job 7 its jobs would have 141 % of it"):
        resize(resized, "cores=41")
    assert resized.epilog(8) == 0
    assert resize(resized, "cores=50").startswith("job 7 has 4096 MiB and 50 %")


# --- what is free


def shown(used: tuple[int, ...] | None = (0, 0), **more: object) -> pool.Node:
    node = pool.Node(
        name="node1",
        state="IDLE",
        reason="",
        model="h200",
        gpus=2,
        partitions=("gpu",),
        features=(),
        total={"shard": 2 * SOLD_SHARDS, "vgpu_mem": 2 * SOLD_MIB, "vgpu_cores": 2 * SOLD_CORES},
        allocated={"shard": sum(used or (0,))},
        used=used,
        whole=frozenset(),
        cpus=64,
        cpus_allocated=0,
        memory_mib=1024,
        memory_allocated_mib=0,
    )
    return replace(node, **more)  # type: ignore[arg-type]


SIZE = pool.Size(SLICE_MIB, SLICE_SHARDS, 256, SOLD_SHARDS)


def test_the_size_of_a_gpu_is_read_with_and_without_the_sites_settings() -> None:
    assert pool.size_of(shown(), 256, gpu_size(GPU_MIB, 3.0, 256)) == SIZE
    assert pool.size_of(shown(), 256) == SIZE
    assert pool.size_of(shown(), 256, gpu_size(GPU_MIB, 2.0, 256)) == SIZE, "settings that Slurm does not have yet"
    assert pool.size_of(shown(), 512, gpu_size(GPU_MIB, 3.0, 512)).shards == SLICE_SHARDS


def test_pool_takes_the_size_of_a_gpu_from_the_settings_where_slurm_shows_a_bound(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of shards of 16 MiB, 8052 of 26841 are the largest slice; from 334 cores of a GPU follow at least 8037."""
    node.config.write_text(node.config.read_text().replace("[vgpu]", "[vgpu]\nshard_mib = 16"))
    total = {"shard": 2 * 26841, "vgpu_mem": 2 * SOLD_MIB, "vgpu_cores": 2 * SOLD_CORES}
    monkeypatch.setattr(commands, "show_nodes", lambda: "")
    monkeypatch.setattr(cluster_view, "parse_nodes", lambda *_: [shown(total=total)])
    ((_, with_settings, room),) = read_rooms(node.settings)
    assert (with_settings.shards, with_settings.mem_mib) == (8052, 8052 * 16)
    assert room.largest == pool.Slice(8052 * 16, 100)
    ((_, without, _),) = read_rooms(None)
    assert (without.shards, without.shard_mib) == (8037, 16)


@given(st.integers(2000, 300_000), st.floats(1.01, 3.0), st.integers(1, 1000))
def test_without_the_settings_the_largest_slice_is_never_shown_too_large(
    total_mib: int, scaling: float, shard_mib: int
) -> None:
    sizes = gpu_size(total_mib, scaling, shard_mib)
    total = {"shard": sizes.sold_shards, "vgpu_mem": sizes.sold_mib, "vgpu_cores": sizes.sold_cores}
    node = shown((0,), gpus=1, total=total)
    exact = pool.size_of(node, shard_mib, sizes)
    assert (exact.mem_mib, exact.shards) == (sizes.slice_mib, sizes.slice_shards)
    assume(sizes.sold_cores > 100)  # else it looks like a GPU that is not oversold
    bound = pool.size_of(node)
    assert bound.shards <= sizes.slice_shards
    assert bound.mem_mib <= sizes.slice_mib


def test_the_largest_free_slice_is_a_whole_gpu_at_most_and_the_rest_is_free_too() -> None:
    room = pool.room_of(shown((SLICE_SHARDS, 1600)), SIZE)
    largest = pool.Slice(SLICE_MIB, 100)
    assert [(gpu.free_shards, gpu.largest) for gpu in room.gpus] == [(1174, largest), (77, pool.Slice(77 * 256, 15))]
    assert (room.mem_mib, room.largest) == ((1174 + 77) * 256, largest)
    held = pool.room_of(shown((0, 0), whole=frozenset({0})), SIZE)
    assert [gpu.free_shards for gpu in held.gpus] == [0, SOLD_SHARDS]
    bound = pool.room_of(shown(None, whole=frozenset({0})), SIZE)
    assert (bound.mem_mib, bound.largest) == (SOLD_SHARDS * 256, largest)


def test_a_job_waits_for_part_of_the_largest_slice() -> None:
    node = shown((1400, 1300))
    need = pool.Need(SLICE_SHARDS, SLICE_MIB, 25, 1, 1)
    assert pool.shortages(node, SIZE, pool.room_of(node, SIZE), need) == [
        "it takes 100 % of one GPU, and the emptiest has 74 % free"
    ]


def test_explain_and_pool_say_both_numbers_of_shards() -> None:
    printed = json.loads(json.dumps(node_json(shown(), SIZE, pool.room_of(shown(), SIZE))))
    assert (printed["shards_per_gpu"], printed["shards_of_largest_slice"]) == (SOLD_SHARDS, SLICE_SHARDS)
    assert printed["free_mem_mib"] == 2 * SOLD_SHARDS * 256


def test_a_job_that_is_never_moved_waits_for_others_that_are_not() -> None:
    """What Slurm shows of a node with two oversold GPUs, of whose 1,006 shards for such jobs 880 are taken."""
    line = (
        "NodeName=node1 Gres=gpu:h200:2,shard:h200:3354,vgpu:lc:3354,vgpu_mem:858936,vgpu_cores:668,vgpu_fixed:1006 "
        "GresUsed=gpu:h200:0(IDX:N/A),shard:h200:880(880/1677,0/1677),vgpu_mem:225280,vgpu_fixed:880 State=MIXED "
        "CPUTot=64 CPUAlloc=2 RealMemory=1000 AllocMem=0 AllocTRES=cpu=2,gres/shard=880,gres/vgpu_mem=225280"
    )
    (node,) = cluster_view.parse_nodes(line, [])
    assert (node.total["vgpu_fixed"], node.fixed_used) == (1006, 880)
    size = pool.size_of(node)
    room = pool.room_of(node, size)
    fits = pool.Need(126, 1000, 1, 1, 1, fixed=126)
    assert pool.shortages(node, size, room, fits) == []
    (short,) = pool.shortages(node, size, room, replace(fits, fixed=127))
    assert short == (
        "jobs that are never moved must fit its GPUs at once: those there leave 25 % of one, and this takes 26 %"
    )
    assert pool.shortages(node, size, room, replace(fits, fixed=0)) == [], "one that can be moved takes turns"
    (older,) = cluster_view.parse_nodes(line.replace("vgpu_fixed", "other"), [])
    assert pool.shortages(older, size, room, replace(fits, fixed=1000)) == []
    assert cluster_view.fixed_asked("gres:shard:4,gres:vgpu_fixed:400") == 400
    assert cluster_view.fixed_asked("gres:shard:4") == 0
