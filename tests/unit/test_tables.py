# SPDX-License-Identifier: Apache-2.0
"""Tables and durations as people see them."""

from __future__ import annotations

import pytest

from hami_hpc.core.duration import duration
from hami_hpc.core.tables import columns_of, cut, table


def test_columns_are_as_wide_as_their_widest_cell_and_two_blanks_apart() -> None:
    assert table(("job", "MiB", "class"), [(7, 8192, "std"), (1000, 1, "lc")], right=(1,)) == (
        "job    MiB  class\n7     8192  std\n1000     1  lc"
    )
    assert table(("a", "long head"), []) == "a  long head"
    assert table(("a", "b"), [("xx", "")]) == "a   b\nxx", "no blanks at the end"
    with pytest.raises((ValueError, IndexError)):
        table(("a", "b"), [("only one",)])
    with pytest.raises(ValueError, match="zip"):
        table(("a",), [("one", "more")])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (1, "00:00:01"),
        (59.4, "00:00:59"),
        (59.6, "00:01:00"),
        (60, "00:01:00"),
        (3599, "00:59:59"),
        (3600, "01:00:00"),
        (86399, "23:59:59"),
        (86400, "1-00:00:00"),
        (93784, "1-02:03:04"),
        (10 * 86400 + 3 * 60, "10-00:03:00"),
    ],
)
def test_durations_are_written_as_slurm_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_columns_stay_aligned_with_letters_of_two_columns_and_of_none() -> None:
    text = table(("USER", "N"), [("山田", 1), ("e\u0301va", 2), ("x", 3)])
    assert text.split("\n") == ["USER  N", "山田  1", "e\u0301va   2", "x     3"]
    assert table(("N",), [("山",), ("abc",)], right=(0,)).split("\n") == ["  N", " 山", "abc"]
    assert [columns_of(text) for text in ("", "abc", "山田", "e\u0301", "\uff71", "\uff21")] == [0, 3, 4, 1, 1, 2]


def test_a_cut_text_fits_and_shows_that_it_was_cut() -> None:
    assert [cut("abcd", columns) for columns in (5, 4, 3, 1)] == ["abcd", "abcd", "ab~", "~"]
    assert [cut("山田太", columns) for columns in (6, 5, 4, 2)] == ["山田太", "山田~", "山~", "~"]
