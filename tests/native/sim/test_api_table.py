# SPDX-License-Identifier: Apache-2.0
"""The simulation's table of driver functions against NVIDIA's own headers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^API(?:_STREAM|_ALIAS)?\((\w+), (\w+), (\d+)", re.M)


def headers() -> Path:
    (found,) = sorted((ROOT / ".venv" / "lib").glob("python3*/site-packages/nvidia/cu13/include"))
    return found


def rows() -> list[tuple[str, str, int]]:
    text = (ROOT / "native" / "sim" / "cuda" / "api.def").read_text()
    return [(base, symbol, int(version)) for base, symbol, version in ROW.findall(text)]


def test_each_version_is_one_that_the_header_names() -> None:
    typedefs = (headers() / "cudaTypedefs.h").read_text()
    known = {(name, int(version)) for name, version in re.findall(r"PFN_(cu\w+?)_v(\d+)(?:_pt[ds][sz])?\)", typedefs)}
    # The new signature of cuGraphInstantiate came with 12.0 under the name of another function.
    unknown = [r for r in rows() if (r[0], r[2]) not in known and r[1] != "cuGraphInstantiateWithFlags"]
    assert len(rows()) > 150
    assert unknown == []


def test_the_newest_version_of_a_name_is_what_a_program_is_compiled_to() -> None:
    header = (headers() / "cuda.h").read_text()
    meant = dict(re.findall(r"#define (cu\w+) +(?:__CUDA_API_PT[DS][SZ]\()?(cu\w+)\)? *\n", header))
    newest: dict[str, tuple[int, str]] = {}
    for base, symbol, version in rows():
        newest[base] = max(newest.get(base, (0, "")), (version, symbol))
    wrong = {base: symbol for base, (_, symbol) in newest.items() if meant.get(base, base) != symbol}
    assert wrong == {}
