# SPDX-License-Identifier: Apache-2.0
"""The Lua grammar and units, which Slurm runs, against the vectors and against Python, message by message."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from lua_process import INTERPRETERS, LuaProcess, read_vectors
from site_vectors import lua_site, python_site, tables

from hami_hpc.contract import constants as contract
from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.request import canonical, parse, parse_shards
from hami_hpc.core.site import Site
from hami_hpc.core.units import of_shards, resolve
from hami_hpc.errors import RequestError


@pytest.fixture(scope="module", params=INTERPRETERS)
def lua(request: pytest.FixtureRequest) -> Iterator[LuaProcess]:
    with LuaProcess(request.param) as process:
        yield process


def python_parse(text: str) -> list[str]:
    """Python's answer in the form of the Lua runner's, without the glued form that only the filters need."""
    try:
        parsed = parse(text)
    except RequestError as error:
        return ["error", error.code, error.message]
    if parsed is None:
        return ["none"]
    return ["ok", canonical(parsed.request), parsed.prefix, ",".join(parsed.others)]


def test_lua_parses_each_vector_as_python_does_and_as_written(lua: LuaProcess) -> None:
    rows = read_vectors("requests.tsv", 3)
    for text, expected, _ in rows:
        answer = lua.ask("parse", text)
        if answer[0] == "ok":
            glued = answer.pop(2)
            assert lua.ask("parse", glued)[1] == answer[1], f"{text!r} became {glued!r}"
            assert python_parse(glued)[1] == answer[1], f"{text!r} became {glued!r}"
        assert answer == python_parse(text), text
        assert expected in answer, text
    assert len(rows) > 150


def test_lua_reads_an_example_of_each_key_of_the_contract_as_that_key_alone(lua: LuaProcess) -> None:
    for key, text in contract.KEY_EXAMPLE.items():
        for value in re.findall(r"=([^ ,]+)", text):
            answer = lua.ask("parse", f"vgpu:{key}={value}")
            assert answer[:1] == ["ok"]
            assert re.fullmatch(f"vgpu:{key}=[^;=]+", answer[1]), answer


def test_lua_counts_each_vector_as_python_does_and_as_written(lua: LuaProcess) -> None:
    for name, table in tables().items():
        assert lua.ask("site", lua_site(table)) == ["ok"]
        rows = [row for row in read_vectors("units.tsv", 5) if row[1] == name]
        assert rows
        for text, _, partitions, qos, expected in rows:
            answer = lua.ask("resolve", text, partitions, "" if qos == "-" else qos)
            if answer[0] == "ok":
                assert " ".join(field or "-" for field in answer[1:]) == expected, text
                continue
            parsed = parse(text)
            assert parsed is not None
            with pytest.raises(RequestError) as caught:
                resolve(parsed.request, python_site(table), Where(tuple(partitions.split(",")), qos))
            assert answer == ["error", expected, caught.value.message], text


def test_a_site_table_that_sells_more_than_three_times_the_memory_is_refused(lua: LuaProcess) -> None:
    table = dict(tables()["one"])
    assert lua.ask("site", lua_site(table | {"memory_scaling": 3.0})) == ["ok"]
    answer = lua.ask("site", lua_site(table | {"memory_scaling": 3.01}))
    assert answer[0] == "error"
    assert "memory_scaling = 3.01 is above 3" in answer[-1]


def python_shards(text: str, site: Site, partitions: str, gpu_type: str) -> list[str]:
    """Python's answer to what a list of bare shards stands for, in the form of the Lua runner's."""
    shards = parse_shards(text)
    if shards is None:
        return ["none"]
    where = Where(tuple(partitions.split(",")))
    try:
        request = of_shards(shards.count, gpu_type or None, site, where)
        again = resolve(request, site, where).shards
    except RequestError as error:
        return ["error", error.code, error.message]
    return ["ok", canonical(request), str(again), shards.prefix, ",".join(shards.others)]


def test_bare_shards_stand_for_the_same_vgpu_in_lua_and_python(lua: LuaProcess) -> None:
    for name, table in tables().items():
        assert lua.ask("site", lua_site(table)) == ["ok"]
        rows = [row for row in read_vectors("shards.tsv", 5) if row[1] == name]
        assert rows
        for text, _, partitions, gpu_type, expected in rows:
            wanted_type = "" if gpu_type == "-" else gpu_type
            answer = lua.ask("shards", text, partitions, wanted_type)
            assert answer == python_shards(text, python_site(table), partitions, wanted_type), text
            if answer[0] == "ok":
                assert f"{answer[1]} {answer[2]} {answer[4] or '-'}" == expected, text
            else:
                assert expected in answer, text


def test_the_token_of_a_gres_is_found_and_a_list_too_long_to_read_is_it_as_a_whole(lua: LuaProcess) -> None:
    most = contract.REQUEST_MAX_LENGTH
    for text, expected in (
        ("nic:1,gres:shard:4,shard:5", ["ok", "shard:4"]),
        ("nic:1,shardx:4", ["none"]),
        ("x gres:shard:4", ["ok", "x gres:shard:4"]),
        ("shard:4".ljust(most, ","), ["ok", "shard:4"]),
        ("shard:4".ljust(most + 1, ","), ["ok", "shard:4".ljust(most + 1, ",")]),
        ("nic:4".ljust(most + 1, ","), ["none"]),
    ):
        assert lua.ask("token", text, "shard") == expected


def test_the_glued_form_passes_slurms_own_parsers(lua: LuaProcess) -> None:
    # 22.05 refuses a second colon before what is not a count, later versions read what follows the last '=' as a
    # count, and all cut at commas.
    for text, expected, _ in read_vectors("requests.tsv", 3):
        if not expected.startswith("E_") and expected != "none":
            glued = lua.ask("parse", text)[2]
            assert glued.count(":") <= 1
            assert not set("=,") & set(glued)
            assert not glued.partition(":")[2][:1].isdigit()
