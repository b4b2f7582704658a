# SPDX-License-Identifier: Apache-2.0
"""hami-hpc mig defragment: what it says of the queue, the places that it holds, and what it leaves alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from mig_testbed import HALF, KILLED, MigNode

from hami_hpc.core.mig_layout import Hold
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs, mig_holds
from hami_hpc.node.mig_holds import Kept
from hami_hpc.slurm import commands, mig_queue
from hami_hpc.stages import common

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
NODE = (
    "NodeName=node1 ActiveFeatures=vgpu_mig,vgpu_type_h200 Gres=gpu:h200:2,shard:h200:1118,vgpu:std:1118,"
    "vgpu_mem:286312,vgpu_cores:200 State=IDLE CPUEfctv=8 Partitions=gpu,all CfgTRES=cpu=8 AllocTRES=\n"
)
UNITS = "gres:shard:234,gres:vgpu:std:1,gres:vgpu_mem:{mem},gres:vgpu_cores:{cores}"
WAITING_HALF = f"812|BeginTime|gpu|{UNITS.format(mem=HALF, cores=42)}|vgpu_mig&vgpu_type_h200"


class Slurm:
    """What squeue and scontrol print."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pending, self.ends, self.fails = "", "", False
        monkeypatch.setattr(commands, "pending_rows", lambda form: self._say(self.pending))
        monkeypatch.setattr(commands, "holding_rows", lambda node, form: self._say(self.ends))
        monkeypatch.setattr(commands, "show_node", lambda node: self._say(NODE))

    def _say(self, text: str) -> str:
        if self.fails:
            raise NodeError("squeue failed: Unable to contact slurm controller. Is slurmctld up (scontrol ping)?")
        return text


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


@pytest.fixture
def in_both_halves(bed: MigNode, slurm: Slurm) -> MigNode:
    """Jobs 1 and 2 have small instances, one in each half of the GPU, as jobs that came and went can leave them."""
    for job in range(1, 8):
        assert bed.prolog(job) == 0
    by_start = {row["start"]: int(str(row["job_id"])) for row in listed(bed)}
    low, high = by_start.pop(1), by_start.pop(5)
    for job in by_start.values():
        assert bed.epilog(job) == 0
    slurm.ends = f"{low}|2000000000\n{high}|1900000000\n"
    slurm.pending = WAITING_HALF
    return bed


def run(bed: MigNode, *words: str) -> tuple[int, str]:
    return bed.command("mig", *words)


def listed(bed: MigNode, key: str = "instances") -> list[dict[str, object]]:
    return list(json.loads(run(bed, "list", "--format", "json")[1])[0][key])


def test_a_dry_run_says_after_which_job_a_request_fits_and_changes_nothing(in_both_halves: MigNode) -> None:
    status, output = run(in_both_halves, "defragment", "--dry-run")
    assert status == 3
    (line,) = [line for line in output.splitlines() if line.lstrip().startswith("812")]
    job = next(row["job_id"] for row in listed(in_both_halves) if row["start"] == 5)
    assert "fragmented" in line
    assert f"it fits slices 4-7 of GPU 0 when job {job} has ended, by 2030-03-17" in line
    assert "slices 4-7 of GPU 0 would be held for 3g.71gb until" in output
    assert listed(in_both_halves, "holds") == []
    assert not (in_both_halves.node.root / "run/mig-holds").exists()


def test_a_held_place_waits_for_its_profile_and_small_jobs_go_elsewhere(in_both_halves: MigNode) -> None:
    bed = in_both_halves
    status, output = run(bed, "defragment")
    assert (status, "are held for 3g.71gb until" in output) == (3, True)
    (hold,) = listed(bed, "holds")
    assert (hold["profile"], hold["start"], hold["size"]) == ("3g.71gb", 4, 4)
    assert "held until" in run(bed, "list")[1]
    high = next(row["job_id"] for row in listed(bed) if row["start"] == 5)
    assert bed.epilog(int(str(high))) == 0
    for job in (20, 21, 22):  # three small jobs find room in the other half
        assert bed.prolog(job) == 0
        assert max(int(str(row["start"])) for row in listed(bed)) < 4
    assert bed.prolog(23) == 0
    refusal = (bed.node.jobs / "23" / "refused").read_text()
    assert "the place there is held for 3g.71gb by the administrator (hami-hpc mig list)" in refusal
    assert bed.prolog(812, mem_mib=HALF, cores=42) == 0
    assert [row["start"] for row in listed(bed) if row["job_id"] == 812] == [4]
    assert listed(bed, "holds") == [], "it has served"
    events = (bed.node.root / "state" / "events.jsonl").read_text()
    assert events.count('"mig_hold"') == 1


def test_holds_end_by_command_by_time_and_by_a_new_plan(in_both_halves: MigNode, slurm: Slurm) -> None:
    bed = in_both_halves
    for _ in range(2):
        run(bed, "defragment", "--hold-minutes", "5")
        assert len(listed(bed, "holds")) == 1, "a second run has the same holds"
    (hold,) = listed(bed, "holds")
    assert 0 < int(str(hold["until_unix_s"])) - time.time() <= 300
    assert run(bed, "defragment", "--release") == (0, "1 hold(s) ended\n")
    assert listed(bed, "holds") == []
    run(bed, "defragment")
    slurm.pending = ""
    assert run(bed, "defragment")[0] == 0
    assert listed(bed, "holds") == [], "nobody waits for it any more"
    kept = Kept("GPU-x", Hold("3g.71gb", 9, 4, 4), 1000)
    mig_holds.replace(str(bed.node.root / "run"), (kept,))
    assert mig_holds.read(str(bed.node.root / "run"), 999) == (kept,)
    assert mig_holds.read(str(bed.node.root / "run"), 1000) == ()


def test_leftovers_of_ours_are_removed_and_others_instances_are_not(bed: MigNode, slurm: Slurm) -> None:
    foreign = bed.make_foreign()
    assert bed.prolog(7) == 0
    ledger = common.open_ledger(bed.node.settings)
    ledger.remove(bed.node.grants()[7])
    ledger.close()
    bed.run(lambda: job_dirs.remove(str(bed.node.root / "run"), str(bed.node.jobs / "7")))
    status, output = run(bed, "defragment", "--dry-run", "--demand", "3g.71gb")
    assert (status, "(dry run: it stays)" in output, len(bed.instances())) == (0, True, 2)
    assert " fits " in output
    status, output = run(bed, "defragment", "--demand", "3g.71gb=2")
    assert (status, bed.instances()) == (0, (foreign,))
    assert (output.count(" fits "), output.count(" behind ")) == (1, 1)


def test_a_gpu_out_of_service_serves_no_plan(in_both_halves: MigNode) -> None:
    from hami_hpc.stages import gpu_service

    settings = in_both_halves.node.settings
    in_both_halves.run(lambda: gpu_service.mark(settings, "0", "a test") and None)
    status, output = run(in_both_halves, "defragment")
    assert (status, "no GPU of this node is in MIG mode and in service" in output) == (0, True)
    assert "not offered" in run(in_both_halves, "defragment", "--demand", "3g.71gb")[1]
    assert listed(in_both_halves, "holds") == []


def test_nothing_is_planned_or_held_while_slurm_does_not_answer(in_both_halves: MigNode, slurm: Slurm) -> None:
    slurm.fails = True
    status, output = run(in_both_halves, "defragment")
    assert (status, "Is slurmctld up" in output) == (1, True)
    assert listed(in_both_halves, "holds") == []


def test_a_plan_killed_at_any_line_leaves_whole_holds_and_the_next_one_completes_it(bed: MigNode) -> None:
    run_dir = str(bed.node.root / "run")
    old = tuple(Kept("GPU-a", Hold("1g.18gb", 19, start, 1), 1 << 40) for start in (0, 1))
    new = tuple(Kept("GPU-a", Hold("1g.18gb", 19, start, 1), 1 << 41) for start in (1, 2))

    def traced(code: object) -> bool:
        return str(getattr(code, "co_filename", "")).endswith("node/mig_holds.py")

    line = 1
    while True:
        mig_holds.replace(run_dir, old)
        ended = bed.run(lambda: mig_holds.replace(run_dir, new), at_line=line, traced=traced)
        assert set(mig_holds.read(run_dir, 0)) <= {*old, *new}
        mig_holds.replace(run_dir, new)
        assert set(mig_holds.read(run_dir, 0)) == set(new)
        assert not list((bed.node.root / "run/mig-holds").glob("*.new"))
        if ended != KILLED:
            break
        line += 1
    assert line > 20


@pytest.mark.parametrize("content", [b"", b"x" * 600, b"GPU-1 9 9 9\n", b"\xff" * 40, b"a b c d e f g\n"])
def test_a_damaged_hold_holds_nothing(bed: MigNode, content: bytes) -> None:
    folder = bed.node.root / "run/mig-holds"
    folder.mkdir()
    (folder / "GPU-1.x.0").write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    assert mig_holds.read(str(bed.node.root / "run"), 0) == ()
    assert bed.prolog(7) == 0
    assert len(bed.instances()) == 1


def test_the_queue_is_read_for_this_node_alone_and_users_text_cannot_change_it() -> None:
    rows = [
        WAITING_HALF,
        WAITING_HALF.replace("812|BeginTime", "813|Dependency"),
        WAITING_HALF.replace("812", "814").replace("|gpu|", "|other|"),
        WAITING_HALF.replace("812", "815").replace("vgpu_type_h200", "vgpu_type_a100"),
        WAITING_HALF.replace("812", "816").replace("|gpu|", "|other,all|") + "|9|x",
        f"817|Priority|gpu|{UNITS.format(mem=9 * 10**30, cores=1)}|",
        "818|Resources|gpu|gres:gpu:1|vgpu_mem:71424|vgpu_cores:42",
        "|||",
        "garbage",
    ]
    waiting = mig_queue.parse_waiting("\n".join(rows), NODE)
    assert [(one.job_id, one.mem_mib, one.cores) for one in waiting] == [(812, HALF, 42), (816, HALF, 42)]
    newer = WAITING_HALF.replace("gres:", "gres/").replace("vgpu_mem:", "vgpu_mem=")
    assert [one.job_id for one in mig_queue.parse_waiting(newer, NODE)] == [812]
    assert mig_queue.parse_ends("7|1900000000\n8|NONE\nx|1\n9|\n") == {7: 1.9e9, 8: float("inf"), 9: float("inf")}


def test_wrong_words_say_what_is_right(bed: MigNode, slurm: Slurm) -> None:
    for words, text in (
        (("defragment", "--demand", "3g.71gb=0"), "a count from 1 to 1000, such as 3g.71gb=2"),
        (("defragment", "--demand", "=2"), "is not understood"),
        (("defragment", "--demand", "3g=\N{SUPERSCRIPT TWO}"), "is not understood"),
        (("defragment", "0"), "defragment takes no GPU"),
        (("defragment", "--release", "--dry-run"), "takes none of"),
        (("list", "--dry-run"), "--dry-run is for apply and defragment, not for list"),
        (("enable", "0", "--demand", "x"), "--demand is for defragment"),
        (("defragment", "--hold-minutes", "0"), "1<=x<=1440"),
    ):
        status, output = run(bed, *words)
        assert (status, text in output) == (2, True), (words, output)
    document = json.loads(run(bed, "defragment", "--demand", "9g", "--format", "json")[1])
    assert document["requests"] == [{"profile": "9g", "job_id": None, "state": "not offered", "opening": None}]
