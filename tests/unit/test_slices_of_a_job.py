# SPDX-License-Identifier: Apache-2.0
"""A job with two slices on a node: its grants, its files, what slurmctld is asked, and its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, UUIDS, Node, job_environment, names_in
from slices_testbed import BOTH, SHOWN, Controller, epilog, prolog, refusal, replace_controller, rows

from hami_hpc.contract import constants as c
from hami_hpc.core.records import USAGE_FILE_SIZE
from hami_hpc.errors import JobError
from hami_hpc.node import drain, job_dirs, usage_files
from hami_hpc.node.ledger import Ledger
from hami_hpc.slurm import job_shards
from hami_hpc.stages import send_back, suspend, swap
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.reconcile import reconcile


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    return replace_controller(monkeypatch, tmp_path / "slurm", 1.0, 0.0)  # silent ones: test_silent_controllers.py


def test_each_slice_has_a_row_a_record_and_a_usage_file(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    granted = rows(node)
    assert [(one.slice_index, one.slice_count, one.gpu_uuid) for one in granted] == [(0, 2, UUIDS[0]), (1, 2, UUIDS[1])]
    assert {(one.mem_mib, one.cores_percent, one.created_unix_ns) for one in granted} == {
        (8192, 50, granted[0].created_unix_ns)
    }
    directory = node.jobs / "7"
    assert job_dirs.read_grants(str(directory)) == tuple(one._replace(model="") for one in granted)
    assert names_in(directory) == ["history", "job.1.limits", "job.limits", "shared", "times"]
    assert names_in(directory / "shared") == ["usage", "usage.1"]
    for name in ("usage", "usage.1"):
        status = (directory / "shared" / name).stat()
        assert (status.st_mode & 0o777, status.st_size) == (0o600, USAGE_FILE_SIZE)
    assert len(controller.questions()) == 1, "slurmctld is asked once"
    before = (directory / "job.1.limits").stat().st_ino
    assert prolog(node) == 0
    assert ((directory / "job.1.limits").stat().st_ino, rows(node)) == (before, granted), "it is idempotent"


def test_a_job_with_slices_on_two_gpus_is_not_moved_and_is_told_why(
    node: Node, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs may hold memory of each other's GPU, as NCCL does."""
    node.config.write_text(f"{node.config.read_text()}\n[classes.be]\nswap = true\n")
    assert prolog(node, HAMI_HPC_CLASS="be") == 0
    records = [(node.jobs / "7" / name).read_bytes() for name in ("job.limits", "job.1.limits")]
    why = "job 7 has slices on 2 GPUs of this node, and such a job is not moved"
    with pytest.raises(JobError, match=why):
        swap.swap(node.settings, 7, out=True, wait_s=1)
    assert suspend.main(("out", "--job", "7", *node.arguments)) == 0
    assert capsys.readouterr().out == f"job 7 is suspended, and its device memory stays on the GPU: {why}\n"
    assert [(node.jobs / "7" / name).read_bytes() for name in ("job.limits", "job.1.limits")] == records


def test_a_job_with_one_slice_asks_nothing(node: Node, controller: Controller) -> None:
    assert node.prolog(7) == 0
    assert controller.questions() == []
    assert names_in(node.jobs / "7") == ["history", "job.limits", "shared", "times"]


def test_its_slices_are_in_the_order_of_the_gpus(node: Node, controller: Controller) -> None:
    controller.shows(7, "shard:b:32(IDX:1),shard:a:32(IDX:0)")
    assert prolog(node) == 0
    assert [one.gpu_uuid for one in rows(node)] == list(UUIDS)


@pytest.mark.parametrize(
    ("gres", "said"),
    [
        ("shard:a:32(IDX:0),shard:b:33(IDX:1)", "GPU 0: 32, GPU 1: 33"),
        ("shard:64(50/100,14/100)", "GPU 0: 50, GPU 1: 14"),
        ("shard:64(IDX:1)", "GPU 1: 64"),
        ("shard:a:32(IDX:0),shard:b:32(IDX:1),shard:c:32(IDX:2)", "GPU 2: 32"),
        ("gpu:2(IDX:0-1)", "these shards on this node: none"),
        ("shard:a:32(IDX:0),shard:b:32(IDX:0)", "does not say which GPUs"),
        ("shard:many", "does not say which GPUs"),
    ],
)
def test_slices_that_are_not_equal_never_run(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch, gres: str, said: str
) -> None:
    requeued: list[tuple[int, str]] = []

    def requeue(_environment: object, job_id: int, reason: str) -> bool:
        requeued.append((job_id, reason))
        return True

    monkeypatch.setattr(send_back, "requeue", requeue)
    controller.shows(7, gres)
    assert prolog(node) == 0, "the node stays in service"
    assert said in refusal(node)
    assert [(job, reason + "\n") for job, reason in requeued] == [(7, refusal(node))]
    assert rows(node) == ()
    assert epilog(node) == 0
    node.assert_nothing_is_held()


@pytest.mark.parametrize(
    "body", ["exit 1", "sleep 60", "echo slurm_load_jobs error: busy >&2; exit 1", "printf '\\377'"]
)
def test_a_controller_that_does_not_answer_sends_the_job_back_within_a_bound(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(send_back, "requeue", lambda *_: True)
    monkeypatch.setattr(job_shards, "ANSWER_S", 0.3)
    controller.write(body)
    assert prolog(node) == 0
    assert "slurmctld does not say which GPUs its slices are on" in refusal(node)
    assert rows(node) == ()


def test_a_controller_that_answers_late_is_asked_again(node: Node, controller: Controller) -> None:
    """A prolog may run before slurmctld has written down what it allocated."""
    controller.write('[ $(wc -l <"${0%/*}/asked") -gt 2 ] && cat "${0%/*}/answer"')
    assert prolog(node) == 0
    assert len(rows(node)) == 2


def test_a_task_of_an_array_is_asked_for_by_its_number(node: Node, controller: Controller) -> None:
    other = SHOWN.format(job=9, gres="shard:a:32(IDX:1),shard:b:32(IDX:0)").replace("32", "16")
    both = SHOWN.format(job=7, gres=BOTH) + other
    (controller.folder / "array").write_text(both)
    controller.write('case "$*" in *" 5_2") cat "${0%/*}/answer" ;; *) cat "${0%/*}/array" ;; esac')
    assert prolog(node) == 0
    assert [one.gpu_uuid for one in rows(node)] == list(UUIDS)
    assert controller.questions()[-1].endswith("show job 5_2")


def test_without_scontrol_or_the_nodes_name_it_is_sent_back(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prolog(node, SLURMD_NODENAME="") == 0
    assert "SLURMD_NODENAME is not set" in refusal(node)
    monkeypatch.setattr(drain, "find_scontrol", lambda: None)
    assert prolog(node) == 0
    assert "scontrol was not found" in refusal(node)


@pytest.mark.parametrize("mode", ["mps", "mig"])
def test_other_modes_give_one_slice_and_ask_nobody(node: Node, controller: Controller, mode: str) -> None:
    text = node.config.read_text().replace("version = 1\n", f'version = 1\n[vgpu]\nmodes = ["{mode}"]\n')
    node.config.write_text(text)
    assert prolog(node) == 0
    assert f"job 7 has 2 slices with mode={mode}, which gives one slice of a node to a job" in refusal(node)
    assert controller.questions() == []


def test_all_slices_are_granted_or_none(node: Node, controller: Controller) -> None:
    """The second GPU has no room, by a row of a job that Slurm has here on the other GPU: a fault of the node."""
    assert node.prolog(3, mem_mib=GPU_MIB - 100, gpu="1") == 0
    controller.has_here(3, 7)
    assert prolog(node) == 1
    assert [one.job_id for one in rows(node)] == [3]


def test_a_requeued_job_that_comes_back_with_fewer_slices_leaves_no_row(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    assert node.prolog(7) == 0
    assert [(one.slice_index, one.slice_count) for one in rows(node)] == [(0, 1)]
    assert names_in(node.jobs / "7") == ["history", "job.limits", "shared", "times"]
    assert prolog(node) == 0
    assert len(rows(node)) == 2


def test_a_gpu_out_of_service_refuses_all_of_the_job(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_hpc.stages.out_of_service.send_back", lambda *_: True)
    state = Path(node.settings.state_dir)
    state.mkdir(exist_ok=True)
    fields = {"uuid": UUIDS[0], "minor": 0, "slurm_index": 0, "reason": "Xid 79", "since_unix_s": 1}
    (state / "drained-gpus.json").write_text(json.dumps({"version": 1, "gpus": [fields]}))
    assert prolog(node) == 0
    assert "which is out of service: Xid 79" in refusal(node)
    assert rows(node) == ()


def test_the_end_of_a_job_frees_whichever_of_its_gpus_is_out_of_service(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm tells the epilog one of its GPUs, too."""
    filled: list[object] = []
    monkeypatch.setattr("hami_hpc.stages.occupy.start_detached", lambda *given: filled.append(given[-1]))
    assert prolog(node) == 0
    fields = {"uuid": UUIDS[0], "minor": 0, "slurm_index": 0, "reason": "Xid 79", "since_unix_s": 1}
    Path(node.settings.state_dir).mkdir(exist_ok=True)
    (Path(node.settings.state_dir) / "drained-gpus.json").write_text(json.dumps({"version": 1, "gpus": [fields]}))
    assert epilog(node) == 0
    assert len(filled) == 1


def write_usage(node: Node, name: str, **values: int) -> None:
    with (node.jobs / "7" / "shared" / name).open("r+b") as file:
        for field, value in values.items():
            offset, width, _ = c.USAGE_FIELDS[field]
            file.seek(offset)
            file.write(value.to_bytes(width, "little"))


def test_its_usage_is_one_record_with_sums(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    write_usage(node, "usage", peak_bytes=1 << 30, oom_count=1)
    write_usage(node, "usage.1", peak_bytes=2 << 30, oom_count=2)
    assert epilog(node) == 0
    record = node.record()
    assert (record["gpu_count"], record["gpu_uuid"], record["usage"]) == (2, ",".join(UUIDS), "ok")
    assert (record["mem_mib"], record["cores"]) == (16384, 100)
    assert (record["peak_bytes"], record["oom_count"]) == (3 << 30, 3)
    node.assert_nothing_is_held()


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * USAGE_FILE_SIZE])
def test_what_a_user_writes_to_the_second_usage_file_spoils_the_record_at_the_most(
    node: Node, controller: Controller, content: bytes
) -> None:
    assert prolog(node) == 0
    (node.jobs / "7" / "shared" / "usage.1").write_bytes(content)
    write_usage(node, "usage", peak_bytes=1 << 30)
    assert epilog(node) == 0
    record = node.record()
    assert record["usage"] == "damaged"
    assert (1 << 30) <= int(str(record["peak_bytes"])) <= (1 << 30) + (8192 << 20)
    node.assert_nothing_is_held()


def test_a_second_usage_file_of_another_kind_blocks_nobody(node: Node, controller: Controller) -> None:
    """A user cannot replace it; a broken disk can."""
    import os

    assert prolog(node) == 0
    path = node.jobs / "7" / "shared" / "usage.1"
    path.unlink()
    os.mkfifo(path)
    assert epilog(node) == 0
    assert node.record()["usage"] == "damaged"
    node.assert_nothing_is_held()


def on_node(node: Node) -> tuple[str, ...]:
    results = reconcile(node.settings, lambda: frozenset({7, 8}), dry_run=False)
    assert [result.error for result in results if result.error] == []
    return tuple(result.action.text for result in results if "NVML" not in result.action.text)


def test_reconcile_restores_a_slices_record_and_keeps_what_was_counted(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    write_usage(node, "usage.1", peak_bytes=5)
    (node.jobs / "7" / "job.1.limits").unlink()
    assert on_node(node) == ("job 7: the limits records of 1 slice(s) were lost and are restored",)
    assert len(job_dirs.read_grants(str(node.jobs / "7"))) == 2
    assert usage_files.read_total(str(node.jobs / "7"), rows(node), 2**62).peak_bytes == 5
    assert on_node(node) == ()


def test_a_ledger_made_again_has_all_slices_and_says_which_are_lost(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    granted = rows(node)
    lose_ledger(node)
    assert [one._replace(model="") for one in granted] == list(rows(node))
    lose_ledger(node)
    (node.jobs / "7" / "job.1.limits").unlink()
    (text,) = on_node(node)
    assert text.startswith("job 7: only 1 of its 2 slices are known, on GPU 0; ")
    assert epilog(node) == 0
    node.assert_nothing_is_held()


def lose_ledger(node: Node) -> None:
    for path in (node.root / "run").glob("ledger.db*"):
        path.unlink()


def test_a_record_of_another_job_or_run_is_not_taken_for_a_slice(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    second = node.jobs / "7" / "job.1.limits"
    data = bytearray(second.read_bytes())
    offset, width, _ = c.LIMITS_FIELDS["created_unix_ns"]
    data[offset : offset + width] = (5).to_bytes(width, "little")
    second.write_bytes(data)
    assert len(job_dirs.read_grants(str(node.jobs / "7"))) == 1
    second.write_bytes((node.jobs / "7" / "job.limits").read_bytes())
    assert len(job_dirs.read_grants(str(node.jobs / "7"))) == 1, "a copy of slice 0's"
    on_node(node)
    assert len(job_dirs.read_grants(str(node.jobs / "7"))) == 2


def test_reconcile_ends_all_slices_of_a_job_that_has_left(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    results = reconcile(node.settings, frozenset, dry_run=False)
    ended = [result.action.text for result in results if result.action.job_id == 7]
    assert ended == ["job 7: is no longer on this node; its 8192 MiB of GPU 0, 8192 MiB of GPU 1 are free again"]
    assert node.spooled() == ["7.json"]
    node.assert_nothing_is_held()


def test_each_slice_has_the_turn_of_its_own_gpu(node: Node, controller: Controller) -> None:
    assert prolog(node) == 0
    assert node.prolog(8, gpu="1") == 0

    def others(name: str) -> int:
        data = (node.jobs / "7" / name).read_bytes()
        offset, width, _ = c.LIMITS_FIELDS["others_least_cores"]
        return int.from_bytes(data[offset : offset + width], "little")

    assert (others("job.limits"), others("job.1.limits")) == (0, 50)


def test_jobs_with_crossed_gpus_do_not_wait_for_each_other(node: Node, controller: Controller) -> None:
    """One transaction enters all rows of a job, so that two prologs cannot each hold what the other needs."""
    controller.shows(8, "shard:a:32(IDX:1),shard:b:32(IDX:0)")
    assert prolog(node, 8) == 0
    controller.shows(7, BOTH)
    assert prolog(node) == 0
    assert [(one.job_id, one.gpu_uuid) for one in rows(node)] == [(job, uuid) for job in (7, 8) for uuid in UUIDS]


def test_a_directory_of_the_last_version_is_of_one_slice(node: Node, controller: Controller) -> None:
    assert node.prolog(7) == 0
    path = node.jobs / "7" / "job.limits"
    data = bytearray(path.read_bytes())
    offset, width, _ = c.LIMITS_FIELDS["slice_count"]
    data[offset : offset + width] = bytes(width)
    path.write_bytes(data)
    lose_ledger(node)
    assert [(one.slice_index, one.slice_count) for one in rows(node)] == [(0, 1)]
    node.enter_gpus()
    assert node.prolog(7) == 0
    assert epilog_main(node.arguments, job_environment(7)) == 0
    assert node.record()["gpu_count"] == 1


def test_grants_of_an_earlier_boot_are_void_together(node: Node, controller: Controller, tmp_path: Path) -> None:
    assert prolog(node) == 0
    from hami_hpc.node.ledger import open_ledger

    later: Ledger = open_ledger(node.settings.run_dir, "another boot", tuple)
    assert (later.grants(), len(later.void_grants())) == ((), 2)
    later.drop_void()
    assert later.void_grants() == ()
    later.close()
