# SPDX-License-Identifier: Apache-2.0
"""The order of accounting's packages: each imports what stands before it and nothing that stands after it."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ACCOUNTING = "hami_hpc.accounting"
# errors.py and times.py lie beside the packages and are for all of them.
LAYERS = ("errors", "times", "sources", "store", "pricing", "documents", "formats")
# Of the rest of hami_hpc, accounting knows settings, the contract, sizes of slices, host lists, and text for people.
ALLOWED_OUTSIDE = (
    "hami_hpc.contract.constants",
    "hami_hpc.core.duration",
    "hami_hpc.core.hostlist",
    "hami_hpc.core.sizes",
    "hami_hpc.errors",
    "hami_hpc.node.config",
)


def _modules(folder: str) -> dict[str, Path]:
    """Dotted name -> file of each module below ``folder``."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def _imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of hami_hpc that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute here"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else node.module for name in whole}
    return {name for name in names if name.startswith("hami_hpc")}


def _layer(module: str) -> int:
    return LAYERS.index(module.removeprefix(ACCOUNTING + ".").partition(".")[0])


KNOWN = _modules("hami_hpc")


@pytest.mark.parametrize("module", [name for name in KNOWN if name.startswith(ACCOUNTING + ".")])
def test_a_module_of_accounting_imports_only_layers_before_its_own(module: str) -> None:
    for imported in _imports(KNOWN[module], KNOWN):
        if imported.startswith(ACCOUNTING + "."):
            assert _layer(imported) <= _layer(module), f"{module} imports {imported}"
        else:
            assert imported in ALLOWED_OUTSIDE, f"{module} imports {imported}"


def test_no_modules_of_hami_hpc_import_each_other_in_a_circle() -> None:
    graph = {name: _imports(path, KNOWN) & KNOWN.keys() for name, path in KNOWN.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    "module", [name for name in KNOWN if not name.startswith((ACCOUNTING, "hami_hpc.cli.accounting_"))]
)
def test_nothing_on_the_side_of_the_node_imports_accounting(module: str) -> None:
    assert not [name for name in _imports(KNOWN[module], KNOWN) if name.startswith(ACCOUNTING)]
