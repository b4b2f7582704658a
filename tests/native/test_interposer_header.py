# SPDX-License-Identifier: Apache-2.0
"""What the installed cuda.h declares against what the interposer knows, so that a new CUDA cannot slip anything past.

The rules are generous on purpose: a name that only sounds like it gets a row that says why it does not matter.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from conformance import ROOT
from hook_names import hook_names

INTERPOSER_DIR = ROOT / "native/interposer"
ALLOCATES = re.compile(
    "Alloc|Create|Pool|Import|Reserve|Register|Retain|Load|Instantiate|Upload|Open|Link|Limit|Mapped|MapResources|MemMap"
    "|Prefetch|Multicast|GraphAdd|GraphExecUpdate|Attach|Checkpoint|Clone|EnablePeer"
)
STARTS_WORK = re.compile(
    "Launch|GraphUpload|GraphExecUpdate|KernelNode|Memset|Memcpy|MemOp|Decompress|Prefetch|Discard|(Write|Wait)Value"
    "|SemaphoresAsync|MapArrayAsync|BeginCapture|BeginRecapture|AddCallback"
)
TABLES = {
    "allocators.tsv": (ALLOCATES, {"rm", "hook", "elsewhere", "host", "none"}),
    "launches.tsv": (STARTS_WORK, {"hook", "copy", "record", "sync", "host"}),
}


@cache
def header() -> str:
    found = sorted(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/include/cuda.h"))
    assert found, "cuda.h is not installed: make setup"
    return found[0].read_text()


def declared() -> set[str]:
    """Every function of cuda.h by its exported name: those declared, and those that a macro turns them into."""
    functions = set(re.findall(r"CUDAAPI\s*\*?\s*(cu[A-Z]\w*)\s*\(", header()))
    renamed = set(re.findall(r"#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)", header()))
    return functions | renamed | per_thread()


def per_thread() -> set[str]:
    """The exported names of the forms for per-thread default streams: cuLaunchKernel_ptsz, cuMemcpy_ptds, ..."""
    forms = re.findall(r"__CUDA_API_PT(SZ|DS)\(\s*(cu[A-Z]\w*)\s*\)", header())
    return {f"{name}_pt{kind.lower()}" for kind, name in forms}


def base(name: str) -> str:
    """The name without its version and form: cuMemcpyHtoD for cuMemcpyHtoD_v2_ptds."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


def rows(path: Path) -> dict[str, tuple[str, str]]:
    out: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, where, why = line.split("\t")
        assert name not in out, f"{name} has two rows"
        assert why
        out[name] = (where, why)
    return out


def hooked() -> set[str]:
    return set(hook_names("CUDA"))


def test_the_header_is_read_whole() -> None:
    """The reading itself: as many functions as there are declarations, and names of each kind."""
    assert len(declared()) > 500
    assert header().count("CUDAAPI *CU") < 20  # the rest are types of callbacks, not functions
    assert {"cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds", "cuCtxCreate_v4"} <= declared()


@pytest.mark.parametrize("table", TABLES)
def test_every_function_that_may_matter_has_a_row(table: str) -> None:
    rule, kinds = TABLES[table]
    known = rows(INTERPOSER_DIR / table)
    candidates = {base(name) for name in declared() if rule.search(name)}
    assert candidates - known.keys() == set(), f"new in cuda.h: decide, and add rows to {table}"
    assert known.keys() - candidates == set(), f"no longer in cuda.h: take out of {table}"
    assert {where for where, _why in known.values()} <= kinds


@pytest.mark.parametrize("table", TABLES)
def test_what_a_row_calls_a_hook_is_one(table: str) -> None:
    bases = {base(name) for name in hooked()}
    for name, (where, _why) in rows(INTERPOSER_DIR / table).items():
        assert (where != "hook") or name in bases, f"{table} calls {name} a hook, hooks.def does not"


def test_every_version_and_form_of_a_launch_is_hooked() -> None:
    launches = {name for name, (where, _why) in rows(INTERPOSER_DIR / "launches.tsv").items() if where == "hook"}
    assert {name for name in declared() if base(name) in launches} - hooked() == set()


def test_every_capture_that_begins_or_ends_is_hooked() -> None:
    """A recording of the keeper's own would spoil one that it does not know of (limits/outstanding.h)."""
    captures = {name for name in declared() if re.search(r"(Begin|End)(Re)?[cC]apture", name)}
    assert {"cuStreamBeginCapture_v2_ptsz", "cuStreamBeginCaptureToGraph", "cuStreamEndCapture_ptsz"} <= captures
    assert captures - hooked() == set()


def test_every_end_of_a_context_is_hooked() -> None:
    """The keeper asks every context that it knows, so it must hear first of each that may go."""
    ends = {name for name in declared() if re.search(r"Ctx(Destroy|Detach|Release|Reset)(_v\d+)?$", name)}
    assert {"cuCtxDestroy_v2", "cuDevicePrimaryCtxRelease", "cuGreenCtxDestroy"} <= ends
    assert ends - hooked() == set()


def test_every_version_of_a_hooked_allocator_is_hooked() -> None:
    allocators = {name for name, (where, _why) in rows(INTERPOSER_DIR / "allocators.tsv").items() if where == "hook"}
    assert {name for name in declared() if base(name) in allocators} - hooked() == set()
