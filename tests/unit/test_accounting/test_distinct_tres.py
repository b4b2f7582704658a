# SPDX-License-Identifier: Apache-2.0
"""Texts of one kind are parsed once, and each gets what the parser says of it alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.store import export_reader

_NUMBERS = st.one_of(
    st.integers(0, 12).map(str),
    st.integers(0, 10**12).map(str),
    st.sampled_from(["01", "1G", "1.5", "8192M", "", "x", "1x", "1 ", "1K9", "1.5.6", "1KK"]),
)
_NAMES = st.sampled_from(
    ["gres/vgpu_mem", "gres/shard", "gres/vgpu_cores", "gres/vgpu", "gres/vgpu:std", "gres/vgpu:be", "gres/gpu",
     "gres/gpu:shard", "gres/gpu:mem", "gres/shard:h200", "xgres/shard", "gres/vgpu_memory", "mem", "cpu", "billing",
     "energy", "license/gres/shard", "license/a", "node", "xbilling"]
)  # fmt: skip
_TOKENS = st.lists(st.builds("{}={}".format, _NAMES, _NUMBERS), max_size=6, unique_by=lambda token: token)
_SLICES = st.builds(
    "billing={0},gres/shard={1},gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores={2},gres/vgpu_mem={3},mem={0}G".format,
    st.integers(0, 99), st.integers(1, 2000), st.integers(1, 100), st.integers(1, 10**11),
)  # fmt: skip
_SHARDS = st.builds(
    "cpu=1,gres/gpu:shard={1},gres/gpu={1},gres/shard={0}".format, st.integers(1, 99), st.integers(1, 9)
)


def _read(folder: Path, texts: list[str]) -> duckdb.DuckDBPyConnection:
    pq.write_table(pa.table({"AllocTRES": pa.array(texts, pa.string())}), folder / "staged.parquet")
    con = duckdb.connect()
    export_reader._parse_tres(con, folder / "staged.parquet")
    return con


def _parsed(folder: Path, texts: list[str]) -> dict[str, tuple[str, str]]:
    con = _read(folder, texts)
    return {row[0]: row[1:] for row in con.execute("SELECT tres, held, fault FROM parsed").fetchall()}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.one_of(_TOKENS.map(",".join), _SLICES, _SHARDS), min_size=1, max_size=30))
def test_each_text_holds_what_the_parser_says_of_it_alone(tmp_path: Path, texts: list[str]) -> None:
    assert _parsed(tmp_path, texts) == {text: export_reader._parsed(text) for text in texts}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.one_of(_TOKENS.map(",".join), _SLICES), min_size=1, max_size=30))
def test_each_text_has_the_cpus_memory_and_licences_that_it_has_alone(tmp_path: Path, texts: list[str]) -> None:
    con = _read(tmp_path, texts)
    rows = con.execute("SELECT tres, coalesce(cpus, 0), coalesce(mem_mib, 0), licenses FROM parsed WHERE fault = ''")
    assert {row[0]: row[1:] for row in rows.fetchall()} == {
        text: export_reader.beside_gpus(con, text) for text in texts if not export_reader._parsed(text)[1]
    }


@pytest.mark.parametrize(
    "text",
    [
        "gres/shard=01",
        "gres/vgpu=1,gres/vgpu_cores=5,gres/vgpu_mem=001",
        "gres/shard=0",
        "gres/shard=00000000000000001",
        "cpu=1,gres/shard=000001",
    ],
)
def test_zeros_before_a_number_change_nothing(tmp_path: Path, text: str) -> None:
    assert _parsed(tmp_path, [text]) == {text: export_reader._parsed(text)}


@pytest.mark.parametrize("number", ["12K9", "1.5.6", "1KK", "1K.5", "1."])
@pytest.mark.parametrize("name", ["billing", "cpu", "energy", "mem", "node"])
def test_a_number_with_more_behind_it_is_none(tmp_path: Path, name: str, number: str) -> None:
    text = f"{name}={number},gres/gpu=1"
    assert _parsed(tmp_path, [text]) == {text: ("", f"'{name}={number}' is not NAME=NUMBER")}


def test_a_million_numbers_are_no_million_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    parse = export_reader._parsed

    def counted(text: str) -> tuple[str, str]:
        calls.append(text)
        return parse(text)

    monkeypatch.setattr(export_reader, "_parsed", counted)
    texts = [
        f"billing={number},cpu={number},energy={number},gres/shard={number % 500 + 1},gres/vgpu:std=1,gres/vgpu=1,"
        f"gres/vgpu_cores=50,gres/vgpu_mem={number},mem={number}G"
        for number in range(1, 3000)
    ]
    assert len(_parsed(tmp_path, texts)) == len(texts)
    assert len(calls) == 1
