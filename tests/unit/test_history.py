# SPDX-License-Identifier: Apache-2.0
"""core/history.py and history_chart.py: the two forms of a job's time line, and how it is drawn."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.contract import constants as c
from hami_hpc.core import history_chart
from hami_hpc.core.history import (
    FILE_SIZE,
    MINUTE_NS,
    ROWS,
    Head,
    Minute,
    from_text,
    minute_of,
    pack_head,
    pack_minute,
    parse_file,
    parse_head,
    place_of,
    to_text,
)

HEAD = Head(7, 1001, 2, 10**18, 5 * MINUTE_NS, 286312)
MINUTES = st.lists(
    st.builds(Minute, st.integers(0, 100_000), st.integers(0, 1 << 20), st.integers(0, 100)),
    max_size=60,
    unique_by=lambda one: one.minute,
).map(sorted)


def file_of(minutes: list[Minute]) -> bytes:
    data = bytearray(pack_head(HEAD).ljust(FILE_SIZE, b"\0"))
    for one in minutes:
        data[place_of(one.minute) : place_of(one.minute) + c.HISTORY_MINUTE_SIZE] = pack_minute(one)
    return bytes(data)


def test_the_head_is_read_as_it_was_written() -> None:
    assert parse_head(pack_head(HEAD)) == HEAD
    assert len(pack_head(HEAD)) == c.HISTORY_SIZE
    assert minute_of(HEAD, 7 * MINUTE_NS - 1) == 1
    assert minute_of(HEAD, 5 * MINUTE_NS - 1) == -1


@pytest.mark.parametrize("data", [b"", b"\0" * 64, pack_head(HEAD)[:63], b"x" + pack_head(HEAD)[1:]])
def test_other_content_is_no_head(data: bytes) -> None:
    assert parse_head(data) is None


def test_a_file_of_another_size_is_not_read() -> None:
    offset, width, _kind = c.HISTORY_FIELDS["record_size"]
    data = bytearray(pack_head(HEAD))
    data[offset : offset + width] = (FILE_SIZE + 16).to_bytes(width, "little")
    assert parse_head(bytes(data)) is None


def test_the_last_24_hours_of_a_longer_job_are_kept() -> None:
    minutes = [Minute(number, number, number % 101) for number in range(3 * ROWS + 17)]
    assert parse_file(file_of(minutes)) == tuple(minutes[-ROWS:])


def test_what_is_older_than_24_hours_goes_when_the_agent_was_away() -> None:
    minutes = [Minute(3, 1, 1), Minute(ROWS - 1, 2, 2), Minute(ROWS + 3 + 10, 3, 3)]
    assert parse_file(file_of(minutes)) == tuple(minutes[1:])


def test_a_row_lies_within_one_page() -> None:
    assert all(place_of(minute) // 4096 == (place_of(minute) + 15) // 4096 for minute in range(ROWS))


def test_numbers_too_large_for_a_row_are_the_largest() -> None:
    (one,) = parse_file(file_of([Minute(0, 1 << 40, 5000)]))
    assert one == Minute(0, 0xFFFFFFFF, 100)


@given(st.binary(max_size=FILE_SIZE + 100))
def test_any_content_of_a_file_is_read_without_failing(data: bytes) -> None:
    minutes = parse_file(data)
    assert list(minutes) == sorted(minutes)
    assert all(0 <= one.percent <= 100 for one in minutes)


@given(MINUTES)
def test_the_text_says_the_same_as_the_minutes(minutes: list[Minute]) -> None:
    assert from_text(to_text(minutes)) == tuple(minutes)
    assert parse_file(file_of(minutes)) == tuple(one for one in minutes if one.minute > minutes[-1].minute - ROWS)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("", ()),
        ("0:512,3", (Minute(0, 512, 3),)),
        (
            "0:512,3 8192,97x2 70:8192,40",
            (Minute(0, 512, 3), Minute(1, 8192, 97), Minute(2, 8192, 97), Minute(70, 8192, 40)),
        ),
    ],
)
def test_the_text_of_the_contracts_example(text: str, minutes: tuple[Minute, ...]) -> None:
    assert from_text(text) == minutes
    assert to_text(minutes) == text


NONE_OF_OURS = """x;1,2,3;5;0:1;0:1,101;0:-1,2;0:1,2x0;0:1,2x1441;5:1,2 3:1,2;0:1,2x1440 1,1;0:\u0661,2;99999999999:1,2;
0:1,2x99999999999;:1,2;0:1,2x"""


@pytest.mark.parametrize("text", NONE_OF_OURS.split(";"))
def test_a_text_that_is_none_of_ours_is_refused(text: str) -> None:
    assert from_text(text) is None


@given(st.text(max_size=200))
def test_any_text_is_read_without_failing(text: str) -> None:
    assert from_text(text) is None or from_text(to_text(from_text(text) or ())) == from_text(text)


def test_the_longest_text_fits_a_record() -> None:
    """Accounting reads records of 64 KiB at most; a record without it has some 1.5 KiB."""
    worst = [Minute(MOST + 2 * number, 10_000_000 + number, 100) for number in range(ROWS)]
    assert len(json.dumps(to_text(worst))) < 40_000
    usual = [Minute(number, 10_000_000 + number, 100) for number in range(ROWS)]
    assert len(to_text(usual)) < 20_000


MOST = 10_000_000


def chart(minutes: list[Minute], mem_mib: int = 1000, gpus: int = 1, columns: int = 80) -> list[str]:
    return history_chart.chart(minutes, mem_mib, gpus, columns, history_chart.ASCII)


def test_the_chart_has_a_row_for_memory_and_one_for_time() -> None:
    minutes = [Minute(0, 0, 0), Minute(1, 1, 1), Minute(2, 500, 50), Minute(4, 999, 99), Minute(5, 1000, 100)]
    assert chart(minutes) == [
        "  memory, of 1,000 MiB: 1,000 MiB at most",
        "  |_.+ @@|",
        "  time of its GPU: 50.0 % on average",
        "  |_.+ @@|",
        "   0:00 0:06",
        "  one column: 1 minute; below it hours:minutes since the start",
    ]


def test_a_long_job_is_drawn_in_the_terminals_width() -> None:
    minutes = [Minute(2000 + number, 100 if number == 7 else 10, number % 2 * 100) for number in range(ROWS)]
    for columns in (1, 20, 37, 80, 200, 5000):
        lines = chart(minutes, columns=columns, gpus=4)
        assert all(len(line) <= max(20, columns) for line in lines[1:4:2]), columns
    lines = chart(minutes, columns=80)
    assert lines[1].strip("| ").startswith("."), "the most of each column"
    assert set(lines[3].strip("| ")) <= {"+", "="}, "half of the time in each"
    assert lines[4].split() == ["33:20", "57:20"]
    assert "19 minutes" in lines[5]


def test_without_a_limit_the_largest_number_is_the_top() -> None:
    lines = chart([Minute(0, 25, 0), Minute(1, 100, 0)], mem_mib=0, gpus=8)
    assert lines[:2] == ["  memory: 100 MiB at most", "  |-@|"]
    assert lines[2].startswith("  time of its 8 GPUs: 0.0 %")
    assert lines[3] == "  |__|"


def test_a_job_that_held_nothing_is_drawn() -> None:
    assert chart([Minute(0, 0, 0)], mem_mib=0)[1] == "  |_|"
