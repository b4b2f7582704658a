# SPDX-License-Identifier: Apache-2.0
"""The words that a test can say: strings of its function, and of what it names in its own and in the tests' modules."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from documents import ROOT

# Where the tests' modules lie for one another (pythonpath in pyproject.toml, and pytest's own folder of a test).
FOLDERS = ("tests", "tests/cluster", "tests/packages", "tests/versions", "tests/unit", "benchmarks", "scripts")


@dataclass(frozen=True)
class Module:
    """The top level of a file: what it defines, and where what it imports comes from (module, name; "" for all)."""

    defined: Mapping[str, tuple[ast.stmt, ...]]
    imported: Mapping[str, tuple[str, str]]


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


@functools.cache
def module(path: Path) -> Module:
    defined: dict[str, tuple[ast.stmt, ...]] = {}
    imported: dict[str, tuple[str, str]] = {}
    package = path.parent.name if (path.parent / "__init__.py").exists() else ""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        for name in _names(statement):
            defined[name] = (*defined.get(name, ()), statement)
        if isinstance(statement, ast.Import):
            imported |= {alias.asname or alias.name: (alias.name, "") for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            origin = statement.module or package
            if statement.level and statement.module:
                origin = f"{package}.{origin}"
            imported |= {alias.asname or alias.name: (origin, alias.name) for alias in statement.names}
    return Module(defined, imported)


def _file(name: str, beside: Path) -> Path | None:
    relative = Path(*name.split("."))
    for folder in (beside, *(ROOT / folder for folder in FOLDERS)):
        if (found := folder / relative.with_suffix(".py")).exists():
            return found
    return None


def _uses(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(name, attribute) for each name that is used, and each parameter, which may be a fixture."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            yield part.value.id, part.attr
        elif isinstance(part, ast.Name):
            yield part.id, ""
        elif isinstance(part, ast.arg):
            yield part.arg, ""


def strings(path: Path, name: str) -> frozenset[str]:
    """The strings within `name` of a file and within all that it names. Empty where the file does not define it."""
    found: set[str] = set()
    seen: set[tuple[Path, str]] = set()
    waiting = [(path, name)]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        file, wanted = here
        top = module(file)
        for statement in top.defined.get(wanted, ()):
            found |= {
                part.value
                for part in ast.walk(statement)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
            for used, attribute in _uses(statement):
                if used in top.defined:
                    waiting.append((file, used))
                elif used in top.imported:
                    origin, what = top.imported[used]
                    if attribute and (whole := _file(f"{origin}.{what}" if what else origin, file.parent)):
                        waiting.append((whole, attribute))
                    elif what and (part_of := _file(origin, file.parent)):
                        waiting.append((part_of, what))
    return frozenset(found)


def words(path: Path, name: str) -> frozenset[str]:
    return frozenset(word for text in strings(path, name) for word in text.split())
