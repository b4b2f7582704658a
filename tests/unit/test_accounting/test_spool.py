# SPDX-License-Identifier: Apache-2.0
"""Usage records are read from files that nobody but root and the caller can write, and from nothing else."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hami_hpc.accounting.sources import usage_records
from hami_hpc.accounting.store import job_records, store_files, usage_table

from .test_efficiency import _record, _spool

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


def _link(path: Path) -> None:
    path.with_suffix(".real").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    path.unlink()
    path.symlink_to(path.with_suffix(".real"))


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _text(**changes: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(_record() | changes), encoding="utf-8")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (_link, "is a link, and not followed"),
    "a link to a device": (_replaced(lambda path: path.symlink_to("/dev/zero")), "is a link"),
    "another name": (lambda path: os.link(path, path.with_suffix(".other")), "has another name"),
    "a pipe": (_replaced(os.mkfifo), "is no regular file"),
    "a socket": (_replaced(_socket), "is no regular file"),
    "writable by all": (lambda path: path.chmod(0o666), "can be written by every user (mode 0666)"),
    "too large": (lambda path: path.write_text(" " * 70000, encoding="utf-8"), "is larger than 65536 bytes"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe"), "codec can't decode"),
    "half a record": (lambda path: path.write_text(path.read_text()[:50], encoding="utf-8"), "is not JSON"),
    "too many levels": (lambda path: path.write_text("[" * 60000, encoding="utf-8"), "too many levels"),
    "half a character": (_text(**{"class": "\ud800"}), "class is not printable text"),
    "two lines": (_text(gpu_uuid="GPU-1\n"), "gpu_uuid is not printable text"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_no_record_of_the_epilog_is_left_where_it_is_and_named(tmp_path: Path, kind: str) -> None:
    spool = _spool(tmp_path / "u", _record(1), _record(2))
    first = sorted(spool.rglob("*.json"))[0]
    spoil, says = SPOILT[kind]
    spoil(first)
    collected = usage_table.collect(tmp_path / "s", spool, "c1", True)
    (fault,) = collected.faults
    assert (collected.added, says in fault, fault.isprintable()) == (1, True, True), fault
    assert [path.name for path in spool.rglob("*.json")] == [first.name]


@needs_root
def test_a_record_or_a_folder_of_another_user_is_not_believed(tmp_path: Path) -> None:
    spool = _spool(tmp_path / "u", _record(1))
    for number, path in enumerate((spool / "theirs", spool / "everybodys")):
        _spool(path, _record(10 + number))
    os.chown(next(spool.glob("*.json")), 65534, -1)
    os.chown(spool / "theirs", 65534, -1)
    (spool / "everybodys").chmod(0o777)
    collected = usage_table.collect(tmp_path / "s", spool, "c1", True)
    assert (collected.added, len(collected.faults)) == (0, 3)
    assert sum("belongs to user 65534, who may have forged it" in fault for fault in collected.faults) == 2
    assert len(list(spool.rglob("*.json"))) == 3


def test_a_linked_folder_is_not_followed_and_the_given_one_may_be_a_link(tmp_path: Path) -> None:
    spool = _spool(tmp_path / "u", _record(1))
    _spool(tmp_path / "elsewhere", _record(2))
    (spool / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "v").symlink_to(spool)
    collected = usage_table.collect(tmp_path / "s", tmp_path / "v", "c1", True)
    assert (collected.added, collected.faults) == (1, (f"{spool}/linked: is a link, and not followed",))
    assert len(list((tmp_path / "elsewhere").glob("*.json"))) == 1


def test_folders_in_folders_do_not_stop_the_others_from_being_read(tmp_path: Path) -> None:
    spool = _spool(tmp_path / "u", _record(1))
    deep = spool / "/".join("a" * 900)
    deep.mkdir(parents=True)
    collected = usage_table.collect(tmp_path / "s", spool, "c1", True)
    assert (collected.added, len(collected.faults)) == (1, 1)
    assert "is 8 folders deep; the folders in it were not read" in collected.faults[0]


def test_a_record_that_took_the_place_of_one_that_was_read_is_not_removed(tmp_path: Path) -> None:
    spool = _spool(tmp_path / "u", _record(1), _record(2), _record(3))
    files, _, _ = usage_records.read_spool(spool)
    newer = files[0].path.with_suffix(".new")
    newer.write_text(json.dumps(_record(9)), encoding="utf-8")
    newer.rename(files[0].path)
    files[1].path.write_text(json.dumps(_record(8)) + " ", encoding="utf-8")
    usage_records.remove(files)
    assert sorted(spool.rglob("*.json")) == sorted(file.path for file in files[:2])
    usage_records.remove(files)  # what is gone is gone


def test_a_name_with_commands_for_the_terminal_is_shown_without_them(tmp_path: Path) -> None:
    spool = _spool(tmp_path / "u", _record(1))
    (spool / "\x1b[2J\n.json").write_text("x", encoding="utf-8")
    (fault,) = usage_table.collect(tmp_path / "s", spool, "c1", False).faults
    assert fault.startswith(f"{spool}/?[2J?.json: is not JSON")


def test_another_version_of_a_known_record_is_stored_before_its_file_is_removed(tmp_path: Path) -> None:
    """With the end of the first, as of a record that was put right on the node: the one read later counts."""
    for number, faults in enumerate((0, 79, 0, 79)):
        spool = _spool(tmp_path / f"u{number}", _record(1) | {"gpu_fault": faults}, _record(2))
        collected = usage_table.collect(tmp_path / "s", spool, "c1", True)
        assert (collected.added, collected.known) == ((2, 0) if not number else (0, 2))
        assert not list(spool.rglob("*.json"))
        records = job_records.from_store(tmp_path / "s", None, 256)
        assert records.con.execute(f"SELECT job_id, gpu_fault FROM {records.used} ORDER BY 1").fetchall() == [
            (1, faults),
            (2, 0),
        ]
    generation = store_files.read_manifest(tmp_path / "s").generation
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "again", _record(2)), "c1", False)
    assert store_files.read_manifest(tmp_path / "s").generation == generation
