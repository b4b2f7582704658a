# SPDX-License-Identifier: Apache-2.0
"""The doctor reads a plugin's Slurm release itself: a node has no binutils."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from doctor_testbed import build_library

from hami_hpc.doctor.build_checks import plugin_version
from hami_hpc.errors import NodeError


def test_it_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_library(tmp_path / "x.so", 0x16050800)
    monkeypatch.setenv("PATH", "/nowhere")
    assert plugin_version(tmp_path / "x.so") == 0x16050800


def test_a_library_that_is_cut_off_anywhere_is_named(tmp_path: Path) -> None:
    build_library(tmp_path / "x.so", 0x16050800)
    whole = (tmp_path / "x.so").read_bytes()
    half = tmp_path / "half.so"
    for length in (0, 4, 63, 64, 500, len(whole) // 2, len(whole) - 1):
        half.write_bytes(whole[:length])
        with pytest.raises(NodeError, match=r"half\.so cannot be read as an ELF file"):
            plugin_version(half)


def test_bytes_that_are_wrong_end_in_one_line(tmp_path: Path) -> None:
    """Every byte of the headers in turn, at its largest: a value or a NodeError, nothing else."""
    build_library(tmp_path / "x.so", 0x16050800)
    whole = (tmp_path / "x.so").read_bytes()
    sections = int.from_bytes(whole[40:48], "little")
    damaged = tmp_path / "damaged.so"
    for place in (*range(64), *range(sections, len(whole), 7)):
        damaged.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with contextlib.suppress(NodeError):
            assert 0 <= plugin_version(damaged) < 1 << 32


def test_a_file_that_is_gone_or_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="No such file"):
        plugin_version(tmp_path / "none.so")
    with pytest.raises(NodeError, match="Is a directory"):
        plugin_version(tmp_path)
