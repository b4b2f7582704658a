# SPDX-License-Identifier: Apache-2.0
"""The layers of native/interposer: by what its files include, and by what the built objects call.

A change in one layer is looked for in those above it only; each header declares what its own file implements; and
fork.c alone calls the modules' fork handlers. The last tests break each rule in a copy of what was read.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from hook_names import hook_names

ROOT = Path(__file__).resolve().parents[2]
INTERPOSER = ROOT / "native/interposer"
OBJECTS = ROOT / "build/native/interposer"
# Lowest first; a file uses its own layer and those before it. native/include lies below all of them.
LAYERS = ("arbitration", "base", "region", "driver", "limits", "hooks", "fork.c")
SHARED = {
    "hooks.def",
    "held.def",
    "rm_abi.h",
    "uvm_abi.h",
    "hami_contract.h",
    "hami_hpc.h",
}  # tables and layouts, for every layer
# Whose handler resets the locks of a module that has its lock in another one's struct.
HANDLER_OF = {"limits/outstanding": "limits/known", "region/region": "region/process"}
# Functions of header files that programs of users include: declared there, with bodies for programs.
FOR_PROGRAMS = {"hami_hint_begin", "hami_hint_end", "hami_hint_soon"}
GLOBAL = set("TDBRGSVWuC")  # nm's letters of what other objects can use


@dataclass(frozen=True, slots=True)
class Interposer:
    """Texts by file name; what each object defines and uses, by module (a file's name without its ending)."""

    texts: dict[str, str]
    defined: dict[str, frozenset[str]]
    used: dict[str, frozenset[str]]

    def includes(self, name: str) -> list[str]:
        return re.findall(r'^\s*#\s*include "([^"]+)"', self.texts[name], re.MULTILINE)

    def owner(self, symbol: str) -> str | None:
        return next((module for module, symbols in self.defined.items() if symbol in symbols), None)

    def edges(self) -> set[tuple[str, str]]:
        """(module, module that it includes or calls)."""
        pairs = {
            (module_of(name), module_of(other))
            for name in self.texts
            for other in self.includes(name)
            if other not in SHARED
        }
        for module, symbols in self.used.items():
            pairs |= {(module, owner) for symbol in symbols if (owner := self.owner(symbol))}
        return {(a, b) for a, b in pairs if a != b}


def module_of(name: str) -> str:
    """region/trust for region/trust.c and region/trust.h."""
    return str(Path(name).with_suffix(""))


def layer(module: str) -> int:
    return LAYERS.index(module.split("/")[0] if "/" in module else f"{module}.c")


def symbols(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """What the object defines for others, and what it uses of others'."""
    lines = subprocess.run(["nm", "-P", str(path)], capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = [line.split()[:2] for line in lines]
    return (
        frozenset(name for name, kind in pairs if kind in GLOBAL),
        frozenset(name for name, kind in pairs if kind in "Uw"),
    )


@cache
def interposer() -> Interposer:
    names = [str(p.relative_to(INTERPOSER)) for p in INTERPOSER.rglob("*") if p.suffix in (".c", ".h", ".S")]
    texts = {name: (INTERPOSER / name).read_text() for name in names}
    defined: dict[str, frozenset[str]] = {}
    used: dict[str, frozenset[str]] = {}
    for name in sorted(set(names)):
        built = OBJECTS / f"{name}.o"
        if name.endswith(".h"):
            continue
        assert built.exists(), f"{built} is not there: make native"
        assert built.stat().st_mtime >= (INTERPOSER / name).stat().st_mtime, f"{built} is old: make native"
        defined[module_of(name)], used[module_of(name)] = symbols(built)
    return Interposer(texts, defined, used)


def hooks() -> set[str]:
    """What the application's linker sees: declared by cuda.h, nvml.h and the C library."""
    return {*hook_names(), "dlsym", "ioctl"}


def outside_of_braces(text: str) -> str:
    """A C text without comments, directives, and the bodies of functions, structs and macros."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.MULTILINE)
    while (shorter := re.sub(r"\{[^{}]*\}", "@", text)) != text:
        text = shorter
    return text


def declarations(text: str) -> set[str]:
    """Names of functions and variables that are declared for others, and not defined, in a C text."""
    names: set[str] = set()
    for statement in outside_of_braces(text).replace("@", "@;").split(";"):  # @: what was in braces
        bare = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", statement).strip()
        if not bare or "@" in bare or bare.startswith(("static", "typedef", "_Static_assert")):
            continue
        function = re.match(r"[\w\s*]*?\b(\w+)\s*\(", bare)
        variable = re.match(r"extern\b.*?(\w+)\s*(?:\[.*)?$", bare, re.DOTALL)
        names |= {match[1] for match in (function or variable,) if match}
    return names


# ------------------------------------------------------------------------------------------- rules


def upward(tree: Interposer) -> list[str]:
    return sorted(f"{a} uses {b}, of a higher layer" for a, b in tree.edges() if layer(b) > layer(a))


def circle(tree: Interposer) -> list[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for a, b in tree.edges():
        sorter.add(a, b)
    try:
        sorter.prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def misplaced(tree: Interposer) -> list[str]:
    """Declarations that are not in the header of the file that implements them, and functions that have none."""
    out = []
    declared = {name: declarations(text) for name, text in tree.texts.items() if not name.endswith(".S")}
    for module, names in tree.defined.items():
        for symbol in names - hooks() - FOR_PROGRAMS:
            places = {name for name, symbols in declared.items() if symbol in symbols}
            if places != {f"{module}.h"}:
                out.append(f"{symbol} of {module} is declared in {sorted(places) or 'no file'}")
    for name, symbols in declared.items():
        for symbol in symbols - tree.defined.get(module_of(name), frozenset()):
            out.append(f"{name} declares {symbol}, which its own file does not implement")
    return sorted(set(out))


def without_handler(tree: Interposer) -> list[str]:
    """Modules with a lock and no fork handler; handlers that fork.c does not call, or that others call."""
    out = []
    for module, names in tree.used.items():
        owner = HANDLER_OF.get(module, module)
        if "pthread_mutex_lock" in names and not any(s.endswith("_forked") for s in tree.defined[owner]):
            out.append(f"{module} has a lock and no fork handler")
        if "pthread_atfork" in names and module != "fork":
            out.append(f"{module} calls pthread_atfork")
    for module, names in tree.defined.items():
        for handler in (name for name in names if name.endswith("_forked")):
            if (users := sorted(m for m, used in tree.used.items() if handler in used)) != ["fork"]:
                out.append(f"{handler} of {module} is called by {users or 'nobody'}, not by fork alone")
    return sorted(out)


# ------------------------------------------------------------------------------------------- what is there


def test_every_file_lies_in_a_layer() -> None:
    tree = interposer()
    assert {name for name in tree.texts if "/" not in name} == {"fork.c"}
    assert {name.split("/")[0] for name in tree.texts} == set(LAYERS)
    for name in tree.texts:
        assert not name.endswith(".h") or module_of(name) in tree.defined, f"{name} has no file of its own"
        for other in tree.includes(name):
            assert other in tree.texts or other in SHARED, f'{name} includes "{other}": write LAYER/NAME.h'


def test_the_objects_were_read() -> None:
    tree = interposer()
    assert "hami_region_charge" in tree.used["limits/charge"]
    assert ("hooks/dlsym", "driver/libc") in tree.edges()
    assert tree.owner("cuLaunchKernel") == "hooks/launch"
    assert {"hami_cuda", "hami_launch_flag"} <= tree.used["hooks/launch"]


def test_no_layer_uses_a_higher_one() -> None:
    assert upward(interposer()) == []


def test_no_circle_of_files() -> None:
    assert circle(interposer()) == []


def test_each_header_declares_what_its_own_file_implements() -> None:
    assert misplaced(interposer()) == []


def test_fork_c_alone_calls_every_fork_handler() -> None:
    assert "pthread_atfork" in interposer().used["fork"]
    assert without_handler(interposer()) == []


# ------------------------------------------------------------------------------------------- what must be found


def with_text(name: str, addition: str) -> Interposer:
    tree = interposer()
    return replace(tree, texts=tree.texts | {name: tree.texts[name] + addition})


def with_use(module: str, *names: str) -> Interposer:
    tree = interposer()
    return replace(tree, used=tree.used | {module: tree.used[module] | set(names)})


def test_an_include_of_a_higher_layer_is_found() -> None:
    assert upward(with_text("base/log.c", '#include "limits/share.h"\n')) == [
        "base/log uses limits/share, of a higher layer"
    ]


def test_a_call_of_a_higher_layer_is_found() -> None:
    assert upward(with_use("driver/resolve", "cuLaunchKernel")) == [
        "driver/resolve uses hooks/launch, of a higher layer"
    ]


@pytest.mark.parametrize("broken", ["include", "call"])
def test_a_circle_within_a_layer_is_found(broken: str) -> None:
    tree = (
        with_text("limits/charge.h", '#include "limits/channels.h"\n')
        if broken == "include"
        else with_use("limits/gate", "hami_share_begin")
    )
    assert upward(tree) == []
    assert circle(tree) != []


def test_a_declaration_in_another_file_is_found() -> None:
    for name in ("region/process.h", "region/process.c"):
        assert misplaced(with_text(name, "int hami_region_charge(struct hami_region *region, uint64_t bytes);\n"))
    assert misplaced(with_text("base/log.h", "extern _Atomic int hami_launch_flag;\n"))
    assert misplaced(with_text("base/log.h", "void hami_nobody_implements_this(void);\n"))


def test_a_function_without_a_declaration_is_found() -> None:
    tree = interposer()
    assert misplaced(replace(tree, defined=tree.defined | {"base/log": tree.defined["base/log"] | {"hami_log_more"}}))


def test_a_module_without_its_fork_handler_is_found() -> None:
    tree = interposer()
    assert without_handler(with_use("base/log", "pthread_mutex_lock"))
    assert without_handler(with_use("region/process", "pthread_atfork"))
    assert without_handler(with_use("limits/share", "hami_gate_forked"))
    assert without_handler(replace(tree, used=tree.used | {"fork": tree.used["fork"] - {"hami_table_forked"}}))
