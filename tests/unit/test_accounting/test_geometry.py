# SPDX-License-Identifier: Apache-2.0
"""The sizes of slices are dated: what shard_mib and memory_scaling are today does not price the jobs of before."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from hami_hpc.accounting.documents import efficiency
from hami_hpc.accounting.pricing import gpu_settings
from hami_hpc.accounting.store import geometry_file, job_records, store_files, usage_table
from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.accounting.times import Period, zone
from hami_hpc.node.config import load_settings

from .samples import HOUR, Job, fill, make_bill, rates, write_export
from .test_commands import RATES, SITE, T0, _run, site

__all__ = ["site"]  # the fixture
UTC = zone("UTC")
DAY = 24 * HOUR
SHARDS = "gres/shard=140"  # a quarter of 559 shards of 256 MiB is 139.75; of 512 MiB there are 279
MEMORY = "gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores=1,gres/vgpu_mem=71578"  # half of all, all of half
OLD = "[[geometry]]\nuntil = {}\nshard_mib = 256\nmemory_scaling = 1.0\n"


def _set(site: Path, vgpu: str, dated: str = "") -> None:
    (site / "hami-hpc.toml").write_text(SITE + f"[vgpu]\n{vgpu}\n", encoding="utf-8")
    (site / "rates.toml").write_text(RATES + dated, encoding="utf-8")


def _ingest(site: Path, *jobs: Job) -> tuple[str, Path]:
    write_export(site / "export", jobs)
    assert _run("ingest", "--input", site / "export", "--store", site / "store").exit_code == 0
    return "--store", site / "store"


def _cost(store: tuple[str, Path], *words: str) -> str:
    result = _run("bill", *(words or ("--month", "2026-09")), "--format", "json", *store)
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["total"]["cost"])


BEFORE = Job(1, T0, T0, T0 + 100 * HOUR, SHARDS)
# 100 h x 140/559 x 2.50, and x 140/279
OLD_COST, NEW_COST = "62.61", "125.45"


@pytest.mark.parametrize(
    ("vgpu", "tres"), [("shard_mib = 512", SHARDS), ("memory_scaling = 0.5", SHARDS), ("memory_scaling = 0.5", MEMORY)]
)
def test_a_change_today_does_not_price_last_month_anew(site: Path, vgpu: str, tres: str) -> None:
    store = _ingest(site, BEFORE.with_(tres=tres))
    cost = _cost(store)
    assert json.loads((store[1] / "geometry.json").read_text(encoding="utf-8"))["shard_mib"] == 256
    _set(site, vgpu)
    # Nobody has said since when: the price stays, everybody is told, and no invoice is issued.
    assert _cost(store) == cost
    bill = _run("bill", "--month", "2026-09", *store)
    assert "the store's jobs ran with 256 and 1.0: all jobs are priced by the latter until" in bill.stdout
    draft = _run("invoice", "--month", "2026-09", "--draft", *store)
    assert (draft.exit_code, "[[geometry]] with until = " in draft.stderr) == (0, True)
    refused = _run("invoice", "--month", "2026-09", *store)
    assert (refused.exit_code, "[[geometry]] with until = " in refused.output) == (1, True)
    assert not (store[1] / "invoices").exists()
    _ingest(site)  # an ingest does not take the change for dated
    assert _cost(store) == cost
    # Then somebody says it.
    _set(site, vgpu, OLD.format("2026-10-01"))
    assert _cost(store) == cost
    assert "[[geometry]]" not in _run("bill", "--month", "2026-09", *store).output
    assert _run("invoice", "--month", "2026-09", *store).exit_code == 0


def test_a_run_has_the_sizes_of_the_day_on_which_it_started(site: Path) -> None:
    """One started on 14 September, another on the 15th, when shards were doubled: also the first costs as before."""
    first = BEFORE.with_(submit=T0 + 13 * DAY, start=T0 + 13 * DAY, end=T0 + 13 * DAY + 100 * HOUR)
    second = BEFORE.with_(job_id=2, submit=T0 + 14 * DAY, start=T0 + 14 * DAY, end=T0 + 14 * DAY + 100 * HOUR)
    store = _ingest(site, first, second)
    _set(site, "shard_mib = 512", OLD.format("2026-09-15"))
    text = _run("bill", "--month", "2026-09", "--by", "day", "--format", "csv", *store).stdout
    hours = {line.split(",")[0]: line.split(",")[2] for line in text.splitlines()[1:]}
    assert hours["2026-09-14"] == f"{24 * 0.250447:.4f}"
    assert hours["2026-09-18"] == f"{4 * 0.250447 + 24 * 0.501792:.4f}"
    assert _cost(store) == str(Decimal(OLD_COST) + Decimal(NEW_COST))
    # And the sum over two parts of the month is that of the month.
    parts = [("--start", "2026-09-01", "--end", "2026-09-15"), ("--start", "2026-09-15", "--end", "2026-10-01")]
    assert sum(Decimal(_cost(store, *part)) for part in parts) == Decimal(OLD_COST) + Decimal(NEW_COST)


def test_without_a_store_the_rates_date_it(site: Path) -> None:
    write_export(site / "export", [BEFORE])
    words = ("bill", "--month", "2026-09", "--input", site / "export", "--format", "json")
    _set(site, "shard_mib = 512")
    assert json.loads(_run(*words).stdout)["total"]["cost"] == NEW_COST
    _set(site, "shard_mib = 512", OLD.format("2026-10-01"))
    assert json.loads(_run(*words).stdout)["total"]["cost"] == OLD_COST


def test_each_change_has_to_be_dated_also_one_back_to_what_was(site: Path) -> None:
    store = _ingest(site, BEFORE)
    _set(site, "shard_mib = 512", OLD.format("2026-10-01"))
    _ingest(site)
    assert geometry_file.read(store[1]) == Geometry(512, 1.0)
    _set(site, "shard_mib = 256", OLD.format("2026-10-01"))
    assert "ran with 512 and 1.0" in _run("bill", "--month", "2026-09", *store).stdout
    new = "[[geometry]]\nfrom = 2026-10-01\nuntil = 2026-11-01\nshard_mib = 512\nmemory_scaling = 1.0\n"
    _set(site, "shard_mib = 256", OLD.format("2026-10-01") + new)
    assert "[[geometry]]" not in _run("bill", "--month", "2026-09", *store).output
    _ingest(site)
    _set(site, "shard_mib = 512", OLD.format("2026-10-01") + new)
    assert "ran with 256 and 1.0" in _run("bill", "--month", "2026-09", *store).stdout


def test_a_bill_by_other_settings_does_not_change_what_the_store_remembers(site: Path) -> None:
    store = _ingest(site, BEFORE)
    _set(site, "shard_mib = 512")
    (site / "hami-hpc.toml").rename(site / "other.toml")
    assert _run("bill", "--month", "2026-09", "--config", site / "other.toml", *store).exit_code == 0
    assert geometry_file.read(store[1]) == Geometry(256, 1.0)
    (store[1] / "geometry.json").unlink()
    assert _run("bill", "--month", "2026-09", "--config", site / "other.toml", *store).exit_code == 0
    assert geometry_file.read(store[1]) is None


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "shard_mib": 256}',
                                  '{"version": 1, "shard_mib": "256", "memory_scaling": 1.0}'])  # fmt: skip
def test_a_file_of_sizes_that_cannot_be_read_is_named(site: Path, text: str) -> None:
    store = _ingest(site, BEFORE)
    (store[1] / "geometry.json").write_text(text, encoding="utf-8")
    result = _run("bill", "--month", "2026-09", *store)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "geometry.json cannot be read" in line


def test_a_store_that_cannot_be_written_remembers_nothing_and_nothing_fails(tmp_path: Path) -> None:
    geometry_file.remember(tmp_path / "none", Geometry(1, 1.0))
    assert not (tmp_path / "none").exists()
    (tmp_path / "manifest.json").touch()
    (tmp_path / "geometry.json").mkdir()
    with pytest.raises(Exception, match="cannot be read"):
        geometry_file.remember(tmp_path, Geometry(1, 1.0))


def test_the_times_of_several_geometries_follow_one_another(site: Path) -> None:
    settings = load_settings(str(site / "hami-hpc.toml"))
    entries = [
        {"from": date(2026, 3, 1), "until": date(2026, 4, 1), "shard_mib": 2, "memory_scaling": Decimal("0.5")},
        {"from": date(2026, 1, 1), "until": date(2026, 2, 1), "shard_mib": 1, "memory_scaling": 1},
    ]
    gpus = gpu_settings.cluster_gpus_of(settings, rates(geometry=entries), UTC)
    sizes = [gpus.shard_mib for gpus in gpus.eras()]
    assert sizes == [256, 1, 256, 2, 256]
    assert [gpus.era(until_s - 1) for until_s, _ in gpus.former] == [0, 1, 2, 3]
    assert [gpus.era(until_s) for until_s, _ in gpus.former] == [1, 2, 3, 4]
    open_end = [*entries, {"from": date(2026, 4, 1), "shard_mib": 4, "memory_scaling": 1}]
    gpus = gpu_settings.cluster_gpus_of(settings, rates(geometry=open_end), UTC)
    assert [gpus.shard_mib for gpus in gpus.eras()] == [256, 1, 256, 2, 4]


def test_the_shards_of_partitions_that_only_the_rates_name_are_not_of_shard_mib(site: Path) -> None:
    settings = load_settings(str(site / "hami-hpc.toml"))
    old, new = {"gpu_models": ["a100"]}, {"gpu_models": ["a100"], "shards_per_gpu": 8}
    gpus = gpu_settings.cluster_gpus_of(settings, rates(partitions={"old": old, "new": new}), UTC)
    assert gpus.foreign == {"old": 0, "new": 8}
    (own, *_) = settings.partitions
    with pytest.raises(Exception, match=rf"rates.toml: shards_per_gpu of partition {own}, which .*; remove"):
        gpu_settings.cluster_gpus_of(settings, rates(partitions={own: new}), UTC)
    assert gpu_settings.cluster_gpus_of(settings, rates(partitions={own: old}), UTC).foreign == {}


def test_efficiency_reckons_with_the_sizes_of_the_day_too(tmp_path: Path, site: Path) -> None:
    settings = load_settings(str(site / "hami-hpc.toml"))
    entry = {"until": date(2026, 9, 2), "shard_mib": 512, "memory_scaling": 1}
    gpus = gpu_settings.cluster_gpus_of(settings, rates(geometry=[entry]), UTC)
    root = tmp_path / "s"
    fill(root, [BEFORE, BEFORE.with_(job_id=2, start=T0 + DAY, end=T0 + 2 * DAY)])
    records = job_records.from_store(root, None, 256)
    used = usage_table.stored(root, store_files.read_manifest(root))
    shares = [run.share_ppm for run in efficiency.runs(efficiency.choose(records, "true", []), used, gpus)]
    assert shares == [501_792, 250_447]
    made = make_bill(root, Period(T0, T0 + 30 * DAY), "account", site=gpus)
    assert made.lines[0].exact == 100 * HOUR * 501_792 + 24 * HOUR * 250_447


def test_who_may_not_read_the_store_makes_bills_of_a_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_export(site / "export", [BEFORE])
    original = Path.read_text

    def read_text(path: Path, *words: str, **options: str) -> str:
        if path.name == "geometry.json":
            raise PermissionError(13, "Permission denied")
        return original(path, *words, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    result = _run("bill", "--month", "2026-09", "--input", site / "export", "--format", "json")
    assert json.loads(result.stdout)["total"]["cost"] == OLD_COST
