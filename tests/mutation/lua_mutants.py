# SPDX-License-Identifier: Apache-2.0
"""Changes of one token in the filters' Lua parser, and whether the vectors' tests notice them.

tests/unit/test_lua_vectors.py judges a copy of the modules in which one token is changed: an operator, a comparison, a
number, true and false, and and or, a `not`, a call that stands as a statement.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/unit"))

import lua_process  # noqa: E402  it lies in tests/unit
import test_lua_vectors  # noqa: E402

MODULES: Final = "slurm-plugins/lua"
FILES: Final = ("hami_hpc_request.lua", "hami_hpc_units.lua")
INTERPRETER: Final = "lua5.4"
LIMIT_S: Final = 20
SWAPS: Final = {
    "==": ("~=",), "~=": ("==",), "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
    "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("*",), "..": (), "#": (),
    "and": ("or",), "or": ("and",), "not": ("",), "true": ("false",), "false": ("true",), "break": ("",),
}  # fmt: skip
TOKEN: Final = re.compile(
    r"""--\[\[.*?\]\]|--[^\n]*|\[\[.*?\]\]|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
    r"""|\d+(?:\.\d+)?|[A-Za-z_]\w*|==|~=|<=|>=|\.\.|[-+*/%<>#]""",
    re.DOTALL,
)
CALL: Final = re.compile(r"^\t+([\w.:]+\(.*\))$", re.MULTILINE)
FUNCTION: Final = re.compile(r"^\s*(?:local )?function ([\w.:]+)", re.MULTILINE)

Found = tuple[str, str, str]  # file, function, change


def _edits(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and new text of every change."""
    for token in TOKEN.finditer(text):
        if token[0].isdigit():
            yield token.start(), token.end(), str(int(token[0]) + 1)
        else:
            for new in SWAPS.get(token[0], ()):
                yield token.start(), token.end(), new
    for call in CALL.finditer(text):
        yield call.start(1), call.end(1), ""


def _line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : text.find("\n", at)].strip()


def mutants_of(file: str) -> dict[Found, str]:
    """The changed texts of a file. Changes that give the same line in the same function count once."""
    text = (ROOT / file).read_text()
    found = {}
    for start, end, new in _edits(text):
        changed = text[:start] + new + text[end:]
        before = [match[1] for match in FUNCTION.finditer(text, 0, start)]
        function = before[-1] if before else "(module)"
        found[(file, function, f"{_line(text, start)} -> {_line(changed, start)}")] = changed
    return found


def all_mutants() -> list[Found]:
    """All changes of all files."""
    return [found for name in FILES for found in mutants_of(f"{MODULES}/{name}")]


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError


def vectors_pass() -> bool:
    """Whether every test of the vectors passes with the modules that LuaProcess uses now."""
    tests = [test for name, test in vars(test_lua_vectors).items() if name.startswith("test_")]
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    process = lua_process.LuaProcess(INTERPRETER)
    try:
        for test in tests:
            test(process)
    except (Exception, pytest.fail.Exception):  # also an answer that is no answer, a process that ended or hangs
        return False
    finally:
        signal.alarm(0)
        process.kill()
    return True


def unnoticed(chosen: Iterable[Found]) -> list[Found]:
    """The changes that the vectors do not notice."""
    missed = []
    texts: dict[str, dict[Found, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "lua"
        vars(lua_process)["MODULES"] = changed
        for found in chosen:
            file = found[0]
            shutil.rmtree(changed, ignore_errors=True)
            shutil.copytree(ROOT / MODULES, changed)
            if not texts:
                assert vectors_pass(), "the vectors fail without any change"
            (changed / Path(file).name).write_text(texts.setdefault(file, mutants_of(file))[found])
            if vectors_pass():
                missed.append(found)
    return missed
