# SPDX-License-Identifier: Apache-2.0
"""Lines for the administrator in syslog."""

from __future__ import annotations

import syslog

from hami_hpc.contract import constants as c

ERROR, WARNING = syslog.LOG_ERR, syslog.LOG_WARNING


def to_syslog(level: int, message: str) -> None:
    """Writes one line under the name hami-hpc. Never fails, also where no syslog daemon runs, and for bytes of a user's
    that are no text."""
    syslog.openlog("hami-hpc", syslog.LOG_PID, syslog.LOG_DAEMON)
    text = (c.ERROR_PREFIX + message).replace("\0", "?")
    syslog.syslog(level, text.encode(errors="replace").decode())
