# SPDX-License-Identifier: Apache-2.0
"""The settings of docs/admin.md and docs/migration.md are accepted, and make the lines that stand beside them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import blocks, text_of

from hami_hpc.core.inventory import Device, Gpu, make_inventory, match_model
from hami_hpc.node.agent_settings import read_agent
from hami_hpc.node.config import Settings, parse_settings
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.node.quota_settings import read_quotas
from hami_hpc.render.defaults import check_defaults
from hami_hpc.render.marks import block
from hami_hpc.render.offer import make_offer
from hami_hpc.render.tenants import of_node
from hami_hpc.slurm.lines import parse_line

SIZES = {"10 GPUs": 8, "100 GPUs": 96, "500 GPUs": 512}
H200_MIB = 143156


def tomls(document: str) -> Iterator[str]:
    return (block.text for block in blocks(document) if block.language == "toml")


def is_quotas(text: str) -> bool:
    return "[accounts." in text


def settings_in(document: str) -> list[Settings]:
    return [parse_settings(tomllib.loads(text), document) for text in tomls(document) if not is_quotas(text)]


ADMIN = settings_in("docs/admin.md")


def test_there_are_settings_for_each_size() -> None:
    text = text_of("docs/admin.md")
    assert [re.search(rf"^## {size}: ", text, re.MULTILINE) is not None for size in SIZES] == [True] * 3
    assert len(ADMIN) == 3


@pytest.mark.parametrize("settings", [*ADMIN, *settings_in("docs/migration.md")])
def test_every_part_of_the_settings_is_accepted(settings: Settings) -> None:
    here = {key: value for key, value in (settings.agent or {}).items() if key != "group"}  # which need not exist here
    read_agent(settings._replace(agent=here))
    read_qos(settings)
    check_defaults(settings.site())


@pytest.mark.parametrize(("settings", "gpus"), list(zip(ADMIN, SIZES.values(), strict=True)))
def test_the_gres_beside_them_is_what_render_writes(settings: Settings, gpus: int) -> None:
    node: tuple[Gpu, ...] = make_inventory(
        [Device(n, f"GPU-{n}", "NVIDIA H200", H200_MIB) for n in range(8)], settings.gpu_models
    )
    offer = make_offer(settings.site(), node)
    assert f"Gres={offer.gres} \\\n    Feature={','.join(offer.features)}\n" in text_of("docs/admin.md"), gpus


def test_the_tenants_beside_them_are_what_render_writes() -> None:
    settings = ADMIN[list(SIZES).index("100 GPUs")]
    node = make_inventory([Device(n, f"GPU-{n}", "NVIDIA H200", H200_MIB) for n in range(8)], settings.gpu_models)
    (line,) = re.findall(r"^PartitionName=gpu Nodes=gpu\[01-12\].*", text_of("docs/admin.md"), re.MULTILINE)
    lines = [parse_line("slurm.conf", 1, line.rstrip("\\"))]
    text = of_node(settings, make_offer(settings.site(), node), "gpu01", (), lines)
    assert block("gpu[01-12]", text) in text_of("docs/admin.md")


def test_the_quotas_are_accepted_and_guarantee_no_more_than_there_is(tmp_path: Path) -> None:
    texts = [text for text in tomls("docs/admin.md") if is_quotas(text)]
    assert len(texts) == 2
    for text, gpus in zip(texts, (96, 512), strict=True):
        path = tmp_path / "quotas.toml"
        path.write_text(text, encoding="utf-8")
        read_quotas(path)
        accounts = tomllib.loads(text)["accounts"].values()
        assert sum(account.get("guaranteed_gpus", 0) for account in accounts) <= gpus
        assert all(account["gpus"] <= gpus for account in accounts)


def test_names_of_models_match_as_the_table_says() -> None:
    rows = re.findall(r"^\| (`NVIDIA [^|]*) \| ([^|]*) \| ([^|]*) \|$", text_of("docs/existing-slurm.md"), re.MULTILINE)
    assert len(rows) == 5
    for cells in rows:
        products, yes, no = (re.findall(r"`([^`]+)`", cell) for cell in cells)
        for product in products:
            device = Device(0, "GPU-0", product, 81250)
            assert [name for name in yes if match_model(device, {name: 1}) != name] == []
            assert [name for name in no if match_model(device, {name: 1})] == []
    sizes = {"a100-80": 81250, "a100-40": 40326}
    assert match_model(Device(0, "GPU-0", "NVIDIA A100-SXM4-40GB", 40326), sizes) == "a100-40"
