# SPDX-License-Identifier: Apache-2.0
"""Differential fuzz: whatever is asked for, Lua and Python give the same answer, to the letter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lua_process import INTERPRETERS, LuaProcess, read_vectors
from site_vectors import lua_site, python_site, tables
from test_lua_vectors import python_shards

from hami_hpc.contract import constants as contract
from hami_hpc.core.gpu_choice import Where, size_of
from hami_hpc.core.request import canonical, parse, parse_shards
from hami_hpc.core.site import Site
from hami_hpc.core.units import least_shards, resolve
from hami_hpc.errors import RequestError

VECTORS = [row[0] for row in read_vectors("requests.tsv", 3)]
WORDS = """
vgpu vgpu: vgpu_mem vgpu_cores vgpu_slo gres: gres/ gres gpu shard mps nic mem cores mode policy slo us ms s
type preset | ! h200|a100 !v100 inference mig isolation share auto hard 1g .18gb +me cap std h200
gold be = ~ : ; , % . - + 0 1 8 50 100 16T 8G 8192M 1.5G 99999999999999999999 {key}
mem=8G mem=0% mem=101% cores=50 cores=101 mode=mps policy=none slo=10ms slo=99us slo=9007199254740993s
"""
PIECES = [*WORDS.split(), " ", "\x01", "\u00e9", "\udcff"]
FUZZ = settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FUZZ_SITES = settings(FUZZ, max_examples=300)  # drawing a site is slow


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A vector with some pieces cut out, doubled or put in."""
    text = draw(st.sampled_from(VECTORS))[:300]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(len(text), at + 6)))
        text = text[:at] + draw(st.sampled_from(["", text[at:end] * 2, *PIECES])) + text[end:]
    return text


GRES = mutated() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
# A NUL cannot stand in an argument, an environment or one of Slurm's strings.
NOISE = st.binary(max_size=80).map(lambda raw: "vgpu:" + raw.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


@pytest.fixture(scope="module", params=INTERPRETERS)
def lua(request: pytest.FixtureRequest) -> Iterator[LuaProcess]:
    with LuaProcess(request.param) as process:
        yield process


def python_parse(text: str, classes: tuple[str, ...] = ()) -> list[str]:
    try:
        parsed = parse(text, classes)
    except RequestError as error:
        return ["error", error.code, error.message]
    if parsed is None:
        return ["none"]
    return ["ok", canonical(parsed.request), parsed.prefix, ",".join(parsed.others)]


@FUZZ
@given(text=GRES | NOISE, classes=st.sampled_from([(), ("gold",), ("gold", "h200")]))
def test_lua_and_python_parse_alike(lua: LuaProcess, text: str, classes: tuple[str, ...]) -> None:
    answer = lua.ask("parse", text, ",".join(classes))
    if answer[0] == "ok":
        glued = answer.pop(2)
        assert python_parse(glued, classes)[1] == answer[1]
    assert answer == python_parse(text, classes)


def python_resolve(text: str, site: Site, where: Where, turn: int = 0) -> list[str]:
    parsed = parse(text)
    assert parsed is not None
    try:
        units = resolve(parsed.request, site, where, turn)
    except RequestError as error:
        return ["error", error.code, error.message]
    numbers = [str(units.shards), units.service_class, str(units.mem_mib), str(units.cores)]
    places = [f"{units.count}x{''.join(units.places)}"] if units.count > 1 else []
    return ["ok", *numbers, ",".join(units.features), *([str(units.slo_us)] if units.slo_us else []), *places]


PRESETS = {"one": "mem=8G;cores=7;policy=cap", "two": "type=a|b;mem=50%;mode=auto;slo=10ms"}
CLASSES: list[dict[str, list[str]]] = [{"std": []}, {"std": ["x"], "lc": ["Y"]}, {"std": [], "gold": ["Y"]}]
CLASS_POLICIES = [{}, {"std": ["cap"], "lc": ["burst", "none"]}, {"std": ["cap", "burst"], "gold": ["none"]}]


def mig_profiles() -> st.SearchStrategy[list[dict[str, object]]]:
    """Profiles of a model. Few values, so that models have some in common."""
    row = {
        "name": st.sampled_from(["1g.5gb", "2g.10gb", "7g.40gb"]),
        "mem_mib": st.sampled_from([5000, 10000, 40000]),
        "mem_percent": st.sampled_from([12, 50, 100]),
        "cores": st.sampled_from([14, 42, 100]),
        "shards": st.sampled_from([1, 20, 150]),
    }
    return st.lists(st.fixed_dictionaries(row), max_size=3, unique_by=lambda profile: profile["name"])


@st.composite
def site_tables(draw: st.DrawFn) -> dict[str, object]:
    models = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 300_000), min_size=1))
    names = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True)
    return {
        "shard_mib": draw(st.integers(1, 5000)),
        "memory_scaling": draw(st.floats(0.01, 1.0) | st.floats(1.0, contract.MEMORY_SCALING_MAX)),
        "default_mem": draw(st.sampled_from(["25%", "8G", "1T", "1%"])),
        "default_cores": draw(st.integers(1, 100) | st.just("proportional")),
        "max_tenants": draw(st.sampled_from([0, 0, 1, 7, 48])),
        "presets": draw(st.sampled_from([{}, PRESETS])),
        "modes": draw(st.lists(st.sampled_from(["share", "mps", "mig"]), unique=True)),
        "mig": draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), mig_profiles())),
        "mig_waste_percent": draw(st.integers(0, 100)),
        "classes": draw(st.sampled_from(CLASSES)),
        "policies": draw(st.sampled_from(CLASS_POLICIES)),
        "latency": draw(st.sampled_from([["lc"], [], ["lc", "gold"]])),
        "gpu_models": models,
        "partitions": draw(st.dictionaries(st.sampled_from(["p", "q"]), names)),
        "slices_max": draw(st.integers(1, 16)),
        "partition_gpus": draw(st.dictionaries(st.sampled_from(["p", "q"]), st.integers(1, 16))),
    }


SIZES = st.sampled_from(["", "mem=1M", "mem=50%", "mem=100%", "mem=7000M"]) | st.integers(1, 400_000).map(
    "mem={}M".format
)
CORES = st.just("") | st.integers(1, 100).map("cores={}".format)
TYPES = st.sampled_from(["", "", ":a", ":b"])
TYPE_LISTS = st.sampled_from(["", "", "", "type=a|b", "type=b|a|c", "type=!a", "type=!b|c", "type=a|z", "type=c"])
PRESET_KEYS = st.sampled_from(["", "", "", "preset=one", "preset=two", "preset=none"])
MODES = st.sampled_from(["", "mode=share", "mode=mig", "mode=auto"])
MIG = st.sampled_from(["", "", "", "mig=1g.5gb", "mig=2g.10gb", "isolation=hard", "mig=7g.40gb;isolation=hard"])
COUNTS = st.sampled_from(["", ""]) | st.integers(1, 18).map("count={}".format)
SLOS = st.sampled_from(["", "", "slo=100us", "slo=1500us", "slo=10ms", "slo=60s"])
POLICIES = st.sampled_from(["", "policy=cap", "policy=burst", "policy=none"])


@FUZZ_SITES
@given(
    table=site_tables(),
    parts=st.tuples(PRESET_KEYS, COUNTS, TYPE_LISTS, SIZES, CORES, MODES, MIG, POLICIES, SLOS),
    gpu_type=TYPES,
    partitions=st.sampled_from(["p", "p,q"]),
    turn=st.integers(0, 720719),
)
def test_lua_and_python_count_alike(
    lua: LuaProcess, table: dict[str, object], parts: tuple[str, ...], gpu_type: str, partitions: str, turn: int
) -> None:
    pieces = ";".join(part for part in parts if part)
    text = f"vgpu{gpu_type}:{pieces}" if pieces else f"vgpu{gpu_type}"
    assert lua.ask("site", lua_site(table)) == ["ok"]
    answer = lua.ask("resolve", text, partitions, "y", str(turn))
    try:
        expected = python_resolve(text, python_site(table), Where(tuple(partitions.split(",")), "y"), turn)
    except RequestError as error:  # a count that no site allows
        expected = ["error", error.code, error.message]
    assert answer == expected


SHARD_WORDS = "shard: shard= shard gres: gres/ , 0 1 7 99 : = nic:1 gpu mps K - h200"
SHARD_PIECES = st.sampled_from([*SHARD_WORDS.split(), " "])
SHARDS = st.integers(0, 2_000_000).map("gres:shard:{}".format) | st.lists(SHARD_PIECES, max_size=8).map("".join)


@FUZZ_SITES
@given(table=site_tables(), text=SHARDS, gpu_type=st.sampled_from(["", "a", "b"]))
def test_lua_and_python_see_the_same_vgpu_in_bare_shards(
    lua: LuaProcess, table: dict[str, object], text: str, gpu_type: str
) -> None:
    assert lua.ask("site", lua_site(table)) == ["ok"]
    site = python_site(table)
    answer = lua.ask("shards", text, "p", gpu_type)
    assert answer == python_shards(text, site, "p", gpu_type)
    shards = parse_shards(text)
    if answer[0] == "ok" and shards is not None and site.modes[:1] != ["mig"]:
        # As many again, but no less than the smallest vgpu, which has 1 % of the time.
        models = [gpu_type] if gpu_type else site.partitions["p"]
        sizes = [size_of(site, model) for model in models]
        fitting = [size for size in sizes if size.slice_mib >= shards.count * site.shard_mib]
        whole = max(size.slice_shards for size in fitting)
        sold = max(size.sold_shards for size in fitting if size.slice_shards == whole)
        assert int(answer[2]) == max(shards.count, whole // 100, 1, least_shards(sold, site.max_tenants))


def test_the_fuzz_starts_from_sites_that_both_accept(lua: LuaProcess) -> None:
    for table in tables().values():
        assert lua.ask("site", lua_site(table)) == ["ok"]
