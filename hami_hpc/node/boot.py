# SPDX-License-Identifier: Apache-2.0
"""Facts of this node that only the kernel knows."""

from __future__ import annotations

from hami_hpc.errors import NodeError

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The kernel's id of this boot. NodeError when /proc does not tell."""
    try:
        with open(BOOT_ID, encoding="utf-8") as file:
            return file.read(64).strip()
    except OSError as error:
        raise NodeError(f"{BOOT_ID} cannot be read ({error.strerror}); is /proc mounted?") from error


def booted_unix_ns() -> int:
    """When this boot began, ns since 1970, to the second. NodeError when /proc does not tell."""
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            for line in file:
                if line.startswith("btime "):
                    return int(line.split()[1]) * 1_000_000_000
    except OSError as error:
        raise NodeError(f"/proc/stat cannot be read ({error.strerror}); is /proc mounted?") from error
    raise NodeError("/proc/stat has no btime line")
