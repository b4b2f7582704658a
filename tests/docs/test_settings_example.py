# SPDX-License-Identifier: Apache-2.0
"""examples/hami-hpc.toml: every key that the parser knows, with its default, and nothing else."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from documents import ROOT

from hami_hpc.core import plain_toml
from hami_hpc.node import config
from hami_hpc.node.agent_settings import read_agent
from hami_hpc.node.placement_settings import read_placement

EXAMPLE = ROOT / "examples" / "hami-hpc.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
KEY = re.compile(r"^#(?=\w+ = )", re.MULTILINE)
WITHOUT_DEFAULT = {"version", "total_mib", "gpu_models"}


def keys(document: dict[str, Any], table: str = "") -> set[tuple[str, str]]:
    """(table, key) of everything in a document; a GPU model's or partition's own name is *."""
    found = set()
    for name, value in document.items():
        if isinstance(value, dict):
            inner = "*" if table in ("gpu_models", "partitions") else name
            found |= {(table, inner), *keys(value, f"{table}.{inner}".lstrip("."))}
        else:
            found.add((table, name))
    return found


def test_the_example_is_read_and_means_the_defaults() -> None:
    settings = config.load_settings(str(EXAMPLE))
    defaults = config.parse_settings({"version": 1}, str(EXAMPLE))
    assert settings == defaults._replace(
        gpu_models={"h200": 143156}, partitions={"gpu": ("h200",)}, agent={"actions": {}, "faults": {}}
    )
    assert read_agent(settings) == read_agent(defaults)


def test_what_it_shows_behind_a_hash_is_the_default() -> None:
    shown = config.parse_settings(tomllib.loads(KEY.sub("", TEXT)), str(EXAMPLE))
    loaded = config.load_settings(str(EXAMPLE))
    assert shown._replace(agent=None, placement={}) == loaded._replace(agent=None)
    assert read_placement(shown) == read_placement(loaded)
    assert read_agent(shown) == read_agent(loaded)


def test_every_key_with_a_default_is_behind_a_hash_and_every_other_is_not() -> None:
    behind = set(re.findall(r"^#(\w+) = ", TEXT, re.MULTILINE))
    before = set(re.findall(r"^(\w+) = ", TEXT, re.MULTILINE))
    assert (before, behind & before) == (WITHOUT_DEFAULT, set())


def test_it_has_every_key_that_the_parser_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, str]] = set()
    take = config._Table.take

    def noted(table: config._Table, key: str, default: object = None) -> Any:
        name = re.sub(r"^(gpu_models|partitions)\.\w+$", r"\1.*", table.name)
        asked.add((name, "*" if name in ("gpu_models", "partitions") else key))
        return take(table, key, default)

    monkeypatch.setattr(config._Table, "take", noted)
    document = tomllib.loads(KEY.sub("", TEXT))
    settings = config.parse_settings(document, str(EXAMPLE))
    read_agent(settings)
    read_placement(settings)
    assert keys(document) == asked


def test_every_key_has_a_comment() -> None:
    uncommented = re.findall(r"^#?(\w+) = [^#\n]*$", TEXT, re.MULTILINE)
    # Of these the lines above the table say what they are, for all three classes.
    assert set(uncommented) == set(config.ClassSettings._fields)


@pytest.mark.parametrize("text", [TEXT, KEY.sub("", TEXT)])
def test_a_prolog_reads_it_without_tomllib(text: str) -> None:
    assert plain_toml.read(text) == tomllib.loads(text)
