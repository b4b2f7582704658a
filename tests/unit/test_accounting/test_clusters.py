# SPDX-License-Identifier: Apache-2.0
"""Records of several clusters in one store: each is of its own cluster, and a mistyped name is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.sacct import ASKED
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.cli import main

from .samples import HOUR, VGPU_HALF, Job, export_text, fill, write_export
from .test_efficiency import _record, _spool
from .test_undo import _content

T0 = 1_788_220_800  # 2026-09-01T00:00:00Z
SITE = 'version = 1\n[gpu_models.h200]\ntotal_mib = 143156\n[partitions.gpu]\ngpu_models = ["h200"]\n'
RATES = 'version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 1\n'
NAMELESS = tuple(name for name in ASKED if name != "Cluster")


def _job(job_id: int = 1, cluster: str = "c1", **changes: object) -> Job:
    return Job(job_id, T0, T0, T0 + HOUR, VGPU_HALF, cluster=cluster).with_(**changes)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(tmp_path / "hami-hpc.toml"))
    return tmp_path


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def _used(root: Path) -> list[tuple[str, int]]:
    records = job_records.from_store(root, None, 256)
    rows = records.con.execute(f"SELECT cluster, job_id FROM {records.used} ORDER BY ALL").fetchall()
    records.con.close()
    return rows


def test_a_usage_record_is_of_the_cluster_that_it_says_and_an_old_one_of_the_given_one(tmp_path: Path) -> None:
    """Both clusters have a job 1 at the same time; only that of c2 was disturbed."""
    root = tmp_path / "s"
    fill(root, [_job(1, "c1"), _job(1, "c2")])
    new = _record(1, T0 + 1, T0 + HOUR) | {"cluster": "c2"}
    old = _record(1, T0 + 1, T0 + HOUR, gpu_uuid="GPU-2")
    del old["cluster"]
    usage_table.collect(root, _spool(tmp_path / "u", new), "", True)
    usage_table.collect(root, _spool(tmp_path / "u", old), "c1", True)
    assert _used(root) == [("c1", 1), ("c2", 1)]
    records = job_records.from_store(root, None, 256)
    assigned = usage_table.assigned(records.source, records.used)
    rows = records.con.execute(f"SELECT cluster, gpu_uuid FROM ({assigned}) ORDER BY ALL").fetchall()
    assert rows == [("c1", "GPU-2"), ("c2", "GPU-1")]


def test_a_record_of_another_cluster_than_the_given_one_is_left_where_it_is(tmp_path: Path) -> None:
    spool = _spool(tmp_path / "u", _record(1) | {"cluster": "c1"}, _record(2) | {"cluster": "c2"})
    collected = usage_table.collect(tmp_path / "s", spool, "c1", True)
    (path,) = spool.iterdir()
    assert (collected.added, collected.faults) == (1, (f"{path}: is of cluster c2, and --clusters says c1",))
    assert json.loads(path.read_text(encoding="utf-8"))["job_id"] == 2


def test_a_mistyped_cluster_of_usage_records_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    spool = _spool(tmp_path / "u", _record(1))
    fill(root, [_job()])
    with pytest.raises(AccountingError, match="has no job of cluster cl, but of c1; did you mean c1") as raised:
        usage_table.collect(root, spool, "cl", True)
    assert "If not, run hami-hpc ingest for its jobs first" in str(raised.value)
    assert len(list(spool.iterdir())) == 1
    assert not store_files.read_manifest(root).of(store_files.USED)
    # The script of the timer collects before the first ingest.
    assert usage_table.collect(tmp_path / "empty", spool, "cl", True).added == 1


def test_a_mistyped_or_unexpected_cluster_of_an_export_is_refused_and_nothing_is_stored(site: Path) -> None:
    store = ("--store", site / "s")
    assert _run("ingest", "--input", write_export(site / "a", [_job()]), *store).exit_code == 0
    before = _content(site / "s")
    (site / "nameless").write_text(export_text([_job(2)], NAMELESS), encoding="utf-8")
    theirs = write_export(site / "theirs", [_job(2, "c2")])
    for words, says in (
        (
            ("--input", site / "nameless", "--clusters", "cl"),
            "has no job of cluster cl, but of c1; did you mean c1? If not",
        ),
        (("--input", theirs), "has no job of cluster c2, but of c1; did you mean c1? If not, give --new-cluster"),
        (("--input", theirs, "--clusters", "c1"), "has jobs of cluster c2, and --clusters says c1; leave --clusters"),
        (("--input", theirs, "--clusters", "c1", "--new-cluster"), "has jobs of cluster c2, and --clusters says c1"),
    ):
        result = _run("ingest", *words, *store)
        assert (result.exit_code, says in result.output, len(result.output.splitlines())) == (1, True, 1), result.output
        assert _content(site / "s") == before
    assert _run("ingest", "--input", theirs, "--new-cluster", *store).exit_code == 0
    assert _run("ingest", "--input", theirs, "--clusters", "c2", *store).exit_code == 0
    assert len(_content(site / "s")[0]) == 2


def test_a_bill_is_of_the_named_clusters_only(site: Path) -> None:
    """They were once ignored where the records came from a store or a file."""
    jobs = [_job(1), _job(2, "c2"), _job(3, "c2"), _job(4, "c1", tres="x"), _job(5, "c2", tres="x")]
    export = write_export(site / "x", jobs)
    assert _run("ingest", "--input", export, "--store", site / "s").exit_code == 0
    for source in (("--store", site / "s"), ("--input", export)):
        for names, lines, rejected in (
            ("c1", ["c1,1,0.5000,0.50"], ["4"]),
            ("c2", ["c2,2,1.0000,1.00"], ["5"]),
            ("c2, c1", ["c1,1,0.5000,0.50", "c2,2,1.0000,1.00"], ["4", "5"]),
            ("all", ["c1,1,0.5000,0.50", "c2,2,1.0000,1.00"], ["4", "5"]),
        ):
            words = ("bill", "--month", "2026-09", "--by", "cluster", "--format", "csv", "--clusters", names, *source)
            result = _run(*words)
            assert result.stdout.splitlines()[1:] == lines
            assert f"(job {', '.join(rejected)})" in result.stderr
        refused = _run("bill", "--month", "2026-09", "--clusters", "c1,cc2", *source)
        assert (refused.exit_code, len(refused.output.splitlines())) == (1, 1)
        assert "has no job of cluster cc2, but of c1, c2; did you mean c2?" in refused.output
    # A month without jobs of a cluster is none in which it is unknown.
    empty = _run("bill", "--month", "2026-11", "--clusters", "c2", "--store", site / "s")
    assert "no GPU job ran in this period" in empty.output


def test_disturbed_runs_of_one_cluster_are_found_when_only_it_is_billed(site: Path) -> None:
    (site / "rates.toml").write_text(RATES + "[[terms]]\nunbilled_disturbed = true\n", encoding="utf-8")
    fill(site / "s", [_job(1), _job(1, "c2")])
    disturbed = _record(1, T0 + 1, T0 + HOUR, disturbed_count=1) | {"cluster": "c2"}
    usage_table.collect(site / "s", _spool(site / "u", disturbed), "", True)
    for name, cost in (("c1", "0.50"), ("c2", "0.00")):
        words = ("bill", "--month", "2026-09", "--by", "cluster", "--format", "csv", "--clusters", name)
        assert _run(*words, "--store", site / "s").stdout.splitlines()[1:] == [f"{name},1,0.5000,{cost}"]


def test_a_bill_by_job_says_that_clusters_have_numbers_of_their_own(site: Path) -> None:
    fill(site / "s", [_job(1, "c1"), _job(1, "c2"), _job(2, "c1")])
    words = ("bill", "--month", "2026-09", "--store", site / "s")
    note = "jobs of 2 clusters that have one number are on one line: see --by cluster,job and --clusters"
    assert note in _run(*words, "--by", "account,job").output
    for more in (["--by", "cluster,job"], ["--by", "job", "--clusters", "c1"], ["--by", "account"]):
        assert "have one number" not in _run(*words, *more).output


def test_a_partition_of_one_cluster_alone_has_gpus_of_its_own(site: Path) -> None:
    """Both clusters have a partition gpu. A slice of c2's smaller GPU is a larger part of it, at its own price."""
    more = '[gpus.a100]\ntotal_mib = 81559\n[[rates]]\nmodel = "a100"\nper_gpu_hour = 3\n'
    (site / "rates.toml").write_text(RATES + more, encoding="utf-8")
    large = VGPU_HALF.replace("vgpu_mem=8192", "vgpu_mem=71578")  # half of an H200's memory
    fill(site / "s", [_job(1, "c1", tres=large), _job(1, "c2", tres=large)])
    words = ("bill", "--month", "2026-09", "--by", "cluster,model", "--store", site / "s", "--format", "csv")
    shared = _run(*words)
    assert shared.stdout.splitlines()[1:3] == ["c1,h200,1,0.5000,0.50", "c2,h200,1,0.5000,0.50"]
    assert '[partitions.gpu] says which GPUs c1 and c2 have there: where they differ, write [partitions."c2/gpu"]' in (
        shared.stderr
    )
    own = '[partitions."c2/gpu"]\ngpu_models = ["a100"]\n'
    (site / "rates.toml").write_text(RATES + more + own, encoding="utf-8")
    parted = _run(*words)
    assert parted.stdout.splitlines()[1:3] == ["c1,h200,1,0.5000,0.50", "c2,a100,1,0.8776,2.63"]
    assert "[partitions" not in parted.stderr
    used = _run("efficiency", "1", "--store", site / "s")
    assert sorted(line.split()[:2] for line in used.stdout.splitlines()[2:4]) == [["c1", "1"], ["c2", "1"]]
    listed = json.loads(_run("efficiency", "1", "--store", site / "s", "--format", "json").stdout)
    assert {run["cluster"]: run["cost"] for run in listed} == {"c1": "0.50", "c2": "2.63"}
    assert {run["cluster"]: run["share_ppm"] for run in listed} == {"c1": 500_000, "c2": 877_622}
