# SPDX-License-Identifier: Apache-2.0
"""native/include/rm_drivers.tsv against the code and the documents: on which drivers each request was seen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "native/include/rm_drivers.tsv"
ABI = (ROOT / "native/include/rm_abi.h").read_text()
FORMS = (ROOT / "native/interposer/driver/rm_forms.c").read_text()
SWITCHES = (ROOT / "native/interposer/driver/switches.c").read_text()
MEASURED = sorted(path for folder in ("benchmarks", "adr") for path in (ROOT / "docs" / folder).glob("*.md"))
VERSION = r"\b5\d\d\.\d+\.\d+\b"  # of a driver, in full


@dataclass(frozen=True, slots=True)
class Row:
    """A request (names of rm_abi.h, joined by a blank), and where it was seen."""

    driver: str
    gpu: str
    request: str
    how: str
    where: str


def rows() -> list[Row]:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return [Row(*line.split("\t")) for line in lines]


def requests_in_code() -> set[str]:
    """What rm_forms.c tells apart, and the controls that hooks and limits watch or send."""
    requests = {f"{number} {selector}" for number, selector in re.findall(r"\{(RM_NR_\w+), (RM_\w+),", FORMS)}
    requests |= {f"RM_NR_HEAP {name}" for name in re.findall(r"function == (RM_HEAP_\w+)", FORMS)}
    requests |= {f"RM_NR_ALLOC {name}" for name in re.findall(r"class_id == (RM_CLASS_\w+) \? HAMI_RM_", FORMS)}
    requests |= set(re.findall(r"(?:number|plain) == (RM_NR_\w+)", FORMS))
    commands = set(re.findall(r"#define (RM_\w+) 0x(?:274|(?:a06c|a06f|2080|90cd)\w{4})u", ABI))
    requests |= {f"RM_NR_ALLOC {name}" for name in re.findall(r"allocate\w*\(s, (RM_CLASS_\w+)", SWITCHES)}
    requests |= set(re.findall(r"RM_REQUEST\((RM_NR_MAP)\b", SWITCHES))
    layers = [ROOT / "native/interposer" / layer for layer in ("driver", "hooks", "limits")]
    text = "".join(path.read_text() for layer in layers for path in layer.glob("*.c"))
    return requests | {f"RM_NR_CONTROL {name}" for name in commands if re.search(rf"\b{name}\b", text)}


def test_every_request_has_a_row() -> None:
    wanted = requests_in_code()
    assert {"RM_NR_ALLOC RM_CLASS_DEVICE_MEMORY", "RM_NR_CONTROL RM_DISABLE_CHANNELS", "RM_NR_TRANSFER"} <= wanted
    known = {row.request for row in rows()}
    kinds = {request.split()[0] for request in known}
    assert {request for request in wanted if request not in known | kinds} == set(), f"add rows to {TABLE}"
    assert {request for request in known if request not in wanted} == set(), f"take out of {TABLE}"


def test_a_row_names_what_the_header_has() -> None:
    for row in rows():
        for name in row.request.split():
            assert re.search(rf"\b{name}\b", ABI), f"{name} is not in rm_abi.h"
        assert row.how in ("tried", "read")
        assert (row.how == "tried") == (row.gpu != "-")


def test_the_document_of_a_row_names_its_driver_and_gpu() -> None:
    for row in rows():
        text = (ROOT / row.where).read_text()
        assert row.gpu == "-" or row.gpu in text, row
        assert row.driver == "-" or re.search(rf"\b{re.escape(row.driver)}\b", text), row


def test_every_driver_that_a_document_measured_has_a_row() -> None:
    measured = {version for path in MEASURED for version in re.findall(VERSION, path.read_text())}
    assert measured, "no document names a driver"
    assert measured - {row.driver for row in rows() if row.how == "tried"} == set(), f"add rows to {TABLE}"


def test_the_simulation_shows_a_driver_that_was_tried() -> None:
    text = (ROOT / "native/sim/tools/sim-machine.c").read_text()
    assert set(re.findall(VERSION, text)) <= {row.driver for row in rows() if row.how == "tried"}
    assert re.findall(VERSION, text)
