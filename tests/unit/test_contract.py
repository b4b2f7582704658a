# SPDX-License-Identifier: Apache-2.0
"""The contract: its generated files are up to date, its texts can be filled, and the core stays pure."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from hami_hpc import errors
from hami_hpc.accounting.sources import usage_records
from hami_hpc.contract import constants, generate
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import Usage, usage_record

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = tomllib.loads(generate.SOURCE.read_text(encoding="utf-8"))
PURE_OUTSIDE_CORE = (
    *("slurm/lines", "render/filters", "render/marks", "render/merging", "render/node_lines", "render/offer"),
)
CORE = [*sorted((ROOT / "hami_hpc/core").glob("*.py")), *(ROOT / f"hami_hpc/{name}.py" for name in PURE_OUTSIDE_CORE)]
PLACEHOLDERS = set(errors.Refusal.__slots__)
# Modules of the standard library that read no clock, file, environment or process, and our own pure ones.
PURE_NAMES = """
__future__ _collections ast bisect collections contextlib dataclasses decimal enum fnmatch fractions functools hashlib
heapq itertools json math operator re shlex string struct typing unicodedata
"""
PURE = frozenset(PURE_NAMES.split())
PURE_OURS = (
    "hami_hpc.core",
    "hami_hpc.contract",
    "hami_hpc.errors",
    *(f"hami_hpc.{name.replace('/', '.')}" for name in PURE_OUTSIDE_CORE),
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})


@pytest.mark.parametrize("path", generate.outputs(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_generated_file_is_what_the_contract_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.outputs()[path], "run `make generate` and commit the result"


@pytest.mark.parametrize(("code", "text"), CONTRACT["errors"]["codes"].items())
def test_an_error_text_is_one_printable_line_that_can_be_filled(code: str, text: str) -> None:
    assert re.fullmatch(r"E_[A-Z_]+", code)
    assert text.isascii()
    assert text.isprintable()
    assert set(re.findall(r"\{([a-z]+)\}", text)) <= PLACEHOLDERS
    assert "{" not in errors.request_error(code).message


def test_every_error_code_is_raised_somewhere() -> None:
    sources = [*(ROOT / "slurm-plugins/lua").glob("*.lua"), *(ROOT / "hami_hpc").rglob("*.py")]
    generated = set(generate.outputs())
    used = "\n".join(path.read_text(encoding="utf-8") for path in sources if path not in generated)
    assert [code for code in CONTRACT["errors"]["codes"] if f'"{code}"' not in used] == []


def imports_of(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            names.add(node.module or "")
    return names


def is_pure(module: str) -> bool:
    return module.split(".")[0] in PURE or any(module == ours or module.startswith(ours + ".") for ours in PURE_OURS)


def calls_of(tree: ast.AST) -> set[str]:
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_the_core_is_there() -> None:
    assert {"request.py", "units.py"} <= {path.name for path in CORE}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_a_core_module_imports_nothing_that_reads_the_world(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert sorted(name for name in imports_of(tree) if not is_pure(name)) == []
    assert sorted(calls_of(tree) & IMPURE_CALLS) == []


def test_what_the_core_imports_is_itself_as_pure() -> None:
    for module in ("hami_hpc.errors", "hami_hpc.contract.constants"):
        path = ROOT / (module.replace(".", "/") + ".py")
        assert (
            sorted(name for name in imports_of(ast.parse(path.read_text(encoding="utf-8"))) if not is_pure(name)) == []
        )


@pytest.mark.parametrize(
    "source", ["import os", "from time import time", "import pynvml", "from hami_hpc.node import x"]
)
def test_the_purity_test_sees_an_impure_import(source: str) -> None:
    assert [name for name in imports_of(ast.parse(source)) if not is_pure(name)]


def test_the_pure_modules_are_of_the_standard_library() -> None:
    assert set(sys.stdlib_module_names) >= PURE


def test_the_epilog_writes_and_accounting_reads_each_field_of_the_usage_record() -> None:
    grant = Grant(7, 65534, "GPU-1", 0, 143156, "h200", 8192, 50, "std", "cap", "share", 10**18)
    record = usage_record(grant, Usage("ok", 1, 2, 3, 4, 5, 6), 2 * 10**18)
    kinds = {"int": int, "text": str}
    assert list(record) == list(constants.SPOOL_FIELDS)
    assert [type(value) for value in record.values()] == [kinds[kind] for kind in constants.SPOOL_FIELDS.values()]
    read = dict(zip(usage_records.FIELDS, usage_records.parse_record(json.dumps(record)), strict=True))
    assert read.items() <= record.items()
    assert record.keys() - read.keys() == {"version", "mode", "start", "end", "history"}


@pytest.mark.parametrize("name", sorted(set(constants.SPOOL_FIELDS) - {"version", "mode", "start", "end", "history"}))
def test_a_usage_record_without_a_field_is_refused_unless_the_contract_has_a_default(name: str) -> None:
    grant = Grant(7, 65534, "GPU-1", 0, 143156, "h200", 8192, 50, "std", "cap", "share", 10**18)
    record = usage_record(grant, Usage("ok", 1, 2, 3, 4, 5, 6), 2 * 10**18)
    del record[name]
    if name in constants.SPOOL_DEFAULTS:
        values = dict(zip(usage_records.FIELDS, usage_records.parse_record(json.dumps(record)), strict=True))
        assert values[name] == constants.SPOOL_DEFAULTS[name]
    else:
        with pytest.raises(usage_records.UsageRecordError, match=name):
            usage_records.parse_record(json.dumps(record))
