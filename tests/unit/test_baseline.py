# SPDX-License-Identifier: Apache-2.0
"""A node's own figures: when one is worse, what is kept of them, and what a damaged file is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node_testbed import names_in

from hami_hpc.core.baseline import (
    FIGURES,
    DamagedRecordsError,
    Record,
    best_of,
    complaint,
    format_records,
    is_worse,
    median_of,
    parse_records,
    text_of,
    worse_figures,
)
from hami_hpc.errors import NodeError
from hami_hpc.node.baseline_file import path_of, read_baseline, write_baseline

BY_KEY = {figure.key: figure for figure in FIGURES}
RECORD = Record("580.1", 1000, {"launch_us": 5.5, "alone_per_s": 1000.0})


@pytest.mark.parametrize(
    ("key", "recorded", "fine", "worse"),
    [
        ("alone_per_s", 1000, 800, 799.9),
        ("both_per_s", 1000, 800, 799.9),
        ("lesser_percent", 50, 40, 39.9),
        ("free_mib", 1000, 5000, 799),
        ("launch_us", 4, 5, 5.01),
        ("context_ms", 100, 125, 125.1),
        ("cap25_error", 1, 3, 3.01),
        ("cap25_error", 0, 2, 2.01),
    ],
)
def test_a_figure_is_worse_from_its_bound_on(key: str, recorded: float, fine: float, worse: float) -> None:
    assert not is_worse(BY_KEY[key], recorded, fine)
    assert is_worse(BY_KEY[key], recorded, worse)


def test_only_figures_that_both_have_are_compared() -> None:
    assert worse_figures({"launch_us": 1.0, "free_mib": 10}, {"launch_us": 9.0, "alone_per_s": 1}) == [
        BY_KEY["launch_us"]
    ]


def test_of_two_checks_the_best_and_of_records_the_median_counts() -> None:
    measured = [{"launch_us": 5.0, "alone_per_s": 10.0, "cap25_error": 1.0}, {"launch_us": 4.0, "alone_per_s": 9.0}]
    assert best_of(measured) == {"launch_us": 4.0, "alone_per_s": 10.0, "cap25_error": 1.0}
    assert median_of([{"launch_us": value} for value in (9.0, 1.0, 2.0)]) == {"launch_us": 2.0}
    assert median_of([{"launch_us": value} for value in (5.0, 9.0, 1.0, 2.0)]) == {"launch_us": 5.0}
    assert median_of([{"launch_us": value} for value in (5.0, 9.0, 1.0, 2.0, 4.0)]) == {"launch_us": 4.0}


def test_figures_have_their_units_and_complaints_both_values() -> None:
    texts = [
        text_of(BY_KEY[key], value) for key, value in (("free_mib", 143156), ("launch_us", 18.52), ("launch_us", 4))
    ]
    assert texts == ["143,156 MiB", "18.5 us", "4.00 us"]
    assert complaint(BY_KEY["launch_us"], 4, 9) == (
        "a kernel, launched and waited for: 9.00 us, recorded 4.00 us (more than 125 % of it)"
    )


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert parse_records(format_records({"GPU-1": RECORD})) == {"GPU-1": RECORD}
    assert read_baseline(str(tmp_path)) == {}
    write_baseline(str(tmp_path / "state"), {"GPU-1": RECORD})
    assert read_baseline(str(tmp_path / "state")) == {"GPU-1": RECORD}
    assert names_in(tmp_path / "state") == ["baseline.json"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 2, "gpus": {}}', '{"version": 1}', '{"version": 1, "gpus": {"G": 1}}',
     "[" * 9999,
     '{"version": 1, "gpus": {"G": {"driver": "5", "recorded_unix_s": 1, "figures": {"launch_us": NaN}}}}',
     '{"version": 1, "gpus": {"G": {"driver": "5", "recorded_unix_s": 1, "figures": {"launch_us": -1}}}}',
     '{"version": 1, "gpus": {"G": {"driver": "5", "recorded_unix_s": 1e999, "figures": {}}}}'],
)  # fmt: skip
def test_any_other_text_is_damaged(text: str) -> None:
    with pytest.raises(DamagedRecordsError):
        parse_records(text)


def test_a_disk_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    state = str(tmp_path)
    write_baseline(state, {"GPU-1": RECORD})
    Path(f"{path_of(state)}.{os.getpid()}").mkdir()  # in the temporary file's place
    with pytest.raises(NodeError, match=r"cannot be written .* what was there is unchanged"):
        write_baseline(state, {})
    assert read_baseline(state) == {"GPU-1": RECORD}


def test_a_file_that_is_not_roots_is_not_believed(tmp_path: Path) -> None:
    state = str(tmp_path)
    write_baseline(state, {"GPU-1": RECORD})
    os.chown(path_of(state), 65534, -1)
    with pytest.raises(NodeError, match="is no file of root"):
        read_baseline(state)
    Path(path_of(state)).unlink()
    Path(path_of(state)).symlink_to("/etc/hostname")
    with pytest.raises(NodeError, match="cannot be read"):
        read_baseline(state)
    Path(path_of(state)).unlink()
    Path(path_of(state)).write_bytes(b"\xff")
    with pytest.raises(DamagedRecordsError):
        read_baseline(state)
