# SPDX-License-Identifier: Apache-2.0
"""The table of isolation backends: which there are, which a job gets, and what happens where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.isolation import table
from hami_hpc.isolation.table import BACKENDS, backend_of, check_modes, mode_of_job

ROOT = Path(__file__).resolve().parents[2]


def test_each_backend_is_of_a_mode_of_the_contract_and_has_its_side_in_spank() -> None:
    assert BACKENDS.keys() <= c.MODES.keys()
    rows = re.findall(r"\[HAMI_MODE_(\w+)\] = &", (ROOT / "slurm-plugins/spank/backend.c").read_text())
    assert {row.lower() for row in rows} == BACKENDS.keys()


def test_each_backend_is_a_module_named_after_its_mode() -> None:
    assert [getattr(backend, "__name__", "") for backend in BACKENDS.values()] == [
        f"hami_hpc.isolation.{mode}" for mode in BACKENDS
    ]


@pytest.fixture
def share_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that has no other backend."""
    monkeypatch.setattr(table, "BACKENDS", {"share": BACKENDS["share"]})


@pytest.mark.usefixtures("share_alone")
def test_a_mode_without_a_backend_is_refused_and_the_message_says_what_to_do() -> None:
    with pytest.raises(NodeError, match="does not support mode=mig, only share"):
        backend_of("mig")
    with pytest.raises(NodeError, match=r"modes offers mig, .* Remove it from modes in"):
        check_modes(["share", "mig"], "/etc/hami-hpc/hami-hpc.toml")


def test_modes_that_have_backends_pass() -> None:
    check_modes(list(BACKENDS), "hami-hpc.toml")


@pytest.mark.parametrize(
    ("constraints", "mode"),
    [
        ("", "share"),
        ("vgpu_mig", "mig"),
        ("bigmem&vgpu_mig&vgpu_type_h200", "mig"),
        ("(fast|slow)&vgpu_share", "share"),
        ("vgpu_migrate", "share"),
        ("vgpu_mps", "share"),  # not offered here: Slurm would not have sent the job
    ],
)
def test_a_job_gets_the_mode_that_its_features_name_else_the_first(constraints: str, mode: str) -> None:
    assert mode_of_job(["share", "mig"], constraints) == mode


@pytest.mark.usefixtures("share_alone")
def test_the_prolog_of_a_node_that_offers_more_than_there_is_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node.make(tmp_path / "node")
    with node.config.open("a") as config:
        config.write('[vgpu]\nmodes = ["share", "mps"]\n')
    assert node.prolog(7) == 1
    assert "modes offers mps" in capsys.readouterr().err
    assert node.grants() == {}
