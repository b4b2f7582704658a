# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests: unmounts after each what it mounted, and a node whose jobs have mode=mps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.mounting import unmount_below
from mps_testbed import MpsNode
from own_process import pytest_pyfunc_call as pytest_pyfunc_call  # a hook


@pytest.fixture(autouse=True)
def unmounted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unmounts everything below the test's folder, which pytest deletes later."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        unmount_below(folder)


@pytest.fixture
def mps_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsNode]:
    """A node that offers mode=mps, with the simulated daemon. PATH begins with a folder that is not there: what root
    starts is not looked for there."""
    with MpsNode.running() as made:
        monkeypatch.setenv("HAMI_SIM", str(made.root.parent / "sim"))
        monkeypatch.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
        yield made
