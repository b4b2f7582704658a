# SPDX-License-Identifier: Apache-2.0
"""The reader of plain settings gives what tomllib gives, or leaves the text to it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_testbed import ROOT

from hami_hpc.core import plain_toml

ALL = """\
# the site's settings, with what people add to them
version = 1

[vgpu]   # a comment
shard_mib = 256            # one gres/shard
memory_scaling = 1.0
default_mem = "25%"\t
  default_cores = 25
bare_shard = "refuse"      # "translate" # or "allow"
modes = ["share"]
[paths]
run_dir = "/run/hami-hpc"
state_dir="/var/lib/hami-hpc"
[classes.std]
qos = []
[classes]
[classes.lc]
qos = [ "lc", "urgent" , ]  # two
policy = "burst"
latency = true  # or false
[classes.be]
latency = false
[gpu_models.h200]
total_mib = 143156
[gpu_models.h200.mig_profiles]
"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"  # = 1
"a = #b"="x"
""  =  1
[gpu_models.A100-80_GB]
total_mib = 81038
[partitions.gpu]
gpu_models = ["h200","A100-80_GB"]
"""
# Each is right TOML that this reader leaves to tomllib, or wrong TOML that it must not take.
NOT_PLAIN = [
    'a = "x\\n"',
    'a = """x"""',
    "a = 'x'",
    'a = "x" y',
    'a = "x',
    'a = "x\ty"',
    "a = 1_000",
    "a = +1",
    "a = -1",
    "a = 01",
    "a = 0x1",
    "a = 1.",
    "a = .5",
    "a = 1e3",
    "a = 1.5.5",
    "a = \u0661",
    "a = True",
    "a = true false",
    "a = inf",
    "a = 2026-11-21",
    "a = [1]",
    'a = ["x"',
    'a = ["x" "y"]',
    'a = [, "x"]',
    'a = ["x",, "y"]',
    'a = [\n"x"]',
    'a = ["x"] y',
    "a = {b = 1}",
    "a.b = 1",
    '"a\\n" = 1',
    '"a" b = 1',
    '"a".b = 1',
    '"a"',
    '"a" =',
    '"a = 1',
    '"""a""" = 1',
    'a"b" = 1',
    'a = 1\n"a" = 2',
    "'a' = 1",
    "a b = 1",
    "ä = 1",
    "= 1",
    "a",
    "a =",
    "a = 1\na = 2",
    "a = 1\n[a]",
    "a = 1\n[a.b]",
    "[a]\n[a]",
    "[a.b]\n[a]\nb = 1",
    "[a",
    "[a]]",
    "[a] b",
    "[]",
    "[a.]",
    "[ a ]",
    '["a"]',
    "[[a]]",
    "a = 1\r\n",
    "a = 1 # \x01",
    "# \x7f",
    "\ufeffa = 1",
    "\x0ca = 1",
]


def items(value: Any) -> Any:
    """The value with its types and the order of its keys."""
    if isinstance(value, dict):
        return [(key, items(inner)) for key, inner in value.items()]
    return (type(value), [items(inner) for inner in value] if isinstance(value, list) else value)


def by_tomllib(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


@pytest.mark.parametrize("text", [ALL, "", "\n", "# x", "a = 0", "a=0.25#x", '[a.b]\n[a]\nc = ""', "[b]\n[a.c]\n[b.d]"])
def test_plain_settings_are_read_as_tomllib_reads_them(text: str) -> None:
    assert items(plain_toml.read(text)) == items(tomllib.loads(text))


def test_the_example_of_the_settings_is_plain() -> None:
    text = (ROOT / "examples" / "hami-hpc.toml").read_text()
    assert items(plain_toml.read(text)) == items(tomllib.loads(text))


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_tomllib(text: str) -> None:
    assert plain_toml.read(text) is None


# A busy machine is no fault of the reader.
MANY = settings(
    max_examples=2500, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
WORDS = ["a", "b", "a.b", "1", "0", "25%", "true", "[a]\n", "a = 1\n", 'b = ["x"]\n', "ä", "\x00", "\x85"]
PIECES = [*'\n\n\n[].,="#\\\t\r _-', '"""', *WORDS]


@MANY
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_the_plain_reader_never_says_anything_else_than_tomllib(text: str) -> None:
    read = plain_toml.read(text)
    assert read is None or items(read) == items(by_tomllib(text))


@MANY
@given(st.integers(0, len(ALL)), st.integers(0, 3), st.sampled_from([*PIECES, ""]))
def test_a_change_anywhere_in_the_settings_is_read_as_tomllib_reads_it(at: int, dropped: int, piece: str) -> None:
    text = ALL[:at] + piece + ALL[at + dropped :]
    read = plain_toml.read(text)
    assert read is None or items(read) == items(by_tomllib(text))
