# SPDX-License-Identifier: Apache-2.0
"""Tables and durations as people see them."""

from __future__ import annotations

import pytest

from hami_hpc.core.duration import duration
from hami_hpc.core.tables import table


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
