# SPDX-License-Identifier: Apache-2.0
"""What jobs used of what they held, the usage spool, and the comparison with sreport."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.accounting.documents import efficiency, sreport_check
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.sources import usage_records
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import Period
from hami_hpc.cli import accounting_reports, main
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import Observed, Usage, usage_record

from .samples import GPUS, HOUR, VGPU_HALF, Job, fill, write_settings
from .samples import run as hami_hpc

SITE = 'version = 1\n[gpu_models.h200]\ntotal_mib = 143156\n[partitions.gpu]\ngpu_models = ["h200"]\n'
T0 = 1_790_000_000
NS = 1_000_000_000
MIB = 1 << 20


def _record(job_id: int = 1, start: int = T0 + 1, end: int = T0 + HOUR, **changes: Any) -> dict[str, Any]:
    """What the epilog writes of a job with half an H200 and 8 GiB; written by the epilog's own function."""
    grant = Grant(
        job_id=job_id,
        uid=1001,
        gpu_uuid=changes.pop("gpu_uuid", "GPU-1"),
        gpu_minor=0,
        gpu_total_mib=143156,
        model="h200",
        mem_mib=8192,
        cores_percent=50,
        service_class="std",
        policy="cap",
        mode="share",
        created_unix_ns=start * NS,
    )
    observed = Observed(**{name: changes.pop(name) for name in Observed._fields if name in changes})
    values: dict[str, Any] = {"state": "ok", "used_bytes": 0, "peak_bytes": 2000 * MIB, "oom_count": 0}
    values |= {"gpu_busy_ns": 720 * NS, "throttled_ns": 0, **changes}
    return dict(usage_record(grant, Usage(**values), end * NS, observed))


def test_requests_of_slices_are_summed_and_the_slowest_one_is_shown(tmp_path: Path) -> None:
    root = tmp_path / "s"
    two = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"
    fill(root, [Job(tres=two)])
    first = _record(request_count=10, latency_p99_us=500, slo_miss_count=1)
    second = _record(gpu_uuid="GPU-2", request_count=5, latency_p99_us=900, slo_miss_count=2)
    usage_table.collect(root, _spool(tmp_path / "u", first, second), "c1", False)
    (run,) = _runs(root)
    assert (run.request_count, run.latency_p99_us, run.slo_miss_count) == (15, 900, 3)
    said = accounting_reports._one_run(run)
    assert "requests 15; 99 of 100 took at most 0.90 ms; 3 took longer than they should" in said


def test_counts_that_a_user_made_huge_stop_no_report(tmp_path: Path) -> None:
    """The counts of a usage file are the job's own, and its user can write them."""
    write_settings(tmp_path)
    root = tmp_path / "store"
    fill(root, [Job(tres="gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384")])
    most = (1 << 63) - 1
    huge = dict.fromkeys(("oom_count", "request_count", "slo_miss_count", "throttled_ns", "gpu_busy_ns"), most)
    spool = _spool(tmp_path / "u", _record(**huge), _record(gpu_uuid="GPU-2", **huge))
    usage_table.collect(root, spool, "c1", False)
    shown = hami_hpc(tmp_path, "efficiency", "1", "--format", "json")
    assert json.loads(shown.stdout)[0]["oom_count"] == 2 * most
    assert hami_hpc(tmp_path, "report", "--month", "2026-09", "--output", str(tmp_path / "r.html")).exit_code == 0


def test_what_a_resized_job_had_is_what_it_used_a_part_of(tmp_path: Path) -> None:
    """Slurm's counts stay those of its request; the records have the most memory and the last share."""
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF)])
    record = _record(peak_bytes=30 * 1024 * MIB) | {"mem_mib": 32768, "cores": 20}
    usage_table.collect(root, _spool(tmp_path / "u", record), "c1", False)
    (run,) = _runs(root)
    assert (run.mem_mib, run.cores_percent) == (32768, 50)
    assert run.mem_percent == pytest.approx(100 * 30 / 32)
    assert efficiency.suggestion(run) == "--gres=vgpu:mem=32G,cores=22"


def _spool(directory: Path, *records: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    for index, record in enumerate(records):
        (directory / f"{record['job_id']}-{index}.json").write_text(json.dumps(record), encoding="utf-8")
    return directory


def _runs(root: Path, where: str = "true", gpus: ClusterGpus = GPUS) -> list[efficiency.RunUse]:
    found = job_records.from_store(root, None, 256)
    used = usage_table.stored(root, store_files.read_manifest(root))
    return efficiency.runs(efficiency.choose(found, where, []), used, gpus)


def test_what_a_job_used_of_an_oversold_gpu_is_a_part_of_what_it_was_granted(tmp_path: Path) -> None:
    """Granted: half of the time for 1 h. Of the 334 % of the time that are sold of the GPU these are 50: it holds
    0.1497 GPUs, 538.92 s. Busy 720 s: 40 % of what was granted, so 40 % of what it held."""
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF)])
    usage_table.collect(root, _spool(tmp_path / "u", _record()), "c1", False)
    (run,) = _runs(root, gpus=replace(GPUS, memory_scaling=3.0))
    assert (run.share_ppm, run.granted_ppm) == (149_701, 500_000)
    assert run.gpu_percent == pytest.approx(40.0)
    assert run.mem_percent == 100 * 2000 / 8192
    assert run.used_gpu_s == pytest.approx(0.4 * run.held_gpu_s)
    assert run.wasted_gpu_s == pytest.approx(0.6 * run.held_gpu_s)
    assert efficiency.suggestion(run) == "--gres=vgpu:mem=2304M,cores=22"


def test_a_job_is_told_what_it_used_and_which_request_would_have_sufficed(tmp_path: Path) -> None:
    """Held: half a GPU for 1 h. Busy 720 s: 20 % of the GPU, 40 % of what was held. Peak 2000 MiB, with a tenth more
    and in steps of 256 MiB 2304; 20 % and a tenth more 22."""
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF)])
    usage_table.collect(root, _spool(tmp_path / "u", _record()), "c1", False)
    (run,) = _runs(root)
    assert (run.held_gpu_s, run.gpu_busy_s, run.wasted_gpu_s) == (1800.0, 720.0, 1080.0)
    assert (run.gpu_percent, run.mem_percent) == (40.0, 100 * 2000 / 8192)
    assert efficiency.suggestion(run) == "--gres=vgpu:mem=2304M,cores=22"


@pytest.mark.parametrize(
    ("constraints", "mode"),
    [("vgpu_mig", ",mode=mig"), ("vgpu_mps&vgpu_h200", ",mode=mps"), ("amd", ""), ("[vgpu_mig&vgpu_share]", "")],
)
def test_a_suggestion_keeps_the_mode_of_the_job(tmp_path: Path, constraints: str, mode: str) -> None:
    fill(tmp_path / "s", [Job(tres=VGPU_HALF, constraints=constraints)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", _record()), "c1", False)
    assert efficiency.suggestion(_runs(tmp_path / "s")[0]) == f"--gres=vgpu:mem=2304M,cores=22{mode}"


@pytest.mark.parametrize(
    ("changes", "suggested"),
    [
        ({"peak_bytes": 8192 * MIB, "gpu_busy_ns": 1800 * NS}, None),
        ({"oom_count": 2}, "--gres=vgpu:mem=8G,cores=22"),
        ({"throttled_ns": 900 * NS}, "--gres=vgpu:mem=2304M,cores=50"),
        ({"peak_bytes": 0, "gpu_busy_ns": 0}, efficiency.NO_GPU),
        ({"peak_bytes": 1, "gpu_busy_ns": 1}, "--gres=vgpu:mem=256M,cores=1"),
        ({"state": "damaged"}, None),
    ],
)
def test_a_suggestion_never_goes_below_what_a_job_ran_into(
    tmp_path: Path, changes: dict[str, Any], suggested: str | None
) -> None:
    fill(tmp_path / "s", [Job(tres=VGPU_HALF)])
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", _record(**changes)), "", False)
    assert efficiency.suggestion(_runs(tmp_path / "s")[0]) == suggested


def test_a_suggestion_is_what_the_busiest_slice_needs(tmp_path: Path) -> None:
    """Two slices of half a GPU for 1 h, one busy for 1440 s (40 %, with a tenth more 44), one for 72 s: their mean,
    21 %, and with a tenth more 24 %, would delay the first."""
    two = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"
    fill(tmp_path / "s", [Job(tres=two)])
    busy = _record(gpu_busy_ns=1440 * NS, throttled_ns=100 * NS)
    idle = _record(gpu_uuid="GPU-2", gpu_busy_ns=72 * NS, peak_bytes=100 * MIB)
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", busy, idle), "c1", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.gpu_busy_s, run.busiest_s, run.most_throttled_s) == (1512.0, 1440.0, 100.0)
    assert efficiency.suggestion(run) == "--gres=vgpu:mem=2304M,cores=44"


def test_of_two_slices_on_a_node_one_may_have_used_all_that_was_used(tmp_path: Path) -> None:
    """One record for both, with sums: 4000 of 2 x 8192 MiB at their peak. A slice with 4608 MiB has room for all of it
    and a tenth more; the time, 1440 s of an hour, is 40 % of one GPU, and with a tenth more 44."""
    two = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"
    fill(tmp_path / "s", [Job(tres=two)])
    record = _record(gpu_uuid="GPU-1,GPU-2", peak_bytes=4000 * MIB, gpu_busy_ns=1440 * NS)
    record |= {"gpu_count": 2, "mem_mib": 16384, "cores": 100}
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record), "c1", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.slices, run.slices_per_node, run.held_gpu_s) == (2, 2, 3600.0)
    assert (run.gpu_percent, run.mem_percent) == (40.0, 100 * 4000 / 16384)
    assert efficiency.suggestion(run) == "--gres=vgpu:2:mem=4608M,cores=44"


def test_one_slice_that_was_held_back_keeps_the_cores_of_all(tmp_path: Path) -> None:
    """Held back for 400 s of 3600: more than a tenth, though of two slices together it is less."""
    two = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"
    fill(tmp_path / "s", [Job(tres=two)])
    records = (_record(throttled_ns=400 * NS), _record(gpu_uuid="GPU-2"))
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", *records), "c1", False)
    assert efficiency.suggestion(_runs(tmp_path / "s")[0]) == "--gres=vgpu:mem=2304M,cores=50"


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("100", ["100_1", "100_2", "100_10"]),
        ("100_1", ["100_1"]),
        ("101", ["100_1"]),
        ("200", ["200+0", "200+1"]),
        ("10", None),
        ("1001", ["1001"]),
    ],
)
def test_an_array_and_a_heterogeneous_job_are_shown_with_all_their_parts(
    tmp_path: Path, asked: str, shown: list[str] | None
) -> None:
    names = {100: "100_10", 101: "100_1", 102: "100_2", 200: "200+0", 201: "200+1", 1001: "1001"}
    jobs = [Job(number, tres=VGPU_HALF, name=name) for number, name in names.items()]
    fill(tmp_path / "s", jobs)
    command = ["efficiency", asked, "--format", "json", "--store", str(tmp_path / "s")]
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    done = CliRunner().invoke(main, [*command, "--config", str(tmp_path / "hami-hpc.toml")])
    if shown is None:
        assert (done.exit_code, "there is no GPU job 10:" in done.output) == (1, True)
    else:
        assert sorted(run["job"] for run in json.loads(done.stdout)) == sorted(shown)


def test_each_run_of_a_requeued_job_has_its_own_usage(tmp_path: Path) -> None:
    root = tmp_path / "s"
    first = Job(tres=VGPU_HALF, end=T0 + 20, state="REQUEUED")
    second = Job(tres=VGPU_HALF, submit=T0 + 20, start=T0 + 40, end=T0 + 100)
    fill(root, [first, second])
    records = (_record(end=T0 + 20, gpu_busy_ns=5 * NS), _record(start=T0 + 41, end=T0 + 100, gpu_busy_ns=30 * NS))
    usage_table.collect(root, _spool(tmp_path / "u", *records), "c1", False)
    assert [run.gpu_busy_s for run in _runs(root)] == [5.0, 30.0]


def test_what_a_job_used_is_not_set_against_a_part_of_its_time(tmp_path: Path) -> None:
    """Job 1 gave up a node after 20 s, so that slurmdbd has two records of it, and its node one of its whole time."""
    root = tmp_path / "s"
    first = Job(tres=VGPU_HALF, submit=T0, start=T0, end=T0 + 20, state="RESIZING")
    rest = Job(tres=VGPU_HALF, submit=T0 + 20, start=T0, end=T0 + 48)
    fill(root, [first, rest, Job(2, tres=VGPU_HALF, submit=T0 + 1, start=T0 + 1, end=T0 + 48)])
    records = (_record(start=T0, end=T0 + 48), _record(start=T0 + 1, end=T0 + 48, job_id=2))
    usage_table.collect(root, _spool(tmp_path / "u", *records), "c1", False)
    shown = [(run.job, run.measured, run.gpu_percent is None) for run in _runs(root)]
    assert shown == [("1", False, True), ("2", True, False), ("1", False, True)]


def test_a_job_on_two_nodes_adds_up_time_and_keeps_the_larger_peak(tmp_path: Path) -> None:
    root = tmp_path / "s"
    two = "gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384"
    fill(root, [Job(tres=two)])
    records = (_record(peak_bytes=MIB), _record(gpu_uuid="GPU-2", peak_bytes=4096 * MIB))
    usage_table.collect(root, _spool(tmp_path / "u", *records), "c1", False)
    (run,) = _runs(root)
    assert (run.slices, run.mem_mib, run.cores_percent) == (2, 8192, 50)
    assert (run.gpu_busy_s, run.peak_bytes, run.held_gpu_s) == (1440.0, 4096 * MIB, 3600.0)


@pytest.mark.parametrize(
    ("stated", "observed", "shown"),
    [(2000, 0, 2000), (2000, 1999, 2000), (2000, 3000, 3000), (0, 3000, 3000)],
)
def test_the_peak_is_the_larger_of_the_interposers_and_the_agents(
    tmp_path: Path, stated: int, observed: int, shown: int
) -> None:
    fill(tmp_path / "s", [Job(tres=VGPU_HALF)])
    record = _record(peak_bytes=stated * MIB, observed_peak_bytes=observed * MIB)
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record), "", False)
    assert _runs(tmp_path / "s")[0].peak_bytes == shown * MIB


@pytest.mark.parametrize(("stated", "observed", "shown"), [(720, 900, 720), (720, 0, 720), (0, 900, 900), (0, 0, 0)])
def test_gpu_time_is_the_interposers_and_nvmls_where_the_interposer_measured_none(
    tmp_path: Path, stated: int, observed: int, shown: int
) -> None:
    fill(tmp_path / "s", [Job(tres=VGPU_HALF)])
    record = _record(gpu_busy_ns=stated * NS, observed_busy_ns=observed * NS)
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record), "", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.gpu_busy_s, run.time_measured) == (shown, shown > 0)


def test_on_two_nodes_the_peak_and_the_time_are_chosen_for_each_slice(tmp_path: Path) -> None:
    """Slice 1: the interposer measured 100 s, NVML 900 s. Slice 2: NVML alone measured, 300 s. 100 + 300."""
    fill(tmp_path / "s", [Job(tres="gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384")])
    first = _record(peak_bytes=5 * MIB, observed_peak_bytes=MIB, gpu_busy_ns=100 * NS, observed_busy_ns=900 * NS)
    second = _record(
        gpu_uuid="GPU-2", peak_bytes=MIB, observed_peak_bytes=7 * MIB, gpu_busy_ns=0, observed_busy_ns=300 * NS
    )
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", first, second), "", False)
    (run,) = _runs(tmp_path / "s")
    assert (run.gpu_busy_s, run.peak_bytes) == (400.0, 7 * MIB)


def test_a_run_without_a_usage_record_is_not_measured_and_not_judged(tmp_path: Path) -> None:
    fill(tmp_path / "s", [Job(tres=VGPU_HALF), Job(job_id=2)])
    for run in _runs(tmp_path / "s"):
        assert (run.measured, run.gpu_percent, run.wasted_gpu_s, efficiency.suggestion(run)) == (False, None, 0.0, None)


def test_a_spool_is_stored_once_and_removed_only_when_asked(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(tres=VGPU_HALF)])
    directory = _spool(tmp_path / "u", _record(), _record(job_id=2))
    assert usage_table.collect(root, directory, "c1", False) == usage_table.Collected(2, 0, ())
    (directory / "bad.json").write_text("{", encoding="utf-8")
    collected = usage_table.collect(root, directory, "c1", True)
    assert (collected.added, collected.known, len(collected.faults)) == (0, 2, 1)
    assert [path.name for path in directory.iterdir()] == ["bad.json"]
    # The store's job records are still there, and so is the usage after another ingest.
    fill(root, [Job(job_id=2, tres=VGPU_HALF)])
    assert sum(run.measured for run in _runs(root)) == 2


@given(st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_a_spool_file_with_anything_in_it_is_read_or_named(content: object) -> None:
    try:
        usage_records.parse_record(json.dumps(content))
    except usage_records.UsageRecordError:
        return
    pytest.fail("this is no usage record")


@pytest.mark.parametrize(
    ("field", "value"),
    [("peak_bytes", -1), ("gpu_busy_ns", 1.5), ("mem_mib", True), ("class", 3), ("oom_count", 2**63)],
)
def test_a_usage_record_with_one_wrong_field_is_named_by_it(field: str, value: object) -> None:
    with pytest.raises(usage_records.UsageRecordError, match=field):
        usage_records.parse_record(json.dumps({**_record(), field: value}))


def test_sreport_and_the_records_are_compared_key_by_key_and_to_the_second(tmp_path: Path) -> None:
    period = Period(T0 - T0 % HOUR, T0 - T0 % HOUR + 10 * HOUR)
    start = period.start_s
    jobs = [
        Job(submit=start, start=start, end=start + HOUR),
        Job(job_id=2, submit=start, start=start, end=start + HOUR, tres=VGPU_HALF, user="bob"),
        Job(job_id=3, submit=start, start=start, end=start + 2 * HOUR, suspended=HOUR, user="eve"),
    ]
    fill(tmp_path / "s", jobs)
    records = job_records.from_store(tmp_path / "s", period, 256)
    ours, suspended = sreport_check.device_seconds(records, period)
    text = "c1|root||gres/gpu|99\nc1|phys|ann|gres/gpu|3600\nc1|phys|bob|gres/vgpu|3599\nc1|phys|eve|gres/gpu|7200\n"
    theirs = sreport_check.parse_sreport(text)
    reasons = sreport_check.reasons_for(records, {*ours, *theirs}, theirs, period, period.end_s + 2 * HOUR)
    result = sreport_check.compare(theirs, ours, suspended, reasons)
    assert (result.compared, result.suspended_s) == (3, HOUR)
    (difference,) = result.differences
    assert (difference.user, difference.sreport_s, difference.records_s) == ("bob", 3599, 3600)
    assert difference.reasons == ()


def test_what_sreport_does_not_know_yet_or_cannot_express_is_said(tmp_path: Path) -> None:
    period = Period(T0, T0 + HOUR)
    fill(tmp_path / "s", [Job(user="uid:7"), Job(job_id=2, end=None, state="RUNNING", elapsed=60)])
    records = job_records.from_store(tmp_path / "s", period, 256)
    ours, _ = sreport_check.device_seconds(records, period)
    reasons = sreport_check.reasons_for(records, ours, {}, period, period.end_s)
    gone = " ".join(reasons["c1", "phys", "uid:7", "gres/gpu"])
    running = " ".join(reasons["c1", "phys", "ann", "gres/gpu"])
    assert "whole hours only" in gone
    assert "no association" in gone
    assert "had not ended" in running
    assert "not in sreport yet" in running


def test_an_sreport_that_prints_something_else_is_quoted() -> None:
    with pytest.raises(AccountingError, match="sreport printed 'slurmdbd: x'"):
        sreport_check.parse_sreport("slurmdbd: x\n")


def test_a_run_whose_time_nothing_measured_is_not_called_idle() -> None:
    """Policy burst counts no GPU time: memory was held, so there was work, and how much is not known."""
    known = efficiency.RunUse(
        "c", "1", "a", "u", "COMPLETED", 0, 100, 500_000, 1, 8192, 50, "be", True, False, 1 << 30, 10.0, 0.0, 0
    )
    unknown = replace(known, gpu_busy_s=0.0)
    assert (known.gpu_percent, known.wasted_gpu_s) == (20.0, 40.0)
    assert (unknown.gpu_percent, unknown.wasted_gpu_s) == (None, 0.0)
    assert efficiency.suggestion(unknown) == "--gres=vgpu:mem=1280M,cores=50"
    assert efficiency.suggestion(replace(unknown, peak_bytes=0)) == efficiency.NO_GPU
