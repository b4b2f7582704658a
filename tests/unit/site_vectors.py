# SPDX-License-Identifier: Apache-2.0
"""The sites of tests/vectors/sites.toml, as Python values and as the Lua table that the filters read."""

from __future__ import annotations

import tomllib
from typing import Any

from lua_process import VECTORS

from hami_hpc.contract.generate import lua_value
from hami_hpc.core.mig_choice import OfferedProfile
from hami_hpc.core.request import Request, parse
from hami_hpc.core.site import Site


def tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((VECTORS / "sites.toml").read_text(encoding="ascii"))


def python_site(table: dict[str, Any]) -> Site:
    mig = {model: [OfferedProfile(**row) for row in rows] for model, rows in table.get("mig", {}).items()}
    presets = {name: preset_of(text) for name, text in table.get("presets", {}).items()}
    given = {**table, "mig": mig, "presets": presets, "partition_gpus": table.get("partition_gpus", {})}
    return Site(bare_shard="allow", **given)


def preset_of(text: str) -> Request:
    parsed = parse(f"vgpu:{text}")
    assert parsed is not None
    return parsed.request


def lua_site(table: dict[str, Any]) -> str:
    """Returns the site as render writes it to hami_hpc_site.lua."""
    site = {"version": 1, "bare_shard": "allow", **table}
    mig = site.pop("mig", {})
    site["gpu_models"] = {
        name: {"total_mib": mib} | ({"mig": mig[name]} if name in mig else {})
        for name, mib in table["gpu_models"].items()
    }
    gpus = site.pop("partition_gpus", {})
    site["partitions"] = {
        name: {"gpu_models": models} | ({"gpus": gpus[name]} if name in gpus else {})
        for name, models in table["partitions"].items()
    }
    return lua_value(site)
