# SPDX-License-Identifier: Apache-2.0
"""No unit test leaves a mount behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def unmounted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unmounts what the node under test mounted below the test's folder: pytest removes that one day."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        from node_testbed import unmount_below

        unmount_below(folder)
