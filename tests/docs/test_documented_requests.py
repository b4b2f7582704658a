# SPDX-License-Identifier: Apache-2.0
"""Each vgpu request of the documents is one that the parser understands; those of migration.md mean what it says."""

from __future__ import annotations

import re

import pytest
from documents import documents, text_of

from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.request import parse
from hami_hpc.core.units import of_shards, resolve
from hami_hpc.node.config import parse_settings

REQUEST = re.compile(r"--gres='?(vgpu(?![_\w])[^\s`'\";]*)")
KEY = re.compile(r"`((?:mem|cores|type|mode)=[^`,]+)`")


def requests() -> list[str]:
    texts = [text_of(name) for name in documents() if not name.startswith(("CHANGELOG", "docs/adr/"))]
    found = {match.rstrip(".,").replace("\\|", "|") for text in texts for match in REQUEST.findall(text)}
    return sorted(request for request in found if "..." not in request and "KEY" not in request and request != "vgpu:")


@pytest.mark.parametrize("request_text", requests())
def test_a_request_is_understood(request_text: str) -> None:
    assert parse(request_text) is not None


def test_there_are_many_and_a_wrong_one_is_noticed() -> None:
    assert len(requests()) > 30
    with pytest.raises(Exception, match="unknown key"):
        parse("vgpu:memory=8G")


def test_what_hami_asks_for_is_a_key_of_a_request_here() -> None:
    table = text_of("docs/migration.md").partition("## From HAMi on Kubernetes")[2]
    keys = [key.replace("\\|", "|") for key in KEY.findall(table)]
    assert len(keys) >= 7
    for key in keys:
        assert parse(f"vgpu:{key}") is not None


def test_shards_of_an_eighth_stay_a_quarter_of_an_h200_for_two() -> None:
    assert "`shard_mib = 17894`" in text_of("docs/migration.md")
    document = {
        "version": 1,
        "vgpu": {"shard_mib": 17894, "bare_shard": "translate"},
        "gpu_models": {"h200": {"total_mib": 143156}},
        "partitions": {"gpu": {"gpu_models": ["h200"]}},
    }
    site, where = parse_settings(document, "hami-hpc.toml").site(), Where(("gpu",))
    units = resolve(of_shards(2, None, site, where), site, where)
    assert (units.shards, units.mem_mib, units.cores) == (2, 2 * 17894, 25)
