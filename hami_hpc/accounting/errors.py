# SPDX-License-Identifier: Apache-2.0
"""The error that accounting raises."""

from __future__ import annotations

from hami_hpc.errors import HamiError


class AccountingError(HamiError):
    """An error that the operator must fix. The message says what failed and what to do."""

    code = "E_ACCOUNTING"
