# SPDX-License-Identifier: Apache-2.0
"""Unmounts after each unit test what it mounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.mounting import unmount_below


@pytest.fixture(autouse=True)
def unmounted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unmounts everything below the test's folder, which pytest deletes later."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        unmount_below(folder)
