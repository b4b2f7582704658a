# SPDX-License-Identifier: Apache-2.0
"""For every tier: each run has a temporary directory of its own, and no property test has a deadline.

What a property test tries is the same in each run: CI has the answer of a run before it. `--hypothesis-seed=N` and
HAMI_TEST_EACH=1 (`make test-all-points`, at random) try others.
"""

import os
import sys

import pytest
from harness import run_directory
from harness.run_directory import pytest_sessionfinish, pytest_unconfigure

EACH = os.environ.get("HAMI_TEST_EACH") == "1"

# Whatever the environment says: else each worker of a run rewrites the asserts of all files, 15 s of CPU time.
sys.dont_write_bytecode = False

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a machine with a GPU that runs tests/gpu alone
    pass
else:
    if settings.get_current_profile_name() == "default":  # not that of tests/mutation
        # A busy machine is no fault of what is tested.
        examples = 100 if EACH else 40  # where a test says no number
        settings.register_profile(
            "hami_hpc", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
        )
        settings.load_profile("hami_hpc")

__all__ = ["pytest_configure", "pytest_sessionfinish", "pytest_unconfigure"]


@pytest.hookimpl(tryfirst=True)  # before that of Hypothesis, which takes the seed
def pytest_configure(config: pytest.Config) -> None:
    run_directory.pytest_configure(config)
    if not EACH and getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = "1"
