# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog use in place of slow imports: each gives what the standard library's module gives."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.mounting import can_mount
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_testbed import ROOT, Node, job_environment

from hami_hpc.core import plain_toml, values
from hami_hpc.errors import NodeError
from hami_hpc.node.config import load_settings

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
[gpu_models.h200]
total_mib = 143156
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
    "a = true",
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
    '"a" = 1',
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


def test_settings_that_are_not_plain_are_read_all_the_same(node: Node) -> None:
    path = node.root / "hami-hpc.toml"
    before = load_settings(str(path))
    path.write_text(path.read_text().replace('gpu_models = ["h200"]', "gpu_models = [\n  'h200',\n]"))
    assert plain_toml.read(path.read_text()) is None
    assert load_settings(str(path)) == before
    assert node.run("prolog", job_environment(7)) == (0, "")
    path.write_text("version = 1\nversion = 2\n")
    with pytest.raises(NodeError, match="is not valid TOML: Cannot overwrite a value"):
        load_settings(str(path))


class Ours(values.NamedTuple):
    first: int
    second: str
    third: float = 0.5


class Typings(NamedTuple):
    first: int
    second: str
    third: float = 0.5


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1, "a", 2.0), {}),
    ((1, "a"), {}),
    ((1,), {"second": "b"}),
    ((), {"second": "b", "first": 2, "third": 3.0}),
    ((), {}),
    ((1,), {}),
    ((1, "a", 2.0, 3), {}),
    ((1, "a"), {"first": 2}),
    ((1, "a"), {"fourth": 2}),
    ((1, "a", 2.0), {"third": 2.0}),
    ((), {"third": 2.0}),
]


@pytest.mark.parametrize(("given", "named"), CALLS)
def test_a_named_tuple_is_made_as_typings(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        model = Typings(*given, **named)
    except TypeError:
        with pytest.raises(TypeError, match="Ours"):
            Ours(*given, **named)
        return
    ours = Ours(*given, **named)
    assert tuple(ours) == tuple(model)
    assert repr(ours) == repr(model).replace("Typings", "Ours")
    assert (ours.first, ours.second, ours.third) == (model.first, model.second, model.third)


def test_a_named_tuple_behaves_as_typings() -> None:
    ours, model = Ours(1, "a"), Typings(1, "a")
    assert Ours._fields == Typings._fields
    assert ours._asdict() == model._asdict()
    assert tuple(ours._replace(second="b")) == tuple(model._replace(second="b"))
    assert type(ours._replace(second="b")) is Ours
    assert hash(ours) == hash(model)
    assert ours == (1, "a", 0.5)
    assert pickle.loads(pickle.dumps(ours)) == ours
    with pytest.raises(TypeError, match="fourth"):
        ours._replace(fourth=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        ours.first = 2  # type: ignore[misc]


SABOTAGE = {
    "nothing": "",
    "there is no _sqlite3": "sys.modules['_sqlite3'] = None",
    "_sqlite3 lacks a name": "import _sqlite3, sqlite3; del _sqlite3.SQLITE_NOTADB",
}


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_prolog_and_epilog_work_with_sqlites_c_module_and_with_the_package(
    node: Node, tmp_path: Path, sabotage: str
) -> None:
    """Where the C module is not what it was, the package is imported."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    if "no _sqlite3" in sabotage:  # as if the package of a later Python had it under another name
        (folder / "sqlite3.py").write_text(
            "import sys, importlib\ndel sys.modules['_sqlite3']\nfrom _sqlite3 import *\nimport _sqlite3\n"
            "vars().update({name: value for name, value in vars(_sqlite3).items() if name[:2] != '__'})\n"
        )
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; sys.path.append(sys.argv[2]);"
        f"{SABOTAGE[sabotage]}\n"
        "from hami_hpc.stages import epilog, prolog\n"
        "from hami_hpc.node.sqlite import sqlite3\n"
        "status = prolog.main(sys.argv[3:]) or epilog.main(sys.argv[3:])\n"
        "print(sqlite3.__name__)\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(folder), str(ROOT), *node.arguments]
    done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == ("_sqlite3" if sabotage == "nothing" else "sqlite3")
    assert node.spooled() == ["7.json"]
    node.assert_nothing_is_held()


def test_a_prolog_and_an_epilog_import_no_slow_module(node: Node) -> None:
    """Of a whole run, the second of a job id too: its record of usage is there already."""
    slow = (
        "typing re enum dataclasses inspect ast tomllib json datetime sqlite3 pathlib argparse glob subprocess "
        "asyncio click jinja2 pandas numpy pynvml"
    ) + (" syslog" if can_mount() else "")  # a node that cannot bound usage files warns at each job
    code = (
        "import sys; sys.path.append(sys.argv[1]); from hami_hpc.stages import epilog, prolog\n"
        "assert [stage.main(sys.argv[3:]) for stage in (prolog, epilog, prolog, epilog)] == [0] * 4\n"
        "print(' '.join(name for name in sys.argv[2].split() if name in sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), slow, *node.arguments]
    done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert len(node.spooled()) == 2


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")
