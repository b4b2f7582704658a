# SPDX-License-Identifier: Apache-2.0
"""Layout is judged by a browser, which is a large package for one page: without it, what is not judged is said."""

from __future__ import annotations

import shutil

import pytest

HAS_BROWSER = shutil.which("chromium") is not None


def pytest_report_header() -> str | None:
    return (
        None
        if HAS_BROWSER
        else "no chromium: the layout of accounting's pages is not judged (apt-get install chromium)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if HAS_BROWSER or config.pluginmanager.has_plugin("all_tiers"):  # make test leaves nothing out
        return
    judged = [item for item in items if item.get_closest_marker("browser")]
    config.hook.pytest_deselected(items=judged)
    items[:] = [item for item in items if item not in judged]
