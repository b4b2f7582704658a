# SPDX-License-Identifier: Apache-2.0
"""What accounting raises for people to read."""

from __future__ import annotations

from hami_hpc.errors import HamiError


class AccountingError(HamiError):
    """Something that the operator must mend; the message says what failed and what to do."""

    code = "E_ACCOUNTING"
