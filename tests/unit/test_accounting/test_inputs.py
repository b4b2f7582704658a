# SPDX-License-Identifier: Apache-2.0
"""What --input is given is read as what it is, or refused in one line; and nobody writes lines of others' jobs."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources import input_files, sacct
from hami_hpc.accounting.sources.sacct_json import open_input
from hami_hpc.accounting.store import export_reader
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import Period, zone
from hami_hpc.cli import main

from .samples import HOUR, Job, export_text

RECORDS = Path(__file__).parent / "records"
T0 = 1_788_220_800  # 2026-09-01T00:00:00Z
SITE = 'version = 1\n[gpu_models.h200]\ntotal_mib = 143156\n[partitions.gpu]\ngpu_models = ["h200"]\n'
JOBS = [Job(1, T0, T0, T0 + HOUR), Job(2, T0, T0, T0 + 2 * HOUR, account="chem", user="zoë")]
TEXT = export_text(JOBS)
# What users write into a job's name, comment or directory: the separators of this and other formats, ends of lines of
# every kind, quotes, other scripts, and commands of terminals.
HOSTILE = ["|", "\x1f", "\n", "\r", "\r\n", "\0", '"', "'", "\\", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\x1b[2J",
           "日本", "\u202eabc", "';--", "{", "\ud800", "\ufeff", "JobIDRaw"]  # fmt: skip


def packed(content: bytes) -> bytes:
    """A gzip file without a time: test names hold some of these, and all workers must have the same names."""
    return gzip.compress(content, mtime=0)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(tmp_path / "hami-hpc.toml"))
    return tmp_path


def _bill(*words: str | Path, given: bytes | None = None) -> Result:
    call = ["bill", "--month", "2026-09", "--format", "csv", *map(str, words)]
    return CliRunner().invoke(main, call, input=given)


def _lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[1:]


EXPECTED = ["chem,zoë,1,2.0000", "phys,ann,1,1.0000"]
FORMS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: TEXT.encode(),
    "BOM": lambda: b"\xef\xbb\xbf" + TEXT.encode(),
    "Windows": lambda: TEXT.replace("\n", "\r\n").encode(),
    "BOM and Windows": lambda: b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode(),
    "UTF-16": lambda: TEXT.encode("utf-16"),
    "UTF-16 of the other order": lambda: b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "UTF-16 from Windows": lambda: TEXT.replace("\n", "\r\n").encode("utf-16"),
    "gzip": lambda: packed(TEXT.encode()),
    "gzip of two members": lambda: packed(TEXT.encode()[:99]) + packed(TEXT.encode()[99:]),
    "gzip with padding": lambda: packed(TEXT.encode()) + bytes(512),
    "gzip of UTF-16": lambda: packed(TEXT.encode("utf-16")),
    "one line end of Windows": lambda: TEXT.replace("\n", "\r\n", 2).encode(),
    "trailing empty lines": lambda: TEXT.encode() + b"\n\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_export_gives_the_same_bill(site: Path, form: str) -> None:
    (site / "x").write_bytes(FORMS[form]())
    assert _lines(_bill("--input", site / "x")) == EXPECTED
    assert _lines(_bill("--input", "-", given=FORMS[form]())) == EXPECTED


@pytest.mark.parametrize("form", ["gzip", "BOM", "UTF-16"])
def test_json_too_is_read_packed_or_recoded(site: Path, form: str) -> None:
    week = (RECORDS / "24.11" / "week.json").read_text(encoding="utf-8")
    data = {
        "gzip": packed(week.encode()),
        "BOM": b"\xef\xbb\xbf" + week.encode(),
        "UTF-16": week.encode("utf-16"),
    }
    (site / "x").write_bytes(data[form])
    plain = _bill("--input", RECORDS / "24.11" / "week.json")
    assert (plain.exit_code, _bill("--input", site / "x").stdout) == (0, plain.stdout)


def test_a_pipe_is_read_like_a_file(site: Path) -> None:
    os.mkfifo(site / "pipe")
    writer = threading.Thread(target=lambda: (site / "pipe").write_bytes(TEXT.encode()))
    writer.start()
    assert _lines(_bill("--input", site / "pipe")) == EXPECTED
    writer.join()


def test_standard_input_is_read_by_a_real_process(site: Path) -> None:
    words = [sys.executable, "-m", "hami_hpc.cli", "bill", "--month", "2026-09", "--format", "csv", "--input", "-"]
    done = subprocess.run(words, input=TEXT.encode(), capture_output=True, check=True, timeout=60)
    assert done.stdout.decode().splitlines()[1:] == EXPECTED


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty: not even a header line"),
        (b"\n \n", "is empty: not even a header line"),
        (packed(b""), "is empty: not even a header line"),
        (packed(TEXT.encode())[:-9], "is half a gzip file"),
        (packed(TEXT.encode())[:20], "is half a gzip file"),
        (packed(TEXT.encode()) + b"rest", "is a damaged gzip file"),
        (packed(packed(TEXT.encode())), "is packed by gzip twice"),
        (b"\xfd7zXZ\x00rest", "is packed by xz, and no export; xz -dc FILE | hami-hpc ... --input -"),
        (b"\x28\xb5\x2f\xfdrest", "is packed by zstd"),
        (b"BZh91AY", "is packed by bzip2"),
        (b"PK\x03\x04rest", "is a zip archive or an office document"),
        (b"PAR1rest", "is a Parquet file"),
        (TEXT.encode("utf-32"), "is text in UTF-32"),
        (TEXT.encode("utf-16")[:-1], "begins as UTF-16 and is not"),
        (TEXT.encode("utf-16-le"), "has NUL characters"),
        (TEXT.replace("\n", "\r").encode(), "has carriage returns that end no line"),
        (TEXT.replace("ann", "a\rb").encode(), "has carriage returns that end no line"),
        (TEXT.encode() + b"\r", "has carriage returns that end no line"),
        (TEXT.encode() * 2, "has a second header line"),
        (TEXT.replace("|", ",").encode(), "has fields that are separated by another character than |"),
        (TEXT.replace("|", "\t").encode(), "has fields that are separated by another character than |"),
        (b'{"jobs": [' + b"[" * 100000, "is JSON of too many levels"),
        (b'{"jobs": []}{"jobs": []}', "is not a complete JSON document"),
    ],
)
@pytest.mark.parametrize("command", ["bill", "ingest"])
def test_what_is_no_export_is_refused_in_one_line(site: Path, content: bytes, says: str, command: str) -> None:
    (site / "x").write_bytes(content)
    words = ["bill", "--month", "2026-09"] if command == "bill" else ["ingest", "--store", str(site / "s")]
    result = CliRunner().invoke(main, [*words, "--input", str(site / "x")])
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1), result.output
    assert f"{site / 'x'} {says}" in result.output
    assert not (site / "s" / "manifest.json").exists()
    assert not list((site / "s").glob(".ingest-*"))


@pytest.mark.parametrize(("given", "says"), [("/", "is a directory"), ("/dev/zero", "is a device or socket")])
def test_what_is_no_file_is_not_read(site: Path, given: str, says: str) -> None:
    result = _bill("--input", given)
    assert (result.exit_code, says in result.output) == (1, True)


def test_a_packed_file_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "MOST_BYTES", 1 << 30)
    (tmp_path / "x").write_bytes(packed(TEXT.encode()) + packed(b"\n" * (3 << 20)) * 400)
    with pytest.raises(AccountingError, match="has more than 1 GiB of text"):
        open_input(tmp_path / "x", tmp_path)


ENDLESS: list[tuple[bytes, str]] = [
    (b"\0", "has NUL characters: no text in UTF-8"),
    (b"y\n", "has no header line with JobIDRaw in its first MiB"),
    (b"\xfd7zXZ\x00", "is packed by xz, and no export"),
    (b"\x1f\x8b", "is a damaged gzip file"),
    (packed(b"\0" * 4096), "has NUL characters: no text in UTF-8"),
    (packed(b"y\n" * 4096), "has no header line with JobIDRaw in its first MiB"),
    (b"\xff\xfe\0\0", "is text in UTF-32"),
]


@pytest.mark.parametrize(("repeated", "says"), ENDLESS)
@pytest.mark.parametrize("by", ["standard input", "a pipe"])
def test_what_never_ends_is_refused_by_how_it_begins(
    site: Path, monkeypatch: pytest.MonkeyPatch, repeated: bytes, says: str, by: str
) -> None:
    """A writer that never stops, and is killed when nobody reads: not a GiB of it reaches the disk."""
    monkeypatch.setattr(input_files, "MOST_BYTES", 64 << 20)
    os.mkfifo(site / "pipe")
    (site / "scratch").mkdir()
    program = f"import sys\nwhile True: sys.stdout.buffer.write({repeated!r} * 256)"
    given = input_files.STANDARD_INPUT if by == "standard input" else site / "pipe"
    name = re.escape(input_files.shown(given))
    with (
        (site / "pipe").open("r+b", buffering=0) as pipe,
        subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=subprocess.DEVNULL) as writer,
        (site / "pipe").open("rb") as reader,
    ):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=reader))
        try:
            with pytest.raises(AccountingError, match=f"{name} {says}"):
                input_files.prepare(given, site / "scratch")
        finally:
            writer.kill()


@pytest.mark.parametrize(
    "column", ["JobName", "Comment", "AdminComment", "WorkDir", "SubmitLine", "Reason", "FromTheFuture"]
)
@pytest.mark.parametrize("delimiter", ["|", sacct.DELIMITER])
def test_an_export_with_a_column_that_users_write_is_refused(tmp_path: Path, column: str, delimiter: str) -> None:
    """A job's name once was a whole line: 24 GPU-hours of another account, with the delimiter and newlines in it."""
    forged = export_text([Job(99, T0, T0, T0 + 24 * HOUR, account="victim")]).splitlines()[1]
    header, first, *_ = TEXT.splitlines()
    text = f"{header}|{column}\n{first}|x\n{forged}|y\n".replace("|", delimiter)
    (tmp_path / "x").write_text(text, encoding="utf-8")
    with pytest.raises(AccountingError, match=f"has the column {column}, in which users may write") as raised:
        open_input(tmp_path / "x", tmp_path)
    assert "sacct -a -D --json" in str(raised.value)


def test_columns_that_only_slurm_writes_may_be_there_too(site: Path) -> None:
    text = "".join(f"{line}|{more}\n" for line, more in zip(TEXT.splitlines(), ("ExitCode", "0:0", "0:0"), strict=True))
    (site / "x").write_text(text, encoding="utf-8")
    assert _lines(_bill("--input", site / "x")) == EXPECTED


@pytest.mark.parametrize("text", HOSTILE)
def test_in_json_no_text_of_a_user_makes_changes_or_hides_a_record(tmp_path: Path, text: str) -> None:
    """The text goes into everything that a user names, and into fields that are read, as far as Slurm lets it."""
    document = json.loads((RECORDS / "24.11" / "jobs.json").read_text(encoding="utf-8"))
    before = _records(tmp_path / "a", json.dumps(document).encode())
    forged = text.join(export_text([Job(99, T0, T0, T0 + 24 * HOUR, account="victim")]).splitlines()[1].split("|"))
    for job in document["jobs"]:
        for field in ("name", "comment", "working_directory", "submit_line", "constraints"):
            job[field] = f"MARK{text}{forged}{text}"
    for ascii_only in (True, False):
        data = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert _records(tmp_path / f"b{ascii_only}", data) == before
    # A name in another encoding than UTF-8, as json-c passes it on.
    assert _records(tmp_path / "c", data.replace(b"MARK", b"\xe9\xff")) == before


def _records(folder: Path, data: bytes) -> tuple[object, ...]:
    folder.mkdir()
    (folder / "x").write_bytes(data)
    con = connect(256)
    counts = export_reader.load(con, open_input(folder / "x", folder), zone("UTC"), "", T0, folder)
    columns = ", ".join(name for name in export_reader.JOB_COLUMNS if name != "features")
    rows = con.execute(f"SELECT {columns} FROM records ORDER BY ALL").fetchall()
    con.close()
    return counts, rows


@pytest.mark.parametrize("text", [text for text in HOSTILE if text not in ("\ud800", "\0", "\r", "\r\n", "JobIDRaw")])
def test_in_lines_no_constraint_makes_changes_or_hides_a_record_of_another(site: Path, text: str) -> None:
    """slurmctld accepts only names of its features there, with | between them; other text would be harmless."""
    for delimiter in ("|", sacct.DELIMITER):
        header, first, second = TEXT.replace("|", delimiter).splitlines()
        cells = first.split(delimiter)
        cells[-1] = f"a{text}b"
        (site / "x").write_bytes("\n".join([header, delimiter.join(cells), second, ""]).encode())
        result = _bill("--input", site / "x")
        lines = _lines(result)
        assert EXPECTED[0] in lines
        assert lines == EXPECTED or "left out: 1 line: the number of fields differs" in result.stderr
        assert "\x1b" not in result.output


def test_several_files_are_one_bill_and_each_run_counts_once(site: Path) -> None:
    (site / "a").write_text(export_text(JOBS[:1]), encoding="utf-8")
    columns = tuple(reversed(sacct.ASKED))
    (site / "b").write_text(export_text([*JOBS, Job(3, T0, tres="gres/gpu")], columns), encoding="utf-8")
    result = _bill("--input", site / "a", "--input", site / "b")
    assert _lines(result) == EXPECTED
    assert "left out: 1 line: AllocTRES is malformed (job 3)" in result.stderr
    store = ("--store", str(site / "s"))
    words = ["ingest", "--input", str(site / "a"), "--input", str(site / "b"), *store]
    ingested = CliRunner().invoke(main, words)
    assert ingested.stdout.count("1 new run") == 2
    assert _lines(_bill(*store)) == EXPECTED


def test_of_several_files_none_is_stored_when_one_is_refused(site: Path) -> None:
    (site / "a").write_text(TEXT, encoding="utf-8")
    (site / "b").write_text("", encoding="utf-8")
    words = ["ingest", "--input", str(site / "a"), "--input", str(site / "b"), "--store", str(site / "s")]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "is empty" in result.output) == (1, True)
    assert not (site / "s" / "manifest.json").exists()


def test_files_of_which_only_some_name_clusters_do_not_become_two_runs(site: Path) -> None:
    (site / "a").write_text(TEXT, encoding="utf-8")
    columns = tuple(name for name in sacct.ASKED if name != "Cluster")
    (site / "b").write_text(export_text(JOBS, columns), encoding="utf-8")
    words = ("--input", site / "a", "--input", site / "b")
    result = _bill(*words)
    assert (result.exit_code, "has no column Cluster, and others have" in result.output) == (1, True)
    assert _lines(_bill(*words, "--clusters", "c1")) == EXPECTED


def test_missing_columns_that_change_amounts_are_named(site: Path) -> None:
    columns = tuple(name for name in sacct.ASKED if name not in ("Suspended", "QOS", "UID", "Eligible"))
    (site / "x").write_text(export_text(JOBS, columns), encoding="utf-8")
    said = f"{site / 'x'} lacks columns that amounts depend on: Suspended (time for which"
    assert said in _bill("--input", site / "x").stderr
    shown = CliRunner().invoke(main, ["bill", "--month", "2026-09", "--input", str(site / "x")]).stdout
    assert said in shown
    assert "QOS (prices of a QoS are not applied)" in shown
    assert "UID" not in shown
    ingested = CliRunner().invoke(main, ["ingest", "--input", str(site / "x"), "--store", str(site / "s")])
    assert said in ingested.stderr
    (site / "x").write_text(TEXT, encoding="utf-8")
    assert "lacks columns" not in _bill("--input", site / "x").output


def test_elapsed_in_either_form_is_no_gap(tmp_path: Path) -> None:
    text = TEXT.replace("ElapsedRaw", "Elapsed")
    (tmp_path / "x").write_text(text, encoding="utf-8")
    assert sacct.open_export(tmp_path / "x").gaps("x") == []


def test_the_export_that_errors_suggest_is_one_that_is_read() -> None:
    """Its columns are safe and complete, and its delimiter is ours, spelled so that bash gives it to sacct."""
    lines = sacct.EXPORT.partition(", or ")[2]
    assert lines.partition(" -o ")[2].split(",") == list(sacct.ASKED)
    assert {name.lower() for name in sacct.ASKED} <= sacct.SAFE
    printed = subprocess.run(
        ["bash", "-c", f"printf %s {lines.partition('--delimiter=')[2].split()[0]}"], capture_output=True, check=True
    )
    assert printed.stdout.decode() == sacct.DELIMITER


def test_a_carriage_return_that_a_user_wrote_does_not_stop_the_ingest(tmp_path: Path) -> None:
    """In the account of a job, where associations are not enforced: slurmctld takes any text there."""
    text = export_text([*JOBS, Job(3, T0, T0, T0 + HOUR, account="a\rb\r")]).replace("|", sacct.DELIMITER)
    (tmp_path / "lines").write_bytes(text.encode())
    script = tmp_path / "sacct"
    script.write_text(f"#!/bin/sh\nexec cat {tmp_path}/lines\n", encoding="utf-8")
    script.chmod(0o755)
    export = sacct.fetch(Period(T0, T0 + 1), tmp_path / "out", sacct=str(script))
    con = connect(256)
    export_reader.load(con, export, zone("UTC"), "", T0, tmp_path)
    rows = con.execute("SELECT job_id, account FROM records ORDER BY job_id").fetchall()
    assert rows == [(1, "phys"), (2, "chem"), (3, "a?b?")]


def test_a_line_without_a_job_number_is_named_and_the_others_are_billed(site: Path) -> None:
    (site / "x").write_text(TEXT + export_text([Job(3, T0, T0)]).splitlines()[1][1:] + "\n", encoding="utf-8")
    store = ("--store", str(site / "s"))
    CliRunner().invoke(main, ["ingest", "--input", str(site / "x"), *store], catch_exceptions=False)
    for words in (("--input", site / "x"), store):
        result = _bill(*words)
        assert _lines(result) == EXPECTED
        assert "left out: 1 line: JobIDRaw is not the number of a job (job without a number)" in result.stderr


def test_a_run_without_a_state_is_charged_and_reported(site: Path) -> None:
    """Terms with unbilled_states must not make it free."""
    (site / "rates.toml").write_text(
        'version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 2\n[[terms]]\nunbilled_states = ["NODE_FAIL"]\n'
    )
    (site / "x").write_text(export_text([Job(1, T0, T0, T0 + HOUR, state="")]), encoding="utf-8")
    store = ("--store", str(site / "s"))
    CliRunner().invoke(main, ["ingest", "--input", str(site / "x"), *store], catch_exceptions=False)
    assert _lines(_bill(*store))[-1].endswith(",2.00")
    report = ["report", "--month", "2026-09", "--output", str(site / "r.html"), *store]
    assert CliRunner().invoke(main, report, catch_exceptions=False).exit_code == 0
