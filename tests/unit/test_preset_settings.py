# SPDX-License-Identifier: Apache-2.0
"""[presets.*], max_tenants and default_cores of the settings: what they may be, and that the filters read them."""

from __future__ import annotations

import pytest
from lua_process import INTERPRETERS, LuaProcess

from hami_hpc.core.request import Request
from hami_hpc.core.request_keys import MemMib
from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings, parse_settings
from hami_hpc.render.defaults import check_defaults
from hami_hpc.render.offer import lua_text, site_table

TOML = {
    "version": 1,
    "gpu_models": {"h200": {"total_mib": 143156}, "a100": {"total_mib": 81559}},
    "partitions": {"gpu": {"gpu_models": ["h200", "a100"]}},
}


def settings_with(presets: object = None, **vgpu: object) -> Settings:
    return parse_settings({**TOML, "vgpu": vgpu, "presets": presets or {}}, "x.toml")


def test_a_preset_is_a_request() -> None:
    site = settings_with({"inference": {"mem": "8G", "cores": 25, "policy": "cap", "type": "h200"}}).site()
    assert site.presets == {"inference": Request("h200", mem=MemMib(8192), cores=25, policy="cap")}


@pytest.mark.parametrize(
    ("presets", "message"),
    [
        ({"in ference": {"mem": "8G"}}, "a preset's name has letters"),
        ({"x" * 33: {"mem": "8G"}}, "at most 32 of them"),
        ({"x": {}}, "is not a table with one of the keys mem, cores"),
        ({"x": "mem=8G"}, "is not a table"),
        ({"x": {"mme": "8G"}}, "unknown key 'mme'; known: mem, cores, mode, policy, slo, type"),
        ({"x": {"count": 2}}, "unknown key 'count'"),
        ({"x": {"mig": "1g.18gb"}}, "unknown key 'mig'"),
        ({"x": {"mem": 8}}, "mem = '8' is not understood; allowed is a whole number with M, G or T"),
        ({"x": {"mem": "8"}}, "mem=8 has no unit"),
        ({"x": {"mem": "8G,cores=5"}}, "mem = '8G,cores=5' is not understood"),
        ({"x": {"mem": "8G;cores=5"}}, "is not understood"),
        ({"x": {"cores": 101}}, "cores=101 is out of range"),
        ({"x": {"cores": True}}, "cores = 'True' is not understood"),
        ({"x": {"policy": "caps"}}, "policy=caps is unknown"),
        ({"x": {"type": "h200|v100"}}, "type names 'v100', which is not in [gpu_models.*]: h200, a100"),
        ({"x": {"type": "v100"}}, "type names 'v100'"),
    ],
)
def test_a_preset_that_is_none_is_named(presets: object, message: str) -> None:
    with pytest.raises(NodeError) as caught:
        settings_with(presets).site()
    assert message in str(caught.value)
    assert "x.toml, table [presets." in str(caught.value)


def test_presets_that_are_no_table_are_refused() -> None:
    with pytest.raises(NodeError, match=r"table \[presets\] is not a table"):
        settings_with("x")


def test_render_refuses_a_preset_that_fits_no_partition() -> None:
    presets = {"fits": {"mem": "100G", "policy": "none"}, "huge": {"mem": "1T"}}
    check_defaults(settings_with({"fits": presets["fits"]}).site())
    with pytest.raises(NodeError, match="preset huge fits no partition: mem=1T is more than a GPU of partition gpu"):
        check_defaults(settings_with(presets).site())


@pytest.mark.parametrize("value", [0, 101, "25", "Proportional", True, 1.5])
def test_default_cores_is_a_number_or_proportional(value: object) -> None:
    with pytest.raises(NodeError, match='whole number from 1 to 100, or "proportional"'):
        settings_with(default_cores=value)
    assert settings_with(default_cores="proportional").default_cores == "proportional"


@pytest.mark.parametrize("value", [-1, 1025, "8", True])
def test_max_tenants_is_a_number(value: object) -> None:
    with pytest.raises(NodeError, match="max_tenants"):
        settings_with(max_tenants=value)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_filters_read_what_render_writes_of_them(interpreter: str) -> None:
    presets = {"one": {"type": "h200", "mem": "1G", "cores": 1}, "two": {"type": "!h200", "mem": "50%"}}
    site = settings_with(presets, default_cores="proportional", max_tenants=8).site()
    with LuaProcess(interpreter) as lua:
        assert lua.ask("site", lua_text(site_table(site))) == ["ok"]
        assert lua.ask("resolve", "vgpu:preset=one", "gpu", "", "0")[1:5] == ["69", "std", "1024", "1"]
        assert lua.ask("resolve", "vgpu:preset=two", "gpu", "", "0")[1:5] == ["159", "std", "40704", "50"]
