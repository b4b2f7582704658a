# SPDX-License-Identifier: Apache-2.0
"""Reads the id and the time of this boot from /proc."""

from __future__ import annotations

from hami_hpc.errors import NodeError

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Returns the kernel's id of this boot. Raises NodeError when /proc cannot be read."""
    try:
        with open(BOOT_ID, encoding="utf-8") as file:
            return file.read(64).strip()
    except OSError as error:
        raise NodeError(f"{BOOT_ID} cannot be read ({error.strerror}); is /proc mounted?") from error


def booted_unix_ns() -> int:
    """Returns when this boot began, in ns since 1970, exact to the second. Raises NodeError when /proc has no time."""
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            for line in file:
                if line.startswith("btime "):
                    return int(line.split()[1]) * 1_000_000_000
    except OSError as error:
        raise NodeError(f"/proc/stat cannot be read ({error.strerror}); is /proc mounted?") from error
    raise NodeError("/proc/stat has no btime line")
