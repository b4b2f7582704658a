# SPDX-License-Identifier: Apache-2.0
"""Users' names leave the store, and no amount changes: not to the cent, not when killed, not when read again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import EACH

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import anonymous, ingest, store_files
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import zone

from .samples import HOUR, VGPU_HALF, Job, fill, ingest_file, run, write_export, write_settings
from .test_efficiency import _record, _spool
from .test_register import moments_of

T0 = 1_788_220_800  # 2026-09-01T00:00:00Z
DAY = 86400
HOSTILE = "ann<b>\t\"; DROP TABLE names;--'é王"
JOBS = [
    Job(1, submit=T0 - 9, start=T0, end=T0 + 3 * HOUR + 7, user=HOSTILE),
    Job(2, start=T0 + 5, end=T0 + 20, submit=T0 + 5, tres=VGPU_HALF, user="bob"),
    Job(2, start=T0 + DAY, end=T0 + DAY + HOUR, submit=T0 + DAY, tres=VGPU_HALF, user="bob"),
    Job(3, start=T0 + 2 * DAY, end=T0 + 3 * DAY, submit=T0 + DAY, suspended=HOUR, account="chem", user="eve"),
    Job(4, start=T0 + 4 * DAY, end=T0 + 5 * DAY, submit=T0, tres="cpu=1,mem=1G,node=1", user="eve"),
    Job(5, start=T0 + 29 * DAY, end=T0 + 31 * DAY, submit=T0, user="bob"),  # into October
    Job(6, start=T0 + 6 * DAY, end=T0 + 6 * DAY + HOUR, submit=T0, state="NODE_FAIL", user="eve", account="chem"),
    Job(7, start=T0 + 32 * DAY, end=T0 + 32 * DAY + HOUR, submit=T0 + 32 * DAY, user=HOSTILE),
]
RATES = """version = 1
issuer = ["Centre"]
[[rates]]
model = "h200"
per_gpu_hour = 1.234567
[[terms]]
minimum_s = 60
suspended_factor = 0.3
unbilled_states = ["NODE_FAIL"]
unbilled_disturbed = true
"""
OCTOBER = ("--before", "2026-10-01")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write_settings(tmp_path)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    fill(tmp_path / "store", JOBS)
    records = [
        _record(2, T0 + DAY, T0 + DAY + HOUR, disturbed_count=1),
        _record(2, T0 + 5, T0 + 20),
        _record(99, T0 + 50, T0 + 60),
    ]
    _spool(tmp_path / "spool", *records)
    assert run(tmp_path, "collect-usage", "--input", str(tmp_path / "spool"), "--clusters", "c1").exit_code == 0
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    return tmp_path


def bills(site: Path) -> list[str]:
    """All amounts that do not name a user, of both months, of odd days, and of GPU-hours."""
    by = "account,partition,qos,model,mode,class,billable,day,cluster"
    made = []
    for period in (
        ("--month", "2026-09"), ("--month", "2026-10"), ("--start", "2026-09-01T01:00", "--end", "2026-09-03T07:31"),
    ):  # fmt: skip
        result = run(site, "bill", *period, "--by", by, "--format", "csv")
        assert result.exit_code == 0, result.output
        made.append(result.stdout)
    return made


def words_of(root: Path) -> str:
    """All that the store's data files have, as text, also those that no manifest names."""
    con = connect(256)
    return "".join(
        str(con.execute(f"SELECT * FROM read_parquet('{path}', hive_partitioning = false)").fetchall())
        for path in root.rglob("*.parquet")
    )


ACTIONS: list[Callable[[Path], tuple[str, ...]]] = [
    lambda site: ("prune", *OCTOBER),
    lambda site: ("pseudonymise", "--key", str(site / "key"), *OCTOBER),
]
both = pytest.mark.parametrize("action", ACTIONS, ids=["prune", "pseudonymise"])


@both
def test_names_of_before_are_gone_from_every_file_and_every_amount_is_the_same(
    site: Path, action: Callable[[Path], tuple[str, ...]]
) -> None:
    before = bills(site)
    assert "eve" in words_of(site / "store")
    result = run(site, "store", *action(site))
    assert result.exit_code == 0, result.output
    assert bills(site) == before
    left = words_of(site / "store")
    assert "eve" not in left
    # Of jobs that ended in October the names stay.
    by_user = run(site, "bill", "--month", "2026-10", "--by", "user", "--format", "json").stdout
    assert {line["user"] for line in json.loads(by_user)["lines"]} == {HOSTILE, "bob"}
    assert "-1" in left if "prune" in result.stdout else True
    assert run(site, "store", "undo").exit_code == 1


def test_prune_leaves_no_number_of_a_job_and_pseudonyms_keep_users_apart(site: Path) -> None:
    run(site, "store", "pseudonymise", "--key", str(site / "key"), *OCTOBER)
    by_user = json.loads(run(site, "bill", "--month", "2026-09", "--by", "user", "--format", "json").stdout)["lines"]
    key = bytes(range(32))
    assert {line["user"] for line in by_user} == {
        "bob", anonymous.pseudonym(key, "bob"), anonymous.pseudonym(key, "eve"), anonymous.pseudonym(key, HOSTILE),
    }  # fmt: skip
    run(site, "store", "prune", *OCTOBER)
    jobs = json.loads(run(site, "bill", "--month", "2026-09", "--by", "user,job", "--format", "json").stdout)["lines"]
    assert {(line["user"], line["job"]) for line in jobs} == {("(pruned)", "(pruned)"), ("bob", "5")}


@both
def test_what_is_read_again_is_left_out_and_billed_once(site: Path, action: Callable[[Path], tuple[str, ...]]) -> None:
    before = bills(site)
    run(site, "store", *action(site))
    running = Job(3, start=T0 + 2 * DAY, end=None, submit=T0 + DAY, state="RUNNING", elapsed=60, account="chem")
    faulty = Job(1, submit=T0, start=T0 + HOUR, end=T0, user="eve")
    export = write_export(site / "again.txt", [*JOBS, running, faulty])
    step = ingest_file(site / "store", export, ingest.Source(zone("UTC"), memory_mib=256), T0 + 90 * DAY)
    assert "left out: 7 runs of before 2026-10-01" in step.gaps[-1]
    assert bills(site) == before
    assert "eve" not in words_of(site / "store")
    run(site, "collect-usage", "--input", str(site / "spool"), "--clusters", "c1")
    assert bills(site) == before
    # Taking that ingest back is allowed, and brings no name back.
    assert run(site, "store", "undo").exit_code == 0
    assert bills(site) == before
    assert "eve" not in words_of(site / "store")


@both
def test_killed_at_any_moment_the_store_is_as_before_or_as_after(
    site: Path, action: Callable[[Path], tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bills(site)
    states = set()

    def act() -> None:
        assert run(site, "store", *action(site)).exit_code == 0

    original = site / "store"
    moments = list(moments_of(original, monkeypatch, act))
    done = original.rename(site / "done")
    for moment in [*moments[:: 2 * EACH], moments[-1]]:
        moment.rename(original)
        manifest = store_files.read_manifest(original)
        states.add(bool(manifest.anonymous_before_s))
        assert all((original / name).is_file() for name in manifest.by_name())
        assert bills(site) == before
        assert run(site, "store", *action(site)).exit_code == 0
        assert bills(site) == before
        assert "eve" not in words_of(original)
        original.rename(moment)
    assert states == {False, True}
    done.rename(original)


@both
def test_issued_invoices_stay_valid_and_a_month_without_one_is_refused(
    site: Path, action: Callable[[Path], tuple[str, ...]]
) -> None:
    assert run(site, "invoice", "--month", "2026-09", "--account", "chem").exit_code == 0
    result = run(site, "store", *action(site))
    assert result.exit_code == 1
    assert "phys has no invoice for 2026-09: issue it first" in result.stderr
    issued = run(site, "invoice", "--month", "2026-09", "--format", "json").stdout
    assert run(site, "store", *action(site)).exit_code == 0
    again = run(site, "invoice", "--month", "2026-09", "--format", "json")
    assert again.exit_code == 0, again.stderr
    assert again.stdout == issued
    assert "eve" in issued


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prune",), "needs --before"),
        (("prune", "--before", "2026-09-15"), "is within a month"),
        (("prune", "--before", "2999-01-01"), "in the future"),
        (("prune", "--before", "September"), "is not a day"),
        (("pseudonymise",), "needs --key"),
        (("prune", *OCTOBER, "--key", "key"), "prune takes none"),
        (("undo", *OCTOBER), "undo takes neither"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(site: Path, words: tuple[str, ...], said: str) -> None:
    result = run(site, "store", *words)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_month_with_a_run_that_has_not_ended_or_that_was_not_read_to_its_end_is_open(site: Path) -> None:
    running = Job(8, start=T0 + 9, end=None, submit=T0, state="RUNNING", elapsed=60)
    fill(site / "store", [running])
    result = run(site, "store", "prune", *OCTOBER)
    assert result.exit_code == 1
    assert "1 run of before 2026-10-01 had not ended" in result.stderr
    path = site / "store/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["read_until_s"] = {"sacct:": T0 + 31 * DAY}
    path.write_text(json.dumps(manifest))
    assert "up to two days late" in run(site, "store", "prune", *OCTOBER).stderr.replace("\n", " ")


@both
def test_prices_by_user_are_refused_because_amounts_would_change(
    site: Path, action: Callable[[Path], tuple[str, ...]]
) -> None:
    (site / "rates.toml").write_text(RATES + '[[factors]]\nuser = "eve"\nfactor = 0.5\n', encoding="utf-8")
    before = bills(site)
    result = run(site, "store", *action(site))
    assert result.exit_code == 1
    assert "chem would have another amount in 2026-09" in result.stderr
    assert bills(site) == before
    manifest = store_files.read_manifest(site / "store")
    assert {str(p.relative_to(site / "store")) for p in (site / "store").rglob("*.parquet")} == set(manifest.by_name())


@both
def test_a_dry_run_changes_nothing(site: Path, action: Callable[[Path], tuple[str, ...]]) -> None:
    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (site / "store").rglob("*") if path.is_file()}

    before = state()
    result = run(site, "store", *action(site), "--dry-run")
    assert "would be" in result.stdout
    assert state() == before


def test_what_a_killed_ingest_left_goes_too(site: Path) -> None:
    left = site / "store/.ingest-killed"
    left.mkdir()
    (left / "export").write_text("eve")
    os.utime(left, (1, 1))
    assert run(site, "store", "prune", *OCTOBER).exit_code == 0
    assert not left.exists()


def test_the_report_of_a_month_without_names_is_still_one(site: Path) -> None:
    run(site, "store", "prune", *OCTOBER)
    words = ("--month", "2026-09", "--output", str(site / "r.html"), "--users", str(site / "pages"))
    assert run(site, "report", *words).exit_code == 0
    assert "(pruned)" in (site / "r.html").read_text(encoding="utf-8")
    assert run(site, "invoice", "--month", "2026-09", "--draft").exit_code == 0


def test_an_older_hami_hpc_refuses_a_store_without_names(site: Path) -> None:
    run(site, "store", "prune", *OCTOBER)
    assert json.loads((site / "store/manifest.json").read_text())["version"] == 3


# ---------------------------------------------------------------------------------------------------- the key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused(site: Path, mode: int) -> None:
    (site / "key").chmod(mode)
    result = run(site, "store", *ACTIONS[1](site))
    assert result.exit_code == 1
    assert "others may know it" in result.stderr
    assert "eve" in words_of(site / "store")


def test_a_key_that_is_no_file_of_ones_own_is_refused(site: Path) -> None:
    (site / "link").symlink_to(site / "key")
    os.mkfifo(site / "fifo")
    (site / "folder").mkdir()
    (site / "short").write_bytes(b"x" * 31)
    (site / "long").write_bytes(b"x" * 5000)
    for path in ("link", "fifo", "folder", "short", "long", "absent"):
        name = site / path
        if name.is_file() and not name.is_symlink():
            name.chmod(0o600)
        with pytest.raises(AccountingError, match="key") as raised:
            anonymous.read_key(name)
        assert "\n" not in str(raised.value)
    if os.geteuid() == 0:
        os.chown(site / "key", 12345, 12345)
        with pytest.raises(AccountingError, match="of user 12345"):
            anonymous.read_key(site / "key")


def test_another_key_is_refused_and_the_same_one_goes_on(site: Path) -> None:
    run(site, "store", "pseudonymise", "--key", str(site / "key"), *OCTOBER)
    before = bills(site)
    (site / "other").write_bytes(b"y" * 32)
    (site / "other").chmod(0o600)
    result = run(site, "store", "pseudonymise", "--key", str(site / "other"), "--before", "2026-11-01")
    assert "pseudonyms of another key" in result.stderr
    result = run(site, "store", "pseudonymise", "--key", str(site / "key"), "--before", "2026-11-01")
    assert result.exit_code == 0, result.output
    assert bills(site) == before
    lines = json.loads(run(site, "bill", "--month", "2026-10", "--by", "user", "--format", "json").stdout)["lines"]
    assert {line["user"] for line in lines} == {
        anonymous.pseudonym(bytes(range(32)), name) for name in (HOSTILE, "bob")
    }
