# SPDX-License-Identifier: Apache-2.0
"""For every tier: each run has a temporary directory of its own, and no property test has a deadline."""

import os
import sys

from harness.run_directory import pytest_configure, pytest_sessionfinish, pytest_unconfigure

# Whatever the environment says: else each worker of a run rewrites the asserts of all files, 15 s of CPU time.
sys.dont_write_bytecode = False

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a machine with a GPU that runs tests/gpu alone
    pass
else:
    if settings.get_current_profile_name() == "default":  # not that of tests/mutation
        # A busy machine is no fault of what is tested.
        examples = 100 if os.environ.get("HAMI_TEST_EACH") == "1" else 40  # where a test says no number
        settings.register_profile(
            "hami_hpc", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
        )
        settings.load_profile("hami_hpc")

__all__ = ["pytest_configure", "pytest_sessionfinish", "pytest_unconfigure"]
