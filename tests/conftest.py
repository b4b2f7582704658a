# SPDX-License-Identifier: Apache-2.0
"""For every tier: each run has a temporary directory of its own."""

from harness.run_directory import pytest_configure, pytest_sessionfinish, pytest_unconfigure

__all__ = ["pytest_configure", "pytest_sessionfinish", "pytest_unconfigure"]
