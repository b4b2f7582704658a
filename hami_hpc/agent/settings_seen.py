# SPDX-License-Identifier: Apache-2.0
"""Which settings changed since the agent read them last: <state_dir>/settings-seen.json, which root alone writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from hami_hpc.node import root_file
from hami_hpc.node.config import Settings

NAME = "settings-seen.json"
MAX_BYTES = 1 << 20
NAMED_MAX = 8


def flat(settings: Settings) -> dict[str, str]:
    """Returns every value of the settings under its name, such as `agent.actions.no_job`."""
    found: dict[str, str] = {}

    def add(name: str, value: object) -> None:
        if hasattr(value, "_asdict"):
            value = value._asdict()
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{name}.{key}" if name else str(key), inner)
        elif value is not None:
            found[name] = str(list(value)) if isinstance(value, tuple | list) else str(value)

    add("", settings)
    return found


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Returns what changed, in one line; "" for nothing."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    said = [f"{name}: {before.get(name, 'not set')} -> {after.get(name, 'not set')}" for name in names[:NAMED_MAX]]
    more = f"; and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return "; ".join(said) + more


def update(settings: Settings) -> str:
    """Returns what changed since the last time, "" for nothing and the first time; keeps the settings for the next.
    Never fails: settings that cannot be kept are compared with older ones the next time."""
    path = f"{settings.state_dir}/{NAME}"
    now = flat(settings)
    before = _read(path)
    if before != now:
        with suppress(OSError):
            root_file.make_folders(settings.state_dir)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(f"{path}.new", flags, 0o640), "w", encoding="utf-8") as file:
                json.dump(now, file, indent=1)
            os.replace(f"{path}.new", path)
    return "" if before is None else difference(before, now)


def _read(path: str) -> dict[str, str] | None:
    with suppress(OSError, ValueError, RecursionError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as file:
            if os.fstat(fd).st_uid not in (0, os.geteuid()):
                return None
            table = json.loads(file.read(MAX_BYTES))
        if isinstance(table, dict) and all(isinstance(value, str) for value in table.values()):
            return table
    return None
