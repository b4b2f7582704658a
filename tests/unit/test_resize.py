# SPDX-License-Identifier: Apache-2.0
"""A running job's slice gets another size: what is allowed, and what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, UID, UUIDS, Node, pair_environment
from resized_node import HALF, HALF_MIB, MIB, SHARDS, hold, node, record, record_field, resize, sizes, uses

from hami_hpc.cli import main
from hami_hpc.contract import constants as c
from hami_hpc.core import resize as rules
from hami_hpc.core.grant import Grant
from hami_hpc.core.request_keys import MemMib, MemPercent
from hami_hpc.errors import HamiError, JobError, NodeError
from hami_hpc.node import ledger, neighbours
from hami_hpc.slurm import job_shards
from hami_hpc.stages import common
from hami_hpc.stages import resize as stage

__all__ = ["node"]  # the fixture


# --- what may be asked


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("mem=16G", rules.Size(MemMib(16384), None)),
        ("cores=60", rules.Size(None, 60)),
        ("cores=60,mem=50%", rules.Size(MemPercent(50), 60)),
    ],
)
def test_a_size_is_memory_time_or_both(text: str, size: rules.Size) -> None:
    assert rules.parse_size(text) == size
    assert rules.parse_size(rules.size_text(size)) == size


@pytest.mark.parametrize(
    "text", ["", "mode=mig", "mem=8G,type=h200", "2", "2:mem=8G", "mem=8G,gpu:1", "policy=burst", "mem=8G,gres:gpu:1"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(HamiError, match=re.escape(rules.EXAMPLE) + "|Example|example"):
        rules.parse_size(text)


@pytest.mark.parametrize("job", ["", "abc", "4711.batch", "4711,4712", "4711_[1-3]", "99999999999"])
def test_what_is_no_job_id_is_refused_before_slurm_is_asked(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = CliRunner().invoke(main, ["resize", "--", job, "mem=8G"])
    assert done.exit_code == 2
    assert f"{job!r} is no job id such as 4711, 4711_3 or 4711+1" in " ".join(done.output.split())


@given(st.text(max_size=60))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        size = rules.parse_size(text)
    except HamiError:
        return
    assert size.mem is not None or size.cores is not None


def test_both_grow_up_to_what_the_jobs_shards_are(node: Node) -> None:
    assert resize(node, f"mem={HALF_MIB}M") == (
        f"job 7 has {HALF_MIB} MiB and 50 % of GPU 0 (before: 8192 MiB and 50 %)"
    )
    with pytest.raises(
        JobError, match=f"holds 279 of the 559 shards.*mem={HALF_MIB}M,cores=50 at most.*no more shards"
    ):
        resize(node, f"mem={HALF_MIB + 1}M")
    with pytest.raises(JobError, match="cores=51 is more"):
        resize(node, "cores=51")
    assert sizes(record(node)) == sizes(node.grants()[7]) == (HALF_MIB, 50)


def test_time_grows_with_the_shards_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    environment = {c.ENV_MEM_MIB: str(HALF_MIB), c.ENV_CORES: "5"}
    assert node.prolog(8, gpu="1", **environment) == 0
    hold(monkeypatch, {1: HALF})
    assert "49 % of GPU 1" in resize(node, "cores=49", job_id=8)
    with pytest.raises(JobError, match="cores=49 at most"):
        resize(node, "cores=50", job_id=8)


def test_who_holds_all_shards_of_a_gpu_can_have_all_of_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, {0: SHARDS})
    resize(node, "mem=100%,cores=100")
    assert sizes(record(node)) == (GPU_MIB, 100)


def test_what_the_job_asked_for_can_always_be_had_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Percent are rounded down to shards: 50 % are 279 of 559, which are 49.9."""
    resize(node, "mem=1G,cores=1")
    assert resize(node, "mem=8G,cores=50") == "job 7 has 8192 MiB and 50 % of GPU 0 (before: 1024 MiB and 1 %)"
    hold(monkeypatch, {0: 1})  # the site's shards are others now
    resize(node, "mem=8G,cores=50")
    with pytest.raises(JobError):
        resize(node, "mem=8193M")


@given(
    st.integers(1, 600), st.integers(1, 600), st.integers(1, 4096), st.integers(1, 200000), st.integers(1, 100),
    st.integers(1, 200000), st.integers(1, 100),
)  # fmt: skip
def test_nobody_gets_more_than_shards_or_request(
    shards: int, held: int, shard_mib: int, mem: int, cores: int, asked_mem: int, asked_cores: int
) -> None:
    gpu = rules.Gpu(shards, min(held, shards), shard_mib, shards * shard_mib + shard_mib // 2)
    old = Grant(7, UID, UUIDS[0], 0, gpu.mib, "h200", asked_mem, asked_cores, "std", "cap", "share", 1)
    try:
        new = rules.resized(old, rules.Size(MemMib(mem), cores), gpu)
    except JobError:
        assert mem > max(asked_mem, gpu.held * shard_mib) or cores > max(asked_cores, 100 * gpu.held // shards)
        return
    assert sizes(new) == (min(mem, new.mem_mib), cores)
    assert new.mem_mib <= max(asked_mem, gpu.mib if gpu.held == shards else gpu.held * shard_mib)
    assert new.cores_percent <= max(asked_cores, 100 * gpu.held // shards)
    assert new.asked() == old
    assert new.most_mem() == max(old.mem_mib, new.mem_mib)
    assert new.same_slice(old)


def test_another_users_job_and_no_job_look_the_same(node: Node) -> None:
    with pytest.raises(JobError, match="job 7 has no vGPU of yours on this node") as other:
        resize(node, "mem=1G", uid=UID - 1)
    with pytest.raises(JobError, match="job 9 has no vGPU of yours on this node") as none:
        resize(node, "mem=1G", job_id=9)
    assert other.value.message.replace("7", "9") == none.value.message
    assert sizes(record(node)) == (8192, 50)


@pytest.mark.parametrize("mode", ["mps", "mig"])
def test_other_modes_are_refused_in_words(node: Node, mode: str) -> None:
    grant = replace_mode(node, mode)
    with pytest.raises(JobError, match=f"mode={mode}, whose limits are fixed when it starts.*mode=share"):
        rules.check_mode(grant)


def replace_mode(node: Node, mode: str) -> Grant:
    return node.grants()[7]._replace(mode=mode)


# --- what is in use


def test_a_slice_is_never_made_smaller_than_what_is_in_use(node: Node) -> None:
    uses(node, 3 * 1024 * MIB + 1)
    with pytest.raises(JobError, match="hold 3073 MiB of GPU 0, which is more than mem=3072M"):
        resize(node, "mem=3G,cores=10")
    assert sizes(record(node)) == sizes(node.grants()[7]) == (8192, 50)
    resize(node, "mem=3073M")
    assert sizes(record(node)) == (3073, 50)


def test_what_is_allocated_while_it_shrinks_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the record the job allocates: it has its old size again, not less than it uses."""
    write = neighbours.write_sizes
    sizes_written: list[tuple[int, int]] = []

    def write_later(*given: Any) -> None:
        if not sizes_written:
            uses(node, 6 * 1024 * MIB)
        write(*given)
        sizes_written.append(sizes(record(node)))

    monkeypatch.setattr(neighbours, "write_sizes", write_later)
    with pytest.raises(JobError, match="hold 6144 MiB"):
        resize(node, "mem=4G,cores=20")
    assert sizes_written == [(4096, 20), (8192, 50)]
    assert sizes(node.grants()[7]) == (8192, 50)


def test_a_smaller_size_that_the_ledger_cannot_keep_is_not_in_the_record(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_insert", lambda *_: _full())
        with pytest.raises(NodeError, match="full"):
            resize(node, "mem=4G")
    assert sizes(record(node)) == sizes(node.grants()[7]) == (8192, 50)


def _full() -> None:
    raise NodeError("its file system is full")


def test_two_resizes_at_once_know_the_most_that_the_job_had(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another resize comes between the first look at the ledger and the entry, and the job takes what that gave."""
    check = stage._check_used

    def check_later(*given: Any) -> None:
        check(*given)
        monkeypatch.setattr(stage, "_check_used", check)
        resize(node, "mem=16G")
        uses(node, 12 * 1024 * MIB)

    monkeypatch.setattr(stage, "_check_used", check_later)
    with pytest.raises(JobError, match="hold 12288 MiB"):
        resize(node, "mem=4G")
    assert sizes(record(node)) == sizes(node.grants()[7]) == (16384, 50)
    assert record(node).most_mem() == 16384


def test_a_usage_file_that_the_user_wrote_stops_nothing(node: Node) -> None:
    path = node.jobs / "7" / c.FILE_USAGE
    path.write_bytes(b"\xff" * path.stat().st_size)
    resize(node, "mem=1G")
    assert record(node).mem_mib == 1024


def test_a_peak_of_the_larger_time_is_no_damage(node: Node) -> None:
    """The record of the run has the most memory that it had."""
    resize(node, "mem=32G")
    uses(node, 1024 * MIB, peak=30 * 1024 * MIB)
    resize(node, "mem=2G,cores=20")
    assert record(node).most_mem() == 32768
    assert node.epilog(7) == 0
    written = node.record()
    assert (written["usage"], written["mem_mib"], written["cores"]) == ("ok", 32768, 20)
    assert written["peak_bytes"] == 30 * 1024 * MIB


# --- what is written


def test_all_slices_of_a_job_are_resized_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node.make(tmp_path / "pair")
    monkeypatch.setattr("hami_hpc.stages.several_gpus._shards", lambda *_: {0: HALF, 1: HALF})
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: "/usr/bin/scontrol")
    from hami_hpc.stages.prolog import main as prolog_main

    assert prolog_main(node.arguments, pair_environment(7)) == 0
    hold(monkeypatch, {0: HALF, 1: HALF})
    line = resize(node, "mem=16G,cores=20")
    assert line == "job 7 has 16384 MiB and 20 % on each of 2 GPUs (before: 8192 MiB and 50 %)"
    assert [sizes(record(node, name=name)) for name in ("job.limits", "job.1.limits")] == [(16384, 20)] * 2
    hold(monkeypatch, {0: HALF, 1: HALF // 2})
    with pytest.raises(JobError, match="of GPU 1"):
        resize(node, "mem=40G")
    assert [sizes(record(node, name=name)) for name in ("job.limits", "job.1.limits")] == [(16384, 20)] * 2


def test_neighbours_turns_follow_the_new_share(node: Node) -> None:
    assert node.prolog(8) == 0
    assert record_field(node, 8, "others_least_cores") == 50
    resize(node, "cores=20")
    assert record_field(node, 8, "others_least_cores") == 20


def test_an_event_says_what_the_job_has_now(node: Node) -> None:
    resize(node, "mem=4G")
    last = json.loads((Path(node.settings.state_dir) / "events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["source"], last["mem_mib"], last["cores"]) == ("resize", "resize", 4096, 50)
    assert last["text"] == "job 7 has 4096 MiB and 50 % of GPU 0 now"


def test_a_dry_run_changes_nothing(node: Node) -> None:
    before = (node.jobs / "7" / c.FILE_JOB_LIMITS).read_bytes()
    assert resize(node, "mem=16G", dry_run=True).startswith("job 7 could have 16384 MiB")
    assert (node.jobs / "7" / c.FILE_JOB_LIMITS).read_bytes() == before
    assert sizes(node.grants()[7]) == (8192, 50)


def test_a_new_job_finds_the_room_that_the_others_shards_leave(node: Node) -> None:
    """A slice that grew to its shards leaves exactly the others'."""
    resize(node, f"mem={HALF_MIB}M")
    assert node.prolog(8, **{c.ENV_MEM_MIB: str((SHARDS - HALF) * 256)}) == 0
    with pytest.raises(NodeError, match="are held"):  # whatever slurmctld says of shards
        enter(node, 8, GPU_MIB)


def enter(node: Node, job_id: int, mem_mib: int) -> None:
    ledger = common.open_ledger(node.settings)
    try:
        new = tuple(grant.resized(mem_mib, 50) for grant in ledger.grants_of(job_id))
        stage._enter(node.settings, ledger, new)
    finally:
        ledger.close()


# --- what else happens at the same time


def test_a_prolog_that_runs_again_keeps_the_new_size(node: Node) -> None:
    resize(node, "mem=16G,cores=30")
    uses(node, 100 * MIB)
    assert node.prolog(7) == 0
    assert sizes(record(node)) == sizes(node.grants()[7]) == (16384, 30)
    assert (node.jobs / "7" / c.FILE_USAGE).stat().st_size
    assert record(node).asked_mem_mib == 8192


def test_the_next_run_of_a_requeued_job_has_what_it_asked_for(node: Node) -> None:
    resize(node, "mem=16G,cores=30")
    assert node.epilog(7) == 0
    assert node.prolog(7) == 0
    assert sizes(record(node)) == (8192, 50)
    assert record(node).asked_mem_mib == 0


def test_a_ledger_that_is_made_again_has_the_new_size(node: Node) -> None:
    resize(node, "mem=16G,cores=30")
    (Path(node.settings.run_dir) / "ledger.db").unlink()
    again = node.grants()[7]
    assert sizes(again) == (16384, 30)
    assert sizes(again.asked()) == (8192, 50)


def test_a_job_whose_epilog_came_first_is_not_resized(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld takes seconds to answer, and the job ends meanwhile; another run has the same id."""

    def end_the_job(*_: object) -> dict[int, int]:
        assert node.epilog(7) == 0
        return {0: HALF}

    monkeypatch.setattr(job_shards, "read", end_the_job)
    with pytest.raises(JobError, match="no vGPU of yours"):
        resize(node, "mem=16G")
    assert node.prolog(7) == 0
    old = node.grants()[7]
    assert node.epilog(7) == 0
    assert node.prolog(7) == 0
    ledger = common.open_ledger(node.settings)
    try:
        with pytest.raises(NodeError, match="ended meanwhile"):
            ledger.resize((old.resized(1, 1),), lambda new, _live: new)
    finally:
        ledger.close()
    assert sizes(record(node)) == (8192, 50)
